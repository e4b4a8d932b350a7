"""Moshpit: groups that change every round, so that a few small averages make a global one (2103.03239).

    theta' = Agg over the group of theta_j: each member reduces one part of the model for all (group_allreduce.py)

Members lie on a grid with d axes; a round averages along one of them (peer_selection.GridGroups).
Guarantee: with n = size^(d-1) k members, k <= size, an exact codec and the mean, d rounds without training in between
make all models the mean of all; other n come near. All members must know each other: a node with other neighbours
numbers them otherwise, and groups that are not alike at all their members exchange nothing.
`sync.aggregator` and `sync.f` may be robust ones where a group has members enough: each owner then reduces its part
robustly, and a part to which too few came stays the owner's own (fault_tolerance.py). That bounds lying contributions,
**not lying owners** (group_allreduce.py). Cost: 2 (k-1)/k packed models sent a round, however many neighbours there
are, and two ways instead of one before a round is closed. Models travel, not differences: fp16 by default, int8 at the
least.
"""

from functools import partial
from typing import Annotated

import torch

from p2ptrain import aggregate
from p2ptrain.sync.base import SyncStrategy
from p2ptrain.sync.checks import check_meeting, check_momentum
from p2ptrain.sync.group_allreduce import LARGEST_GROUP, GroupAllReduce, run_key
from p2ptrain.sync.peer_selection import GridGroups, shared_seed
from p2ptrain.sync.strategy_spec import ALLREDUCE, StrategySpec
from p2ptrain.sync.sync_config import SyncConfig


def method(*, group: Annotated[int, "Members of a group, own included."] = 4) -> StrategySpec:
    """Groups."""
    if group < 2:
        raise ValueError(f"group must be at least 2, not {group}")
    if group > LARGEST_GROUP:
        raise ValueError(f"group must be at most {LARGEST_GROUP}, not {group}: the network has no larger exchanges")
    return StrategySpec(
        name="moshpit",
        models=partial(_build, group),
        averager=ALLREDUCE,
        run_key=run_key,
        compressor="fp16",
        aggregator="mean",
        f=0,
        check=partial(_check, group),
    )


def _check(group: int, config: SyncConfig) -> None:
    check_meeting(config)
    check_momentum(config)
    needed = aggregate.get(config.aggregator, f=config.f, **config.rule_options()).minimum()
    if group < needed:
        rule = f"{config.aggregator} with f = {config.f}"
        raise ValueError(f"{rule} needs {needed} members, and a group has {group}: set group to {needed}")


def _build(group: int, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    return GroupAllReduce(config, genesis_d, own, GridGroups(own, shared_seed(genesis_d), group))
