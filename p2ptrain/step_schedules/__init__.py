"""Step schedules: how a run's inner steps are spread over its rounds. `base.py` has their contract."""

from p2ptrain.registry import Registry
from p2ptrain.step_schedules.base import StepSchedule
from p2ptrain.step_schedules.constant_steps import ConstantSteps
from p2ptrain.step_schedules.post_local import PostLocal
from p2ptrain.step_schedules.qsr import QuadraticSynchronizationRule

__all__ = ["STEP_SCHEDULES", "StepSchedule", "get", "names"]

STEP_SCHEDULES: Registry[StepSchedule] = Registry("step_schedules")
for _member in (ConstantSteps, PostLocal, QuadraticSynchronizationRule):
    STEP_SCHEDULES.register(_member.name)(_member)


def get(name: str, **options: object) -> StepSchedule:
    """Return the step schedule `name`. Raises UnknownMemberError (a ValueError) that lists the names there are."""
    return STEP_SCHEDULES.get(name, **options)


def names() -> list[str]:
    """Every step schedule there is, plug-ins included, sorted."""
    return STEP_SCHEDULES.names()
