"""Translates the network's events into the node's."""

from typing import Final

from gossip.core.api import EventName, GossipEvent
from node.events.event_types import (
    Banned,
    DialFailed,
    Equivocation,
    Event,
    NeighbourLost,
    NeighbourUp,
    Offence,
    PeerEvent,
    ReachabilityTold,
    Rejected,
    Throttled,
    WarningEvent,
)

_PEER_EVENTS: Final[dict[EventName, type[PeerEvent]]] = {
    "neighbour_up": NeighbourUp,
    "neighbour_lost": NeighbourLost,
    "throttled": Throttled,
    "dial_failed": DialFailed,
    "reachability": ReachabilityTold,
}

_OFFENCES: Final[dict[EventName, type[Offence]]] = {
    "rejected": Rejected,
    "banned": Banned,
    "equivocation": Equivocation,
}


def translate(event: GossipEvent) -> Event:
    """Return the node's event for one of the network's."""
    if event.name == "warning":
        return WarningEvent(message=event.detail)
    if event.name in _OFFENCES:
        reason = None if event.reason is None else str(event.reason)
        return _OFFENCES[event.name](peer=str(event.peer), detail=event.detail, reason=reason)
    return _PEER_EVENTS[event.name](peer=str(event.peer), detail=event.detail)
