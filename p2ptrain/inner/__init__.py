"""Inner optimizers: how a gradient moves the model, once a step. `base.py` has their contract."""

from p2ptrain.inner.adamw import AdamW
from p2ptrain.inner.base import InnerOptimizer, Moment, MomentBuffer, Parameters, Place, moments_of
from p2ptrain.inner.inner_state import BufferPart, InnerState, Wanted, whole_buffers
from p2ptrain.inner.muon import Muon
from p2ptrain.inner.schedule_free import ScheduleFree
from p2ptrain.inner.sgd import SGD
from p2ptrain.registry import Registry

__all__ = [
    "INNER",
    "BufferPart",
    "InnerOptimizer",
    "InnerState",
    "Moment",
    "MomentBuffer",
    "Parameters",
    "Place",
    "Wanted",
    "get",
    "moments_of",
    "names",
    "whole_buffers",
]

INNER: Registry[InnerOptimizer] = Registry("inner_optimizers")
for _member in (AdamW, Muon, ScheduleFree, SGD):
    INNER.register(_member.name)(_member)


def get(name: str, **options: object) -> InnerOptimizer:
    """Return the inner optimizer `name`. Raises UnknownMemberError (a ValueError) that lists the names there are."""
    return INNER.get(name, **options)


def names() -> list[str]:
    """Every inner optimizer there is, plug-ins included, sorted."""
    return INNER.names()
