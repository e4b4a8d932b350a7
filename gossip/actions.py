"""What the state machine wants performed, and the box in which it leaves it."""

from dataclasses import dataclass

from gossip.core.api import EventName, GossipEvent
from gossip.core.errors import Reason
from gossip.core.ids import PeerId


@dataclass(frozen=True, kw_only=True)
class EmitEvent:
    """Pass an event to the observer."""

    event: GossipEvent


@dataclass(frozen=True, kw_only=True)
class Follow:
    """Start following a new neighbour."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class Unfollow:
    """Stop following: it is no neighbour any more."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class Disconnect:
    """Close all connections. `hurried`: at once; else when what members of a private swarm tell each other is told."""

    peer: PeerId
    hurried: bool = True


@dataclass(frozen=True, kw_only=True)
class WakeSync:
    """There may be new work for this neighbour's follower."""

    peer: PeerId


Out = EmitEvent | Follow | Unfollow | Disconnect | WakeSync


class ActionQueue:
    """Outs in order. The service drains it after every call, so it holds what one call causes and no more."""

    def __init__(self) -> None:
        self._outs: list[Out] = []

    def add(self, out: Out) -> None:
        """Leave something to be performed."""
        self._outs.append(out)

    def tell(self, name: EventName, peer: PeerId, reason: Reason | None = None, detail: str = "") -> None:
        """Leave an event for the observer."""
        self.add(EmitEvent(event=GossipEvent(name=name, peer=peer, reason=reason, detail=detail)))

    def drain(self) -> list[Out]:
        """Take everything out."""
        outs, self._outs = self._outs, []
        return outs
