"""A newcomer's warm-up, and what members share for one, in words."""

from node.events.event_types import StatisticsShared, WarmedUp
from node.system import text


def of_warm_up(event: WarmedUp | StatisticsShared) -> str:
    """Return what was shared, or by what the node has warmed up, in a line."""
    if isinstance(event, StatisticsShared):
        how = "" if event.noise is None else f", with noise {event.noise:g}"
        return f"shares class statistics of its data with newcomers ({event.bytes} bytes{how})"
    known = f"{len(event.classes)} of {event.of_classes} classes"
    whose = text.plural(event.members, "neighbour")
    steps = text.plural(event.steps, "step")
    return f"warmed up with {steps} on synthetic examples of {known}, by the statistics of {whose}"
