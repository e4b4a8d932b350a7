"""Who has a place here: a trainer of our region as a neighbour, one of another as a bridge to it, others as listeners.

A hello asks for a place, and says whether its sender has one for us. Mesh and Bridges hold who is there; here is which
of them a peer belongs to.
"""

from gossip.actions import ActionQueue, Disconnect
from gossip.core.ids import PeerId
from gossip.regions.bridges import Bridges
from gossip.regions.residency import Residency
from gossip.updates.mesh import Mesh
from gossip.updates.roles import Roles


class Places:
    """The places of one node. `silence_s`: seconds without a sign of life after which a listener's is free."""

    def __init__(
        self,
        *,
        mesh: Mesh,
        bridges: Bridges,
        roles: Roles,
        residency: Residency,
        actions: ActionQueue,
        silence_s: float,
    ) -> None:
        self._mesh = mesh
        self._bridges = bridges
        self._roles = roles
        self._residency = residency
        self._actions = actions
        self._silence_s = silence_s

    @property
    def partners(self) -> frozenset[PeerId]:
        """Neighbours, and members of other regions that are connected: with these we stay in touch."""
        return frozenset(self._mesh.table).union(self._bridges.table)

    def is_one_for(self, peer: PeerId, now: float) -> bool:
        """Return whether a peer has a place, or would be given one."""
        if self._roles.listens(peer):
            return self._residency.admits(peer) and self._roles.takes(peer, now, self._silence_s)
        if not self._bridges.is_ours(peer):
            return self._mesh.dialable(peer, now) and self._roles.trains(peer) and self._bridges.takes(peer)
        return self._mesh.has_room_for(peer, now)

    def is_nowhere(self, peer: PeerId) -> bool:
        """Return whether a peer has not said of which region it is, as ours with its policy wants."""
        return self._bridges.is_ours(peer) and not self._residency.admits(peer)

    def give(self, peer: PeerId, its_neighbours: int, now: float, *, answers: bool) -> None:
        """Give a peer that has room for us a place, if there is one. Its record has been read by now: who has not said
        of which region it is gets none in one with a policy. `answers`: its hello answers ours, which no listener's
        is."""
        if not answers and self._roles.listens(peer) and self.is_one_for(peer, now):
            self._roles.listeners[peer] = now
        elif self.is_nowhere(peer):
            self._mesh.lose(peer, "it does not say of which region it is")
        elif self._bridges.is_ours(peer):
            self._bridges.lose(peer)
            self._mesh.admit(peer, its_neighbours, now)
        elif self.is_one_for(peer, now):
            self._mesh.lose(peer, "it is of another region")
            displaced = self._bridges.admit(peer, now, answers=answers)
            if displaced is not None:
                self.let_go(displaced)

    def take_back(self, peer: PeerId, why: str) -> None:
        """Take a neighbour's or a bridge's place, since the peer has none for us."""
        self._mesh.lose(peer, why)
        self._bridges.lose(peer)

    def let_go(self, peer: PeerId) -> None:
        """End the connection to a bridge that neither side needs."""
        self._bridges.lose(peer)
        self._actions.add(Disconnect(peer=peer, hurried=False))
