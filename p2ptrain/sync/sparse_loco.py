"""SparseLoCo: the largest 64 of each 4,096 numbers, two bits each, with an error feedback of its own (2508.15706).

    a = b e + (theta - phi) + (1 - b) (phi - xhat);  q = TopK(a) travels;  xhat += q;  e <- a - q
    theta' = phi + mean over members of the clipped xhat_j - phi;  phi <- theta'

Why not the tracked difference of the other strategies: there xhat follows theta, so that a node tells again all that it
heard of others, for which 64 numbers of 4,096 have no room; estimates fall behind, and averaging pulls back to where
models were. Here a message is own progress, as in the paper: e keeps what did not fit, with decay b = 0.95, and the
model goes to what was told, the same for all.

What differs from the paper: its nodes add each other's messages to one shared phi, which a missed message, or another
view of who takes part, sets apart for ever. Here phi is the average of the public estimates, which are sums of
messages: a node that hears a message late comes to the same phi. The third term of a (encoder.py) keeps these sums from
walking apart and takes news beyond the next neighbour; over members with one phi it nearly adds up to nothing. What is
clipped to the median norm is each estimate's distance from own phi, in place of each message.

Members that know the same estimates and have one phi keep one phi, however little a message holds: any codec goes with
any outer step here, Nesterov's among them.

Guarantee: no member pulls harder than the median member, even under the plain mean. `sync.aggregator` may be any other:
estimates are dense, which payloads are not, so that trimming acts on numbers and not on absence.
Cost: 0.23 bits a parameter (topk at 64 of 4,096 with 2-bit values), some 0.18 after `lossless`, which changes nothing
else; one vector more than tracked_gossip. A parameter's turn comes once in some 64 rounds: runs of fewer rounds than
that are behind; `sync.ratio = 0.03` doubles the bytes and halves the turn.
"""

from functools import partial
from typing import Annotated

import torch

from p2ptrain.sync.base import SyncStrategy
from p2ptrain.sync.checks import check_no_gamma
from p2ptrain.sync.encoder import ErrorFeedbackEncoder, FragmentSchedule
from p2ptrain.sync.mixing import clipped
from p2ptrain.sync.model_averaging import AveragingParts, ModelAveraging
from p2ptrain.sync.strategy_spec import StrategySpec
from p2ptrain.sync.sync_config import SyncConfig


def method(
    *, decay: Annotated[float, "What the error feedback keeps from round to round, in [0, 1]."] = 0.95
) -> StrategySpec:
    """Top-k with decaying error feedback."""
    if not 0 <= decay <= 1:
        raise ValueError(f"decay must be in [0, 1], not {decay}")
    return StrategySpec(
        name="sparse_loco",
        models=partial(_build, decay),
        compressor="lossless+topk",
        codec_options={"ratio": 64 / 4096, "value_bits": 2},
        aggregator="mean",
        f=0,
        ends_at_anchor=True,
        check=_check,
    )


def _check(config: SyncConfig) -> None:
    """ValueError on a consensus step, and on regions: the next round goes to what was told, of which a move towards
    other regions is no part, and takes it back."""
    check_no_gamma(config)
    if config.regions:
        raise ValueError(
            f"{config.strategy} goes to what members told, and would take back each move towards other regions: "
            "take tracked_gossip, or leave sync.regions out"
        )


def _build(decay: float, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    schedule = FragmentSchedule.of(genesis_d.numel(), config.compressor, config.codec_options())
    encoder = ErrorFeedbackEncoder(schedule, genesis_d, config.estimate_dtype, decay=decay)
    return ModelAveraging(config, genesis_d, AveragingParts(encoder=encoder, blend=clipped))
