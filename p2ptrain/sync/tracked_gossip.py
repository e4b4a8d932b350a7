"""Robust tracked gossip: average with all neighbours over compressed differences, and let no liar steer it.

    q = C(theta - xhat); xhat += q; q travels, and neighbours add it to their copy of xhat
    c = Agg over {0} and {w_j (xhat_j - xhat)}, w_j = (1 + staleness_j)^-exponent
    theta' = theta + gamma c; phi <- theta'

Sources: CHOCO-Gossip (1902.00340) for tracking: what C lost stays in the next difference, which is error feedback that
is right when replicas differ. Aggregating *differences to the own estimate* robustly is the gossip form of trimmed
mean. Trimming acts on dense estimates, never on sparse payloads, where "absent" is not zero.
Guarantee: with n >= 2f + 1 members every coordinate moves within the honest members' range. The members' mean stays
where it was when all weigh alike and nothing is trimmed.
Cost: one payload a round to each neighbour, of the compressor's size; memory in model_averaging.py.
"""

import torch

from p2ptrain.sync.base import SyncStrategy
from p2ptrain.sync.checks import check_momentum
from p2ptrain.sync.encoder import FragmentSchedule, TrackedEncoder
from p2ptrain.sync.model_averaging import AveragingParts, ModelAveraging
from p2ptrain.sync.strategy_spec import StrategySpec
from p2ptrain.sync.sync_config import SyncConfig


def method() -> StrategySpec:
    """Return the default strategy."""
    return StrategySpec(
        name="tracked_gossip", models=among_all, check=check_momentum, ends_at_anchor=True, takes_layers=True
    )


def among_all(config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    """Whole models, told as differences to estimates, over all neighbours. What is different under other names is the
    outer optimizer, and the defaults."""
    schedule = FragmentSchedule.of(genesis_d.numel(), config.compressor, config.codec_options())
    return ModelAveraging(
        config, genesis_d, AveragingParts(encoder=TrackedEncoder(schedule, genesis_d, config.estimate_dtype))
    )
