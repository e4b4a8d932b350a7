"""Whose updates are fetched first, where a link cannot carry those of all neighbours: pure bookkeeping.

Every update of a neighbour has to be fetched in its turn, or replaced by its whole model: its estimate is the sum of
all that it has sent. So leaving one out saves nothing by itself. What a choice changes is the order: those that are
*first* are fetched at once and have the link; the others are *set aside*. They are fetched while nothing else is, and
only update by update; a whole model is fetched of those that are first, one at a time. Models of all neighbours at one
time come too slowly to come at all: each transfer is then given up as one that trickles, and is begun again.

A round waits for those of the first that are *awaited*, and for no other neighbour, as for none that has announced a
pause (announced_pauses.py). Every neighbour belongs to a round if its model is recent enough. Who is first is this
node's own choice (node/selection), and nobody is told. With fewer than `least` of the awaited here nobody is set aside:
the rule that averages needs as many.
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
        self._awaited: frozenset[PeerId] = frozenset()
        self._least = 0
        self._pulls: dict[PeerId, Work] = {}
        """Peers from which a blob is being pulled, and which."""
        self._held_back: set[PeerId] = set()

    def choose(self, first: Set[PeerId] | None, *, awaited: Set[PeerId] = frozenset(), least: int = 0) -> None:
        """Set who is first from now on; None: everybody. `awaited`: for whom of them rounds wait. `least`: with fewer
        of these here, everybody is first, and waited for."""
        self._first = None if first is None else frozenset(first)
        self._awaited = frozenset(awaited)
        self._least = least
        self._wake()

    def unawaited(self, paused: Set[PeerId] = frozenset()) -> frozenset[PeerId]:
        """Return the neighbours for whom no round waits. `paused`: those that have said that they are paused; they are
        not among the `least` that must be here."""
        return frozenset(self._here()) - self._awaited if self._is_chosen(paused) else frozenset()

    def _is_chosen(self, paused: Set[PeerId] = frozenset()) -> bool:
        return self._first is not None and len(self._awaited.intersection(self._here()) - paused) >= self._least

    def admits(self, peer: PeerId, work: Work) -> bool:
        """Return whether a neighbour's work may begin now; if not, it is woken when that may have changed. What pulls
        no blob always may."""
        if not _is_blob(work) or self._first is None or not self._is_chosen():
            return True
        under_way = self._holding_up(self._first)
        if peer not in self._first:
            may = not _is_model(work) and not under_way
        else:
            may = not (_is_model(work) and any(under_way.values()))
        if not may:
            self._held_back.add(peer)
        return may

    def _holding_up(self, first: frozenset[PeerId]) -> dict[PeerId, bool]:
        """The pulls for which others wait. The model of one that is not first any more goes on, and nobody waits for
        it: a peer that trickles its own could else keep all others' from coming, for hours."""
        pulls = {peer: _is_model(work) for peer, work in self._pulls.items()}
        return {peer: is_model for peer, is_model in pulls.items() if peer in first or not is_model}

    def begin(self, peer: PeerId, work: Work) -> None:
        """Note that a neighbour's work begins."""
        if _is_blob(work):
            self._pulls[peer] = work

    def end(self, peer: PeerId, work: Work) -> bool:
        """Note that a neighbour's work has ended. Return whether others are to be woken. Of a neighbour that left and
        came back the old work may end after the new one has begun, which goes on."""
        if self._pulls.get(peer) is work:
            del self._pulls[peer]
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
