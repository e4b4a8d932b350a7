"""What an exporter is: a listener to a node's events that tells another program of them, in words of its own.

It runs in a thread of its own (pump.py), so it may block on a disk or a network, and may raise: training does neither.
Its library is imported when it is built, there, and not before. Members: `tensorboard`, `wandb`, `otel`; a package of
yours adds one by the entry point `p2ptrain.exporters`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from node.events.event_types import Record


@dataclass(frozen=True, kw_only=True)
class About:
    """Of whom it tells."""

    folder: Path
    """The node's; what an exporter writes goes into a folder of its own name there."""
    run: str
    """The run's name: that of the folder above."""
    node: str


@runtime_checkable
class Exporter(Protocol):
    """Built as `Exporter(about)`. Called by one thread."""

    needs: ClassVar[str]
    """The module without which it cannot be: `p2ptrain[NAME]` has it. Empty: none."""

    def export(self, record: Record, /) -> None:
        """Take up one event, as a line of `events.jsonl` has it; unknown ones and missing fields are passed over. May
        raise whatever its library does."""

    def close(self) -> None:
        """Write and send what is left. Nothing comes after it."""


def numbers(record: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """What a `round` or `evaluated` event measured: the event's own names, `rejected/REASON`, `energy_j/SOURCE` and
    `own/NAME` (the task's metrics), and `staleness` as that of the most stale member. What is not finite stays so: both
    libraries know NaN."""
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
    """The round that the numbers of an event belong to; None: it has none to tell."""
    told = record.get("round")
    if (
        record.get("event") not in {"round", "evaluated"}
        or not isinstance(told, int | float)
        or not math.isfinite(told)
    ):
        return None
    return int(told)
