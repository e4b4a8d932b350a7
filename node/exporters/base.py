"""An exporter listens to a node's events and passes them to another program, in that program's format.

It runs in a thread of its own (pump.py), so it may block on a disk or a network, and may raise, without affecting
training. Its library is imported in that thread when it is built, and not before. There are `tensorboard`, `wandb` and
`otel`; another package adds one by the entry point `p2ptrain.exporters`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from node.events.event_types import Record


@dataclass(frozen=True, kw_only=True)
class About:
    """The node whose events are exported."""

    folder: Path
    """The node's folder; an exporter writes into a folder of its own name there."""
    run: str
    """The run's name: that of the folder above."""
    node: str


@runtime_checkable
class Exporter(Protocol):
    """Built as `Exporter(about)`. Called by one thread."""

    needs: ClassVar[str]
    """The module that it needs: `p2ptrain[NAME]` has it. Empty: none."""

    def export(self, record: Record, /) -> None:
        """Export one event, as a line of `events.jsonl` has it; unknown events and missing fields are ignored. May
        raise any exception of its library."""

    def close(self) -> None:
        """Write and send what is left. Nothing comes after it."""


def numbers(record: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield what a `round` or `evaluated` event measured: the event's own names, `rejected/REASON`, `energy_j/SOURCE`
    and `own/NAME` (the task's metrics), and as `staleness` that of the most stale member. Values that are not finite
    are kept: both libraries know NaN."""
    for name, value in record.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in {"ts", "round", "rounds"}:
            yield name, float(value)
    for field, group in (("rejected_by_reason", "rejected"), ("energy_j", "energy_j"), ("own", "own")):
        counts = record.get(field)
        if isinstance(counts, Mapping):
            yield from ((f"{group}/{name}", float(count)) for name, count in counts.items())
    staleness = record.get("staleness")
    if isinstance(staleness, Mapping):
        yield "staleness", float(max(staleness.values(), default=0))


def round_of(record: Mapping[str, object]) -> int | None:
    """Return the round to which the numbers of an event belong; None where it has none."""
    told = record.get("round")
    if (
        record.get("event") not in {"round", "evaluated"}
        or not isinstance(told, int | float)
        or not math.isfinite(told)
    ):
        return None
    return int(told)
