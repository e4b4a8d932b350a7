"""What each member may do, held against what it does; and those that listen and take no part.

A trainer publishes, stands on the rings and tells of others. An observer and a relay listen: they say hello, hear
announcements, and pull updates and models like a neighbour, and have no place among neighbours; nothing that they
publish, announce or tell of others is believed. A bootstrap node tells of others, and publishes nothing. Where a swarm
is open to all, everybody is a trainer. Every member holds all others to it: their own code is not asked.
"""

from collections.abc import Callable
from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.messages import FindRequest, Hello
from gossip.membership.invite import Role

MAX_LISTENERS: Final = 4
"""Observers and relays that pull from us: half of the default degree. Each takes of our uplink what a neighbour takes,
and gives nothing."""

_LISTENERS: Final = frozenset({Role.OBSERVER, Role.RELAY})


def everybody_trains(peer: PeerId) -> Role | None:
    """The roles of a swarm that is open to all."""
    return Role.TRAINER


def nobody_is_out(peer: PeerId) -> RemoteError | None:
    """The same for a former member."""
    return None


class Roles:
    """`role_of`: None for a peer that nobody has told us of as a member. `why_out`: of one that is a member no more."""

    def __init__(
        self,
        me: PeerId,
        role_of: Callable[[PeerId], Role | None] = everybody_trains,
        why_out: Callable[[PeerId], RemoteError | None] = nobody_is_out,
    ) -> None:
        self._me = me
        self._role_of = role_of
        self._why_out = why_out
        self.listeners: dict[PeerId, float] = {}
        """Peers that fetch from us and are no neighbours, with the time at which each was last heard of."""

    @property
    def ours(self) -> Role | None:
        """Return our own role; None for a former member."""
        return self._role_of(self._me)

    @property
    def publishes(self) -> bool:
        """Whether we are a trainer ourselves."""
        return self.trains(self._me)

    def trains(self, peer: PeerId) -> bool:
        """Whether this is a member that may have a place among neighbours."""
        return self._role_of(peer) is Role.TRAINER

    def listens(self, peer: PeerId) -> bool:
        """Whether this is a member that may only listen."""
        return self._role_of(peer) in _LISTENERS

    def relays(self) -> set[PeerId]:
        """Those of the listeners whose part it is to relay."""
        return {peer for peer in self.listeners if self._role_of(peer) is Role.RELAY}

    def wanted(self, peer: PeerId) -> bool:
        """Whether we may dial it: whoever listens comes by itself, and who is out has no way back."""
        return self._role_of(peer) is not Role.OBSERVER and self._why_out(peer) is None

    # -- listeners

    def takes(self, peer: PeerId, now: float, silence_s: float) -> bool:
        """Whether there is room for a listener. Only trainers have something to listen to."""
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
        return self._why_out(signer) or RemoteError(Reason.NO_MEMBER, "published by nobody that we know as a member")

    def check_hello(self, peer: PeerId, hello: Hello) -> None:
        """Raises RemoteError(WRONG_ROLE) when a hello has what its sender may not say."""
        role = self._role_of(peer)
        if role is Role.TRAINER:
            return
        if hello.link or hello.record or (hello.records and role is not Role.BOOTSTRAP):
            named = role.value if role is not None else "none"
            raise RemoteError(Reason.WRONG_ROLE, f"a hello of a peer of role {named} with what only trainers say")

    def check_find(self, peer: PeerId, request: FindRequest) -> None:
        """Raises RemoteError(WRONG_ROLE) when somebody wants others to be told of it who has nothing to offer."""
        if request.record and not self.trains(peer):
            raise RemoteError(Reason.WRONG_ROLE, "a record of a peer that trains nothing")
