"""Moshpit: groups that change every round, so that a few small averages make a global one (2103.03239).

    theta' = Agg over the group of theta_j: each member reduces one part of the model for all (group_allreduce.py)

Who is in a group is up to `graph` (p2ptrain/graphs). By default members lie on a grid with d axes, and a round averages
along one of them: with n = group^(d-1) k members, k <= group, an exact codec and the mean, d rounds without training in
between make all models the mean of all; other n come near. `base` does so for every n; where n has a prime factor above
`group`, some of its rounds are steps of another length than to the mean, theta' = theta_i + c (Agg - theta_i), c < 2
(graphs/base_graph.py). An owner's part is the mean either way: c is taken where a member closes its round.

All members must know each other: a node with other neighbours numbers them otherwise, and groups that are not alike at
all their members exchange nothing. (Members who know unlike numbers of members and have the same group for all that may
go unlike steps: the members' mean then moves a little.)
`sync.aggregator` and `sync.f` may be robust ones where a group has members enough: each owner then reduces its part
robustly, and a part to which too few came stays the owner's own (fault_tolerance.py). That bounds lying contributions,
**not lying owners** (group_allreduce.py). Cost: 2 (k-1)/k packed models sent a round, however many neighbours there
are, and two ways instead of one before a round is closed. Models travel, not differences: fp16 by default, int8 at the
least.
"""

from functools import partial
from typing import Annotated, Final

import torch

from p2ptrain import aggregate, graphs
from p2ptrain.graphs import Graph
from p2ptrain.sync.base import SyncStrategy
from p2ptrain.sync.checks import STEADY_OUTERS, check_meeting, check_momentum
from p2ptrain.sync.group_allreduce import LARGEST_GROUP, GroupAllReduce
from p2ptrain.sync.peer_selection import GraphSelection, shared_seed
from p2ptrain.sync.strategy_spec import ALLREDUCE, StrategySpec
from p2ptrain.sync.sync_config import SyncConfig

USUAL_GRAPH: Final = "grid"


def method(
    *,
    group: Annotated[int, "Members of a group, own included."] = 4,
    graph: Annotated[str, "Who is in a group: grid, base, or in pairs exponential, matching."] = USUAL_GRAPH,
) -> StrategySpec:
    """Groups."""
    if graphs.get(graph).form == "edges":  # before its sizes, which would be of no help
        raise ValueError(f"{graph} is no graph of groups, which moshpit exchanges in: use grid, base, or another")
    chosen = graphs.get(graph, group=group)
    if chosen.group > LARGEST_GROUP:
        raise ValueError(f"group must be at most {LARGEST_GROUP}, not {group}: the network has no larger exchanges")
    return StrategySpec(
        name="moshpit",
        models=partial(_build, chosen),
        averager=ALLREDUCE,
        run_key=partial(_run_key, chosen),
        compressor="fp16",
        aggregator="mean",
        f=0,
        check=partial(_check, chosen),
    )


def _run_key(graph: Graph, config: SyncConfig) -> str:
    """Strategy, group size, codec and graph: members who have others would be in other groups."""
    which = () if graph.name == USUAL_GRAPH else (graph.name,)  # whose runs are older than the choice
    return " ".join(map(str, (config.strategy, graph.group, config.compressor, *which)))


def _check(graph: Graph, config: SyncConfig) -> None:
    check_meeting(config)
    check_momentum(config)
    if graph.form == "steps":
        _check_steps(graph, config)
    needed = aggregate.get(config.aggregator, f=config.f, **config.rule_options()).minimum()
    if graph.group < needed:
        rule = f"{config.aggregator} with f = {config.f}"
        raise ValueError(f"{rule} needs {needed} members, and a group has {graph.group}: set group to {needed}")


def _check_steps(graph: Graph, config: SyncConfig) -> None:
    """ValueError on what steps beyond the mean undo: the promise that no value lies outside of the honest ones, and the
    calm of an outer momentum."""
    if config.aggregator != "mean":
        raise ValueError(
            f"the graph {graph.name} steps beyond what {config.aggregator} bounds: use the graph grid, or the mean"
        )
    if config.outer not in STEADY_OUTERS:
        raise ValueError(
            f"the graph {graph.name} swings under {config.outer}: "
            f"use one of {', '.join(STEADY_OUTERS)}, or the graph grid"
        )


def _build(graph: Graph, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    return GroupAllReduce(config, genesis_d, own, GraphSelection(own, shared_seed(genesis_d), graph))
