"""Privatizers: what hides one example, or one member's round, in noise. `base.py` has their contract."""

from p2ptrain.privacy.base import BudgetSpentError, Privatizer, Release
from p2ptrain.privacy.example_level import ExampleLevel
from p2ptrain.privacy.sum_level import SumLevel
from p2ptrain.privacy.unprotected import Unprotected
from p2ptrain.privacy.update_level import UpdateLevel
from p2ptrain.registry import Registry

__all__ = ["PRIVATIZERS", "BudgetSpentError", "Privatizer", "Release", "get", "names"]

PRIVATIZERS: Registry[Privatizer] = Registry("privatizers")
for _member in (ExampleLevel, SumLevel, Unprotected, UpdateLevel):
    PRIVATIZERS.register(_member.name)(_member)


def get(name: str, **options: object) -> Privatizer:
    """Return the privatizer `name`. Raises UnknownMemberError (a ValueError) that lists the names there are."""
    return PRIVATIZERS.get(name, **options)


def names() -> list[str]:
    """Every privatizer there is, plug-ins included, sorted."""
    return PRIVATIZERS.names()
