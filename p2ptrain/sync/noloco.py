"""NoLoCo: in every round another partner, and a momentum that such gossip can bear (2506.10911).

    theta' = (theta_i + theta_j) / 2, j this round's partner: each reduces a half of the model for both
    (group_allreduce.py) delta <- 0.5 delta + 0.7 (theta' - phi); phi <- phi + delta

Guarantee: partners choose each other (graphs/matching.py) where both know the same members, so that with an
exact codec and no momentum the members' mean stays. Of two nobody can be outvoted: f must be 0. The paper's step is
stable on pairs for alpha < beta < sqrt(2 + alpha^2); DiLoCo's 0.9 with 0.7 is not. Cost: one packed model sent a round,
however many neighbours there are, and one more vector held. Models travel, not differences: fp16 by default, int8 at
the least."""

import torch

from p2ptrain import graphs
from p2ptrain.sync.base import SyncStrategy
from p2ptrain.sync.checks import check_meeting, check_pairs
from p2ptrain.sync.group_allreduce import GroupAllReduce, run_key
from p2ptrain.sync.peer_selection import GraphSelection, shared_seed
from p2ptrain.sync.strategy_spec import ALLREDUCE, StrategySpec
from p2ptrain.sync.sync_config import SyncConfig


def method() -> StrategySpec:
    """Pairs."""
    return StrategySpec(
        name="noloco",
        models=_build,
        averager=ALLREDUCE,
        run_key=run_key,
        compressor="fp16",
        aggregator="mean",
        f=0,
        outer="noloco",
        check=_check,
    )


def _check(config: SyncConfig) -> None:
    check_pairs(config)
    check_meeting(config)


def _build(config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    return GroupAllReduce(config, genesis_d, own, GraphSelection(own, shared_seed(genesis_d), graphs.get("matching")))
