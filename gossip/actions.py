"""The actions that the engine asks for, and the queue in which it leaves them.

An event may cause several actions. The service performs them in order (`GossipService._do`), and nothing else does.
"""

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
    """Start to follow a new neighbour."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class Unfollow:
    """Stop following a former neighbour."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class Disconnect:
    """Close all connections to a peer. `hurried`: at once. Else a private swarm's members first finish telling each
    other what is new, and a peer that has become a neighbour by then stays."""

    peer: PeerId
    hurried: bool = True


@dataclass(frozen=True, kw_only=True)
class WakeSync:
    """Wake a neighbour's follower: there may be something to fetch."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class WakeRegional:
    """Wake the task that fetches regions' models."""


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Broadcast a link that others have signed, so that all can compare it with theirs (updates/audits.py)."""

    raw: bytes


Action = EmitEvent | Follow | Unfollow | Disconnect | WakeSync | WakeRegional | Broadcast


class ActionQueue:
    """Actions in the order in which they were asked for. The service drains it after every event, so it holds what one
    event causes and no more."""

    def __init__(self) -> None:
        self._actions: list[Action] = []

    def add(self, action: Action) -> None:
        """Ask for an action."""
        self._actions.append(action)

    def tell(self, name: EventName, peer: PeerId, reason: Reason | None = None, detail: str = "") -> None:
        """Ask to pass an event to the observer."""
        self.add(EmitEvent(event=GossipEvent(name=name, peer=peer, reason=reason, detail=detail)))

    def drain(self) -> list[Action]:
        """Return all actions, and forget them."""
        actions, self._actions = self._actions, []
        return actions
