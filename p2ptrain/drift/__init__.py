"""Drift corrections: what keeps nodes with unlike data together between rounds. `base.py` has their contract."""

from p2ptrain.drift.base import DriftCorrection
from p2ptrain.drift.fedprox import FedProx
from p2ptrain.drift.momentum_tracking import MomentumTracking
from p2ptrain.drift.none import NoCorrection
from p2ptrain.drift.qgm import QuasiGlobalMomentum
from p2ptrain.drift.scaffold import Scaffold
from p2ptrain.registry import Registry

__all__ = ["DRIFT", "DriftCorrection", "get", "names"]

DRIFT: Registry[DriftCorrection] = Registry("drift_corrections")
for _member in (FedProx, MomentumTracking, NoCorrection, QuasiGlobalMomentum, Scaffold):
    DRIFT.register(_member.name)(_member)


def get(name: str, **options: object) -> DriftCorrection:
    """Return the drift correction `name`. Raises UnknownMemberError (a ValueError) that lists the names there are."""
    return DRIFT.get(name, **options)


def names() -> list[str]:
    """Every drift correction there is, plug-ins included, sorted."""
    return DRIFT.names()
