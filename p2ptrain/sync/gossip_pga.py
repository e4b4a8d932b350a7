"""Gossip-PGA: cheap gossip in pairs, and in one round of P an exact average over everybody (2105.09080).

    round r with (r + 1) mod P = 0: payloads are exact, and theta' is the mean over all neighbours
    all others: payloads are compressed, and theta' is the mean with this round's partner (graphs/matching.py)

The global rounds end what sparse gossip lets drift apart. They are global where everybody is everybody's neighbour, and
an average over the neighbourhood elsewhere.
Guarantee: after a global round without late updates all members' models are equal up to rounding. Pairs are half of it,
so f must be 0.
Cost: (P - 1) payloads of the compressor's size and one of 4 bytes a parameter in P rounds; memory as tracked_gossip.
After a global round the whole distance to the mean is still to be told: with two bits or fewer that is told so badly
that members drift apart until the next one, further each time, so such codecs are refused (checks.py).
"""

from functools import partial
from typing import Annotated

import torch

from p2ptrain import graphs
from p2ptrain.sync.base import SyncStrategy
from p2ptrain.sync.checks import check_alternation
from p2ptrain.sync.encoder import FragmentSchedule, TrackedEncoder
from p2ptrain.sync.model_averaging import AveragingParts, ModelAveraging
from p2ptrain.sync.peer_selection import EVERYONE, Alternating, GraphSelection, shared_seed
from p2ptrain.sync.strategy_spec import StrategySpec
from p2ptrain.sync.sync_config import SyncConfig


def method(*, period: Annotated[int, "One round in so many averages exactly, with everybody."] = 8) -> StrategySpec:
    """Gossip with periodic global averaging. At a period of 8 the exact rounds are as many bytes as all others."""
    if period < 1:
        raise ValueError(f"period must be at least 1, not {period}")
    return StrategySpec(
        name="gossip_pga",
        models=partial(_build, period),
        compressor="int4",
        aggregator="mean",
        f=0,
        check=check_alternation,
        draws_partners=True,
    )


def _build(period: int, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    def is_global(round: int) -> bool:
        return (round + 1) % period == 0

    schedule = FragmentSchedule.of(genesis_d.numel(), config.compressor, config.codec_options(), is_exact=is_global)
    pairs = GraphSelection(own, shared_seed(genesis_d), graphs.get("matching"))
    peer_selection = Alternating(pairs, EVERYONE, is_global)
    return ModelAveraging(
        config,
        genesis_d,
        AveragingParts(
            encoder=TrackedEncoder(schedule, genesis_d, config.estimate_dtype), peer_selection=peer_selection
        ),
    )
