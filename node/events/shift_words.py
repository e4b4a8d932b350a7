"""A shift of data in words, for the terminal and the page."""

from node.events.event_types import ShiftDetected
from node.system import text


def of_shift(event: ShiftDetected) -> str:
    """Return what has shifted, and where, in a line."""
    by = f" ({', '.join(map(str, event.signals))})" if event.signals else ""  # of a log, which may hold anything
    if event.where == "newcomer":
        return f"this node's data differ from the held-out data of all{by}"
    if event.where == "everywhere":
        return f"data have shifted everywhere: {event.said} of {text.plural(event.members - 1, 'neighbour')} say so"
    others = f"; {event.said} of {text.plural(event.members - 1, 'neighbour')} say so of theirs" if event.said else ""
    return f"this node's data have shifted{by}{others}"
