"""With whom a round counts: what each neighbour is for the round that is open. Pure functions of rounds.

`standing` says of every neighbour one `Progress`, by the newest of its updates that is here: a member (*fresh* or
*stale*), too far behind, too far ahead, or not here yet. Whatever else is asked of a round is read off that: over whom
it averages, whether a quorum is here, whether it is held, who is overdue, who may give its model.

The base of a chain has the work of the round before it: of none, at the start of a run. A neighbour that has paused
(announced_pauses.py) is not waited for: it belongs to the round as before, and does not count in the quorum's
denominator, unless it is fresh. So a neighbour that died costs a few deadlines, and then nothing, because it is too
far behind to be a member. With neighbours but no member we wait for the deadline: a node that ran ahead of all others
must not run further. Nor must one that has too few left beside it to withstand the liars, where rounds did before, and
more than may lie deliver behind it: liars that keep up with fast nodes would take them out of the swarm for good.

A neighbour that is too far behind here, but has announced our round and delivers, is *due*: it keeps up, and the
exchange does not. It counts in the quorum's denominator. Otherwise every neighbour whose updates pile up would make the
quorum smaller, the rounds shorter and the pile larger, until each node closed its rounds alone.

A pause takes nothing from the denominator that publishing in time would not have added to the fresh. So liars close no
round by pauses that they could not close by updates. Where all neighbours are paused, there is nobody to wait for.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from gossip.core.ids import PeerId

LEAD_ROUNDS: Final = 64
"""A neighbour that claims to be this far ahead of the swarm's round and of ours is not believed: it would count as
fresh for ever. No honest node is so far ahead; its own deadlines slow the fastest down long before."""

ARRIVAL_S: Final = 30.0
"""For so many seconds after our chain began, neighbours that are not tracked yet count as arriving: nodes that begin
together do so within seconds of each other. Until then a round waits for them, and none is averaged over fewer members
than tolerate the liars: the first neighbour to be heard may be one. As long as the deadline before any is learned.
Chosen."""


class Progress(Enum):
    """How far a neighbour is, seen from the round that is open."""

    FRESH = auto()
    """A member that has reached the round, or is ahead of it and counts."""
    STALE = auto()
    """A member that is behind, by `max_staleness` rounds at most."""
    BEHIND = auto()
    """Too far behind to be a member."""
    ARRIVING = auto()
    """Nothing of it is here, and our chain has only just begun: it is waited for."""
    UNTRACKED = auto()
    """Nothing of it is here, and it is not waited for."""
    UNBELIEVED = auto()
    """It says a round that no honest node has reached. It is no member, but one of the neighbours."""
    AHEAD = auto()
    """Too far ahead of all others to count: for this round it is no neighbour."""


COUNTED: Final = tuple(it for it in Progress if it is not Progress.AHEAD)
"""These are neighbours for this round."""
MEMBERS: Final = (Progress.FRESH, Progress.STALE)
"""It averages over these."""
TOO_FAR_AHEAD: Final = (Progress.UNBELIEVED, Progress.AHEAD)
"""Their models are here, and newer than any member's may be."""
EXPECTED: Final = (Progress.FRESH, Progress.STALE, Progress.ARRIVING)
"""A quorum is one of these."""
LATE: Final = (Progress.BEHIND, Progress.ARRIVING, Progress.UNTRACKED)
"""Nothing that makes it a member is here yet."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What each neighbour is for one round; all else follows. `staleness`: of each member, in rounds. `paused`: those
    for whom the round does not wait. They are what they would be without: pauses end waiting alone."""

    progress: dict[PeerId, Progress]
    staleness: dict[PeerId, int]
    paused: frozenset[PeerId] = frozenset()

    @property
    def fresh(self) -> int:
        """How many have reached the round."""
        return self._count(Progress.FRESH)

    @property
    def arriving(self) -> int:
        """How many have yet to announce anything, while our chain has only just begun."""
        return self._count(Progress.ARRIVING)

    @property
    def neighbours(self) -> int:
        """How many neighbours there are for this round: without those that are too far ahead to count."""
        return len(self.progress) - self._count(Progress.AHEAD)

    @property
    def beyond(self) -> frozenset[PeerId]:
        """Those that are too far ahead to be members."""
        return frozenset(peer for peer, it in self.progress.items() if it in TOO_FAR_AHEAD)

    @property
    def behind(self) -> frozenset[PeerId]:
        """Those that are too far behind to be members, and not paused."""
        return frozenset(self._not_paused(Progress.BEHIND))

    @property
    def overdue(self) -> list[PeerId]:
        """Those that are not paused, and of whom nothing that makes them members is here yet: some may be due."""
        return self._not_paused(*LATE)

    @property
    def candidates(self) -> list[PeerId]:
        """Those that are neither paused nor too far ahead: an update of this round may be expected of them."""
        return [peer for peer, it in self.progress.items() if it not in TOO_FAR_AHEAD and peer not in self.paused]

    @property
    def donors(self) -> dict[PeerId, int]:
        """By how many rounds each neighbour is behind whose model is here and recent enough. Unlike a member, a donor
        may be ahead, however far."""
        return {
            peer: self.staleness.get(peer, 0)
            for peer, it in self.progress.items()
            if peer in self.staleness or it in TOO_FAR_AHEAD
        }

    @property
    def awaits_nobody(self) -> bool:
        """Whether there is no neighbour that has not paused."""
        return not self._not_paused(*COUNTED)

    def quorum_reached(self, quorum: float, *, due: int = 0) -> bool:
        """Return whether enough are fresh: of the members and the arriving neighbours that are not paused, and of those
        that are `due`, whose updates are still on the way."""
        expected = len(self._not_paused(*EXPECTED))
        return expected > 0 and self.fresh >= math.ceil(quorum * (expected + due) - 1e-9)

    def leaves_others(self, least_members: int, liars: int, delivers: Callable[[PeerId], bool]) -> bool:
        """Return whether there are fewer members than a round has to have, we ourselves included, while more than may
        lie deliver behind us. Such a round averages nothing, and with each we are further ahead."""
        return len(self.staleness) + 1 < least_members and sum(map(delivers, self.behind)) > liars

    def _count(self, of: Progress) -> int:
        return sum(it is of for it in self.progress.values())

    def _not_paused(self, *of: Progress) -> list[PeerId]:
        """Those of such progress that are not paused. Who is fresh is here: it does not count as paused."""
        return [
            peer for peer, it in self.progress.items() if it in of and (it is Progress.FRESH or peer not in self.paused)
        ]


def standing(
    round: int,
    applied: Mapping[PeerId, int | None],
    max_staleness: int,
    *,
    liars: int = 0,
    trusted: Collection[PeerId] = (),
    swarm: int | None = None,
    beginning: bool = False,
    paused: Collection[PeerId] = (),
) -> Standing:
    """Return what each neighbour is for `round`, given its newest applied round (None: not tracked yet; -1: base of
    a run). `liars`: how many may lie; of neighbours far ahead of all others so many of the `trusted` count, and no
    others; all where nobody lies. `swarm`: the swarm's round (rounds.py), if enough have announced. `beginning`: our
    chain began less than ARRIVAL_S ago. `paused`: neighbours that have said so, and have not announced this round, and
    those that are not waited for by choice (pull_priority.py)."""
    front = max(round, swarm or 0)
    oldest, newest = round - max_staleness, front + LEAD_ROUNDS
    # A liar and a node that it ruined, when there were the two of them, are two wrong models.
    far = {peer for peer, at in applied.items() if at is not None and at > front + max_staleness} if liars else set()
    uncounted = far.difference(sorted(far.intersection(trusted))[:liars])

    def progress_of(peer: PeerId, at: int | None) -> Progress:
        if at is None:
            return Progress.ARRIVING if beginning else Progress.UNTRACKED
        if peer in uncounted:
            return Progress.AHEAD
        if at > newest:
            return Progress.UNBELIEVED
        if at < oldest:
            return Progress.BEHIND
        return Progress.FRESH if at >= round else Progress.STALE

    progress = {peer: progress_of(peer, at) for peer, at in applied.items()}
    here = {peer: at for peer, at in applied.items() if at is not None}
    return Standing(
        progress=progress,
        staleness={peer: max(0, round - at) for peer, at in here.items() if progress[peer] in MEMBERS},
        paused=frozenset(paused).intersection(applied),
    )


def trusted_far_ahead(
    neighbours: Collection[PeerId],
    stood_with: Collection[PeerId],
    *,
    outvoted_liars: bool,
    liars: int,
    withstands: bool,
) -> Collection[PeerId]:
    """Return those that may count though they are far ahead of all others: with whom rounds withstood the liars. Any
    other one may have been alone with a liar, and have its model. Where rounds withstand nobody, or could not with
    these few, they are as good as those that are near."""
    few = not outvoted_liars and len(neighbours) <= liars
    return neighbours if few or not withstands else stood_with
