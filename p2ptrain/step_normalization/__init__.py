"""Step normalizations: how far a round counts that has fewer steps than scheduled. `base.py` has their contract."""

from p2ptrain.registry import Registry
from p2ptrain.step_normalization.base import StepNormalization
from p2ptrain.step_normalization.fednova import FedNova
from p2ptrain.step_normalization.unnormalized import Unnormalized

__all__ = ["STEP_NORMALIZATIONS", "StepNormalization", "get", "names"]

STEP_NORMALIZATIONS: Registry[StepNormalization] = Registry("step_normalizations")
for _member in (FedNova, Unnormalized):
    STEP_NORMALIZATIONS.register(_member.name)(_member)


def get(name: str, **options: object) -> StepNormalization:
    """Return the step normalization `name`. Raises UnknownMemberError (a ValueError) that lists the names there are."""
    return STEP_NORMALIZATIONS.get(name, **options)


def names() -> list[str]:
    """Every step normalization there is, plug-ins included, sorted."""
    return STEP_NORMALIZATIONS.names()
