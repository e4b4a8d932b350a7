"""What this project's own setup makes of the links in a published table of utilization (published_links.toml).

For each size, step time and bandwidth of the table: the setup that a plan recommends there for two members who trust
each other, and what share of the time it spends in planned steps. A cell below the published one says why.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from node.config.schema import from_raw
from node.planning.accelerators import accelerator
from node.planning.advice import NOTCHES, advise
from node.planning.forecast import PlanRequest, RunForecast, forecast
from node.planning.model_shape import shape_of_size
from node.planning.round_timing import PlannedLink

NO_EVALUATION: Final = 1_000_000
"""Rounds between two evaluations: the table counts none."""
DEVICE: Final = "h100-sxm"
"""Plays no part: the table says how long a step takes, and memory is not what is asked."""


@dataclass(frozen=True, kw_only=True)
class UtilizationCell:
    """A cell of the table, with what is recommended at its bandwidth."""

    parameters: float
    step_s: float
    method: str
    gbit: float
    published: float
    """In %, of that method at that bandwidth."""
    ours: float
    """In %, of the recommended setup."""
    strategy: str
    compressor: str
    inner_steps: int
    at_their_inner_steps: float
    """In %, of the recommended setup with the table's H."""
    reason: str
    """Why it is below; empty where it is not."""

    @property
    def at_or_above(self) -> bool:
        """Return whether it is at or above the published one."""
        return self.ours >= self.published


def utilization_cells() -> list[UtilizationCell]:
    """Return all cells, as the table has them."""
    table = tomllib.loads((resources.files("node.planning") / "published_links.toml").read_text(encoding="utf-8"))
    return [
        _cell(table, row, gbit, float(target))
        for row in table["rows"]
        for gbit, target in zip(row["gbit"], table["targets"], strict=True)
    ]


def _cell(table: Mapping[str, Any], row: Mapping[str, Any], gbit: float, target: float) -> UtilizationCell:
    found = _recommended(row["parameters"], row["step_s"], gbit, table["members"])
    theirs = forecast(found.request.with_settings(train={"inner_steps": table["inner_steps"]}))
    config = found.request.config
    ours = 100 * found.times.utilization
    return UtilizationCell(
        parameters=row["parameters"],
        step_s=row["step_s"],
        method=row["method"],
        gbit=gbit,
        published=target,
        ours=ours,
        strategy=config.sync.strategy,
        compressor=config.sync.compressor,
        inner_steps=config.train.inner_steps,
        at_their_inner_steps=100 * theirs.times.utilization,
        reason="" if ours >= target else _reason(found, target),
    )


@lru_cache(maxsize=256)
def _recommended(parameters: float, step_s: float, gbit: float, members: int) -> RunForecast:
    request = PlanRequest(
        shape=shape_of_size(parameters),
        length=2048,
        config=from_raw({"train": {"eval_every": NO_EVALUATION}}),
        nodes=members,
        link=PlannedLink(up_bits_s=1e9 * gbit, down_bits_s=1e9 * gbit, rtt_s=0.0),
        device=accelerator(DEVICE),
        tokens=20 * parameters,
        step_s=step_s,
    )
    return advise(request, liars=0).best


def _reason(found: RunForecast, target: float) -> str:
    """What binds, and from which H on the cell would be reached."""
    times, chosen = found.times, found.request.config.train.inner_steps
    binds = f"an exchange of {times.exchange_s:.3g} s ({_largest(found)}) outlasts {chosen} steps"
    for steps in NOTCHES:
        longer = forecast(found.request.with_settings(train={"inner_steps": steps}))
        if 100 * longer.times.utilization >= target:
            share = f"{100 * longer.times.utilization:.1f}%"
            return f"{binds}; H = {steps} has {share}, and comes to the same loss later"
    return f"{binds}, and no H up to {NOTCHES[-1]} hides it"


def _largest(found: RunForecast) -> str:
    """The largest part of an exchange."""
    times = found.times
    parts = {"uplink": times.send_s, "downlink": times.receive_s, "codecs and averaging": times.codec_s}
    name = max(parts, key=lambda each: parts[each])
    return f"{name} {parts[name]:.3g} s"
