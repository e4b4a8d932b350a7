"""Moshpit: groups that change every round, so that a few small averages make a global one (2103.03239).

    theta' = theta + gamma Agg over the group of {0} and {w_j (xhat_j - xhat)}

Members lie on a grid with d axes; a round averages along one of them (company.Groups).
Guarantee: with n = size^(d-1) k members, k <= size, exact payloads and the mean, d rounds without training in between
make all models the mean of all; other n come near. All members must know each other: a node with other neighbours
numbers them otherwise. `sync.aggregator` and `sync.f` may be robust ones where a group has members enough; in the
smaller groups of an incomplete grid such a round then aggregates nothing (council.py).
Cost: **this is group selection only**. Payloads are broadcast to all neighbours over the same tracked estimates as
ever, so no bytes are saved. The paper's butterfly, in which a group's members reduce a shard each, is a transport
inside the group, and the network's to build.
"""

import torch

from p2ptrain import aggregate
from p2ptrain.sync.assembled import Assembled, Parts
from p2ptrain.sync.base import SyncStrategy
from p2ptrain.sync.checks import check_momentum
from p2ptrain.sync.company import Groups, shared_seed
from p2ptrain.sync.config import SyncConfig
from p2ptrain.sync.method import Method
from p2ptrain.sync.voice import Programme, Tracked


def method() -> Method:
    """Groups."""
    return Method(name="moshpit", models=_build, aggregator="mean", f=0, options={"group": 4}, check=_check)


def _check(config: SyncConfig) -> None:
    check_momentum(config)
    needed, group = (
        aggregate.get(config.aggregator, f=config.f, **config.rule_options()).minimum(),
        int(config.option("group")),
    )
    if group < needed:
        rule = f"{config.aggregator} with f = {config.f}"
        raise ValueError(f"{rule} needs {needed} members, and a group has {group}: set group to {needed}")


def _build(config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    programme = Programme.of(genesis_d.numel(), config.compressor, config.codec_options())
    groups = Groups(own, shared_seed(genesis_d), int(config.option("group")))
    return Assembled(config, Parts(voice=Tracked(programme, genesis_d), company=groups))
