"""The settings that name a member of an extension point, and what is said of a name that no member has."""

from typing import Any

from node.config.config_errors import did_you_mean
from node.config.toml_source import Raw
from node.system.errors import UsageError
from p2ptrain.aggregate import AGGREGATORS, PRE_AGGREGATORS
from p2ptrain.attacks import ATTACKS
from p2ptrain.compress import COMPRESSORS
from p2ptrain.drift import DRIFT
from p2ptrain.inner import INNER
from p2ptrain.outer import OUTER
from p2ptrain.privacy import PRIVATIZERS
from p2ptrain.registry import Registry
from p2ptrain.step_normalization import STEP_NORMALIZATIONS
from p2ptrain.step_schedules import STEP_SCHEDULES
from p2ptrain.sync import SYNC_STRATEGIES
from p2ptrain.tasks import EXTERNAL, TASKS

MEMBERS: dict[tuple[str, str], Registry[Any]] = {
    ("sync", "strategy"): SYNC_STRATEGIES,
    ("sync", "compressor"): COMPRESSORS,
    ("sync", "aggregator"): AGGREGATORS,
    ("sync", "outer"): OUTER,
    ("train", "optimizer"): INNER,
    ("train", "drift"): DRIFT,
    ("train", "inner_steps_schedule"): STEP_SCHEDULES,
    ("train", "step_normalization"): STEP_NORMALIZATIONS,
    ("privacy", "privatizer"): PRIVATIZERS,
    ("attack", "name"): ATTACKS,
    ("task", "name"): TASKS,
}
"""The settings that name a member of an extension point."""


def check_members(raw: Raw) -> None:
    """Raise UsageError for a name that no member has, listing those there are; other mistakes are left to pydantic."""
    for (section, key), registry in MEMBERS.items():
        keys = raw.get(section)
        name = keys.get(key) if isinstance(keys, dict) else None
        is_factory = section == "task" and isinstance(name, str) and (":" in name or name == EXTERNAL)
        if isinstance(name, str) and not is_factory:
            _check(f"{section}.{key}", name, registry)


def _check(key: str, name: str, registry: Registry[Any]) -> None:
    names = [*registry.names(), *(["none"] if registry is ATTACKS else [])]
    stages = PRE_AGGREGATORS.names() if registry is AGGREGATORS else []
    for part in name.split("+"):  # names compose, where an extension point lets them
        if part not in (*names, *stages):
            tail = ", or module:factory for your own" if registry is TASKS else ""
            known = f"there are {', '.join(names)}{tail}"
            raise UsageError(f"unknown {key} {part!r}{did_you_mean(part, names)}", known)
