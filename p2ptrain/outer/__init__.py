"""Outer optimizers: how the averaged model moves the anchor, once a round. `base.py` has their contract."""

from p2ptrain.outer.average import Average
from p2ptrain.outer.base import BySlices, OuterOptimizer
from p2ptrain.outer.delayed_nesterov import DelayedNesterov
from p2ptrain.outer.nesterov import Nesterov
from p2ptrain.outer.noloco_momentum import NoLoCo
from p2ptrain.registry import Registry

__all__ = ["OUTER", "Average", "BySlices", "OuterOptimizer", "get", "names"]

OUTER: Registry[OuterOptimizer] = Registry("outer_optimizers")
for _member in (Average, DelayedNesterov, Nesterov, NoLoCo):
    OUTER.register(_member.name)(_member)


def get(name: str, **options: object) -> OuterOptimizer:
    """Return the outer optimizer `name`. Raises UnknownMemberError (a ValueError) that lists the names there are."""
    return OUTER.get(name, **options)


def names() -> list[str]:
    """Every outer optimizer there is, plug-ins included, sorted."""
    return OUTER.names()
