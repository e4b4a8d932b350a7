"""Whose updates are fetched first, where a link cannot carry those of all neighbours: pure bookkeeping.

Every update of a neighbour has to be fetched in its turn, or replaced by its whole model: its estimate is the sum of
all that it has sent. So leaving one out saves nothing by itself. What a choice changes is the order: those that are
*first* are fetched at once and have the link; the others are *set aside*. They are fetched while nothing else is, and
only update by update; a whole model is fetched of those that are first, one at a time. Models of all neighbours at one
time come too slowly to come at all: each transfer is then given up as one that trickles, and is begun again.

A neighbour that is set aside is not waited for, as one that has announced a pause (announced_pauses.py). It belongs to
a round if its model is recent enough, like every other. Who is first is this node's own choice (node/selection), and
nobody is told. With fewer than `least` of the chosen here nobody is set aside: the rule that averages needs as many.
"""

from collections.abc import Callable, Collection, Set

from gossip.actions import ActionQueue, WakeSync
from gossip.core.ids import PeerId
from gossip.updates.neighbour import FetchPayload, FetchSnapshot, Work


class PullPriority:
    """Who is first. `here` returns the present neighbours. Until `choose` is called, everybody is."""

    def __init__(self, here: Callable[[], Collection[PeerId]], actions: ActionQueue) -> None:
        self._here = here
        self._actions = actions
        self._first: frozenset[PeerId] | None = None
        self._least = 0
        self._pulls: dict[PeerId, bool] = {}
        """Peers from which a blob is being pulled; whether it is a whole model."""
        self._held_back: set[PeerId] = set()

    def choose(self, first: Set[PeerId] | None, *, least: int = 0) -> None:
        """Set who is first from now on; None: everybody. `least`: with fewer of them here, everybody is."""
        self._first = None if first is None else frozenset(first)
        self._least = least
        self._wake()

    def aside(self, paused: Set[PeerId] = frozenset()) -> frozenset[PeerId]:
        """Return the neighbours that are set aside. `paused`: those that have said that they are; they are not among
        the `least` that must be here."""
        if self._first is None:
            return frozenset()
        here = frozenset(self._here())
        return here - self._first if len((here & self._first) - paused) >= self._least else frozenset()

    def admits(self, peer: PeerId, work: Work) -> bool:
        """Return whether a neighbour's work may begin now; if not, it is woken when that may have changed. What pulls
        no blob always may."""
        if self._first is None or not _is_blob(work):
            return True
        if peer in self.aside():
            may = not _is_model(work) and not self._pulls
        else:
            may = not (_is_model(work) and any(self._pulls.values()))
        if not may:
            self._held_back.add(peer)
        return may

    def begin(self, peer: PeerId, work: Work) -> None:
        """Note that a neighbour's work begins."""
        if _is_blob(work):
            self._pulls[peer] = _is_model(work)

    def end(self, peer: PeerId) -> bool:
        """Note that a neighbour's work has ended. Return whether others are to be woken."""
        self._pulls.pop(peer, None)
        return self._wake()

    def _wake(self) -> bool:
        held_back = bool(self._held_back)
        for peer in sorted(self._held_back):
            self._actions.add(WakeSync(peer=peer))
        self._held_back.clear()
        return held_back


def _is_model(work: Work) -> bool:
    return isinstance(work, FetchSnapshot) or (isinstance(work, FetchPayload) and work.link.body.kind == "snapshot")


def _is_blob(work: Work) -> bool:
    return _is_model(work) or (isinstance(work, FetchPayload) and work.link.body.kind == "delta")
