"""What each member may do, compared with what it does; and the listeners, who only receive.

A trainer publishes, stands on the rings and passes on others' records. An observer and a relay listen: they say hello,
hear announcements, and pull updates and models like a neighbour, but have no place among neighbours. Nothing that they
publish, announce or report of others is believed, but what a relay reports to those that reach the swarm through it. A
bootstrap node passes on records, and publishes nothing. In an open swarm everybody is a trainer. Every member enforces
this on all others: their own code is not trusted to do so.
"""

from collections.abc import Callable
from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.messages import FindRequest, Hello
from gossip.membership.invite import Role

MAX_LISTENERS: Final = 4
"""Observers and relays that pull from us: half of the default degree. Each takes as much of our uplink as a neighbour,
and gives nothing."""

_LISTENERS: Final = frozenset({Role.OBSERVER, Role.RELAY})


def everybody_trains(peer: PeerId) -> Role | None:
    """Return the role of every peer in an open swarm: trainer."""
    return Role.TRAINER


def nobody_is_out(peer: PeerId) -> RemoteError | None:
    """Return None: in an open swarm nobody is a former member."""
    return None


class Roles:
    """Roles of peers. `role_of`: None for a peer not known as a member. `why_out`: the error for a former member.
    `via`: the relay through which we reach all others."""

    def __init__(
        self,
        me: PeerId,
        role_of: Callable[[PeerId], Role | None] = everybody_trains,
        why_out: Callable[[PeerId], RemoteError | None] = nobody_is_out,
        via: PeerId | None = None,
    ) -> None:
        self._me = me
        self._via = via
        self._role_of = role_of
        self._why_out = why_out
        self.listeners: dict[PeerId, float] = {}
        """Peers that fetch from us without being neighbours, and when each was last heard (seconds, monotonic)."""

    @property
    def ours(self) -> Role | None:
        """Return our own role; None for a former member."""
        return self._role_of(self._me)

    @property
    def publishes(self) -> bool:
        """Whether we are a trainer ourselves."""
        return self.trains(self._me)

    def trains(self, peer: PeerId) -> bool:
        """Return whether this member may have a place among neighbours."""
        return self._role_of(peer) is Role.TRAINER

    def listens(self, peer: PeerId) -> bool:
        """Return whether this member may only listen."""
        return self._role_of(peer) in _LISTENERS

    def relays(self) -> set[PeerId]:
        """Return the listeners with the role of a relay."""
        return {peer for peer in self.listeners if self._role_of(peer) is Role.RELAY}

    def wanted(self, peer: PeerId) -> bool:
        """Return whether we may dial a peer: not a listener, which comes by itself, nor a former member."""
        return self._role_of(peer) is not Role.OBSERVER and self._why_out(peer) is None

    # -- listeners

    def takes(self, peer: PeerId, now: float, silence_s: float) -> bool:
        """Return whether there is room for a listener. Only trainers have something to listen to."""
        for gone in [each for each, at in self.listeners.items() if now - at > silence_s]:
            del self.listeners[gone]
        return self.publishes and (peer in self.listeners or len(self.listeners) < MAX_LISTENERS)

    def heard(self, peer: PeerId, now: float) -> None:
        """Note a sign of life of a listener."""
        if peer in self.listeners:
            self.listeners[peer] = now

    def lose(self, peer: PeerId) -> None:
        """Forget a listener."""
        self.listeners.pop(peer, None)

    # -- held against what is done

    def objection(self, signer: PeerId) -> RemoteError | None:
        """Return why this peer may publish nothing; None where it may."""
        role = self._role_of(signer)
        if role is Role.TRAINER:
            return None
        if role is not None:
            return RemoteError(Reason.WRONG_ROLE, f"published by a peer of role {role.value}")
        return self._why_out(signer) or RemoteError(Reason.NO_MEMBER, "its author is no member known here, or not yet")

    def check_hello(self, peer: PeerId, hello: Hello) -> None:
        """Raise RemoteError(WRONG_ROLE) when a hello contains what its sender may not say."""
        role = self._role_of(peer)
        if role is Role.TRAINER:
            return
        tells = role is Role.BOOTSTRAP or (role is Role.RELAY and peer == self._via)
        if hello.link or hello.record or (hello.records and not tells):
            named = role.value if role is not None else "none"
            raise RemoteError(Reason.WRONG_ROLE, f"a hello of a peer of role {named} with what only trainers say")

    def check_find(self, peer: PeerId, request: FindRequest) -> None:
        """Raise RemoteError(WRONG_ROLE) when a peer that trains nothing asks us to pass its record on."""
        if request.record and not self.trains(peer):
            raise RemoteError(Reason.WRONG_ROLE, "a record of a peer that trains nothing")
