"""The least that a member's machine must have and do, as a swarm's manifest names it: memory, and tokens a second.

A newcomer's machine is checked before its copy of the base model is looked for. Nobody else checks it: who says that
it goes on all the same only has itself, and the others' patience with a slow neighbour, to lose.
"""

import math
import time
from typing import TYPE_CHECKING, Final

from gossip.membership.settings import Setting, Settings
from node.config.toml_source import Raw
from node.swarm import agreed_settings
from node.system import text
from node.system.cgroups import machine_memory
from node.system.errors import UsageError
from node.system.light_roles import WITHOUT_MODEL

if TYPE_CHECKING:
    from node.config.schema import Config

MEMORY: Final = "memory_bytes"
SPEED: Final = "tokens_per_s"
COST: Final = "operations_per_token"
"""What the founder's machine could have multiplied in the time of a token (`p2ptrain/training/speed.py`)."""

ANYWAY: Final = "--set node.below_minimum=true"


def check_wanted(memory_bytes: float | None, tokens_per_s: float | None) -> None:
    """Check what a founder asks of members' machines. UsageError."""
    for option, value in (("--min-memory", memory_bytes), ("--min-speed", tokens_per_s)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{option} must be a positive number", "")


def check_measurable(config: "Config") -> None:
    """Check that this machine can train the swarm's model, as a least speed needs. UsageError."""
    from p2ptrain import tasks

    if config.task.name == tasks.EXTERNAL:
        raise UsageError(
            "the least speed is measured by training here, and this model is in the members' own programs",
            "leave --min-speed out",
        )


def minimum_section(config: "Config", memory_bytes: float | None, tokens_per_s: float | None) -> dict[str, Setting]:
    """Return what the manifest says of the least that a member must have and do; empty where nothing was chosen. For a
    speed, this machine trains some steps. Raises TaskError where it cannot."""
    section: dict[str, Setting] = {}
    if memory_bytes is not None:
        section[MEMORY] = int(memory_bytes)
    if tokens_per_s is not None:
        section |= {SPEED: tokens_per_s, COST: _cost(config)}
    return section


def check_minimum(settings: Settings, raw: Raw, *, joins: bool) -> None:
    """Check this machine against what the manifest asks of it, its speed only where it `joins`. UsageError, in one line
    that says how to go on all the same."""
    node = raw.get("node")
    own = node if isinstance(node, dict) else {}
    if own.get("role") in WITHOUT_MODEL or own.get("below_minimum") is True:
        return
    least = agreed_settings.minimum_in(settings)
    _check_memory(least.get(MEMORY, agreed_settings.base_in(settings).get(MEMORY)))
    if joins and SPEED in least and own.get("role") != "observer":
        _check_speed(_positive(least[SPEED]), _positive(least.get(COST)), raw)


def _check_memory(need: Setting) -> None:
    have = machine_memory()
    if type(need) is int and need > have:
        raise UsageError(
            f"a member of this swarm needs {text.size(need)} of memory, and this machine has {text.size(have)}",
            f"to join all the same: {ANYWAY}",
        )


def _check_speed(wanted: float, cost: float, raw: Raw) -> None:
    from node.config.schema import from_raw
    from p2ptrain.training.speed import matmul_rate

    rate = matmul_rate(from_raw(raw).train, time.perf_counter)
    if rate < wanted * cost:
        raise UsageError(
            f"a member of this swarm trains {text.amount(wanted)} tokens/s, and this machine would train about "
            f"{text.amount(rate / cost)} (it multiplies {rate / 1e9:.3g} GFLOP/s, and {wanted * cost / 1e9:.3g} are "
            "needed)",
            f"another train.device, or more train.threads; to join all the same: {ANYWAY}",
        )


def _positive(value: Setting) -> float:
    if type(value) in (int, float) and 0 < float(value) < math.inf:  # type: ignore[arg-type]
        return float(value)  # type: ignore[arg-type]
    raise UsageError("the swarm's manifest names its least speed by something that is no number", "do not join")


def _cost(config: "Config") -> float:
    from p2ptrain import tasks
    from p2ptrain.training.speed import matmul_rate, token_rate

    task = tasks.get(config.task.name, **config.task.options)
    return matmul_rate(config.train, time.perf_counter) / token_rate(task, config.train, time.perf_counter)
