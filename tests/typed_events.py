"""Events of the tests, which write them as records."""

from collections.abc import Mapping
from typing import Any

from node.events.event_types import Event, parse


def typed(record: Mapping[str, Any]) -> Event:
    """The event of a record, in which fields may be missing."""
    event = parse(record)
    assert event is not None, record
    return event


def said(name: str, **fields: Any) -> Event:
    """An event as it is told, before the log gives it its time."""
    return typed({"ts": 0.0, "event": name, **fields})
