"""OpenTelemetry: a trace for every round, sent by OTLP over HTTP to OTEL_EXPORTER_OTLP_ENDPOINT (default: this machine,
port 4318), with the headers and timeout of its other variables.

    round       from the round's first step to its close
      train       its steps; the round before it is closed meanwhile, so that traces overlap
      publish     the update is encoded and announced (in a round that is a meeting: part of `collect`)
      collect     the neighbours' updates are waited for
      aggregate   they are aggregated, and the outer step is taken

Times are computed from the event of a closed round, in the node's own clock. Events of neighbours since the last one
(refused, banned, lost, arrived) are the round's span events.
"""

import math
import os
from collections import deque
from typing import Any, ClassVar

from node.events.event_types import (
    Banned,
    Equivocation,
    Event,
    Joined,
    LearnerStarted,
    NeighbourLost,
    NeighbourUp,
    Record,
    Rejected,
    RoundClosed,
    RoundTrained,
    Throttled,
    WarningEvent,
    parse,
)
from node.exporters.base import About, numbers

MAX_NOTES = 64
"""Most events kept between two rounds: a span's own limit is 128."""

NOTES = (NeighbourUp, NeighbourLost, Rejected, Banned, Equivocation, Throttled, WarningEvent, Joined)
"""Events that become span events of a round."""

TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
TIMEOUT_S = 2.0
"""Seconds for sending a round's spans, retries included, unless one of TIMEOUTS says otherwise. The library's ten
seconds are longer than many rounds: a collector that is down would be noticed by a full queue, an hour later."""

NS = 1_000_000_000


class OpenTelemetry:
    """Sends all spans of a round together when it is closed."""

    needs: ClassVar[str] = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

    def __init__(self, about: About) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        self._about = about
        asked = any(os.environ.get(name) for name in TIMEOUTS)
        self._sender = OTLPSpanExporter(timeout=None if asked else TIMEOUT_S)
        self._resource: dict[str, str] = {}
        self._notes: deque[Event] = deque(maxlen=MAX_NOTES)

    def export(self, record: Record, /) -> None:
        """Remember the node and its events; send the spans of a closed round. Raises OSError when no collector takes
        them."""
        event = parse(record)
        if isinstance(event, LearnerStarted):
            self._resource = {"service.instance.id": event.peer_id, "p2ptrain.task": event.task}
        elif isinstance(event, NOTES):
            self._notes.append(event)
        elif isinstance(event, RoundClosed):
            self._send(event)

    def close(self) -> None:
        """Write and send what is left; nothing comes after it: every round was sent when it was closed."""
        self._sender.shutdown()

    def _send(self, event: RoundClosed) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._sender.export(self._spans(event)) is not SpanExportResult.SUCCESS:
            raise OSError("the collector takes no spans: see OTEL_EXPORTER_OTLP_ENDPOINT")

    def _spans(self, event: RoundClosed) -> list[Any]:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import set_span_in_context

        about = {"service.name": "p2ptrain", "p2ptrain.run": self._about.run, "p2ptrain.node": self._about.node}
        # A provider of its own: a user's task may have set up the global one for itself.
        tracer = TracerProvider(resource=Resource.create(about | self._resource)).get_tracer("p2ptrain")
        parts = parts_of(event)
        began, ended = min(start for start, _ in parts.values()), int(event.ts * NS)
        whole = tracer.start_span("round", start_time=began, attributes=_attributes(event))
        for note in self._notes:
            whole.add_event(note.name, _words(note.to_record()), timestamp=int(note.ts * NS))
        self._notes.clear()
        spans = [whole]
        for name, (start, end) in parts.items():
            spans.append(tracer.start_span(name, context=set_span_in_context(whole), start_time=start))
            spans[-1].end(end)
        whole.end(ended)
        return spans


def parts_of(event: RoundClosed) -> dict[str, tuple[int, int]]:
    """Return when each part of a round began and ended, in Unix nanoseconds. Parts that the event does not have are
    left out; `train` is always there, possibly of no length."""
    trained = event if isinstance(event, RoundTrained) else None
    closing_began = int((event.ts - (_seconds(trained.close_s) if trained else 0.0)) * NS)
    steps_ns = int(_seconds(trained.step_s) * trained.steps * NS) if trained else 0
    parts = {"train": (closing_began - steps_ns, closing_began)}
    at = closing_began
    closing = {
        "publish": trained.publish_s if trained else None,
        "collect": event.collect_s,
        "aggregate": trained.aggregate_s if trained else None,
    }
    for name, seconds in closing.items():
        if seconds is not None:
            parts[name] = (at, at := at + int(_seconds(seconds) * NS))
    return parts


def _seconds(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def _attributes(event: RoundClosed) -> dict[str, Any]:
    rung = event.rung if isinstance(event, RoundTrained) else ""
    words = {"round": event.round, "closed_by": event.closed_by, "rung": rung}
    told = {f"p2ptrain.{name}": value for name, value in words.items() if value}
    return told | {f"p2ptrain.{name}": value for name, value in numbers(event.to_record())}


def _words(note: Record) -> dict[str, str]:
    return {name: str(note[name]) for name in ("peer", "reason", "detail", "message") if note.get(name)}
