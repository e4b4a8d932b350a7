"""Connections between regions: a member of another region is served a region's models, and nothing else.

Each member belongs beside the one member of every adjacent region that comes next on a ring of all members. So a region
of n members has about n connections to each region beside it, more than liars can cut, and all members of it hear of
the others' models even where only one of them is connected.

At the start a member knows few others, and connects to one after the other as it gets to know those that are nearer.
Connections of which neither side has a use end again, so that each has some eight to ten however large the swarm is.
Else they would fill all places, and those that belong beside a member would find none.
"""

from collections.abc import Callable, Iterable, Mapping
from statistics import median_low
from typing import Final, TypeAlias

from gossip.core.api import RegionLayout
from gossip.core.envelope import Scope
from gossip.core.ids import PeerId
from gossip.regions.region_draw import MAX_ADJACENT, adjacent, nearest_after
from gossip.regions.residency import closed_regions

MAX_BRIDGES: Final = 3 * MAX_ADJACENT
"""Members of other regions that are connected, at most: those beside us, and as many again, twice, that we are beside
or that have just come. Each costs a hello now and then."""


_Connected: TypeAlias = tuple[tuple[tuple[PeerId, str | None], ...], frozenset[PeerId]]
"""Connected members with their regions, in the order in which they came, and whom we belong beside."""


class Bridges:
    """The members of adjacent regions that are connected, and when each was last heard (seconds, monotonic)."""

    def __init__(
        self,
        me: PeerId,
        scope: Scope,
        layout: RegionLayout,
        region_of: Callable[[PeerId], str | None],
        is_met: Callable[[PeerId], bool],
        met_changes: Callable[[], int],
    ) -> None:
        """`region_of`: the label that another member's record has, None where none is known. `is_met`: whether a member
        is no made-up one: it has given its record itself, or neighbours enough tell of it. `met_changes`: a number that
        is another one when a record was given, or is gone; the other is looked at in each look round."""
        self.own = layout.own
        self.adjacent = adjacent(layout.own, layout.regions, scope)
        """The regions beside ours."""
        closed = closed_regions(layout)
        self.heard_regions = self.adjacent - closed
        """Those of them whose models come to us: nothing leaves a closed one."""
        self.publishes = bool(self.heard_regions) or (bool(self.adjacent) and layout.own not in closed)
        """Whether our region's model is of use: the others hear it, or we move by theirs."""
        self.table: dict[PeerId, float] = {}
        self.rounds: dict[PeerId, int] = {}
        """After which round each of them says that its newest update is."""
        self.greeted: dict[PeerId, float] = {}
        """When each of them and we last exchanged hellos, no matter which side began (seconds, monotonic)."""
        self.greeters: set[PeerId] = set()
        """Those of them that have said hello to us, and not only answered ours: they may need us."""
        self.wanted: frozenset[PeerId] = frozenset()
        """Members of adjacent regions that we belong beside."""
        self._me = me
        self._scope = scope
        self._region_of = region_of
        self._is_met = is_met
        self._met_changes = met_changes
        self._met_at: int | None = None
        self._met: frozenset[PeerId] = frozenset()
        self._kept: tuple[_Connected, frozenset[PeerId]] | None = None
        self._needed_by = {
            region: adjacent(region, layout.regions, scope) | {region} for region in layout.regions if layout.own
        }
        self._members: Mapping[str, frozenset[PeerId]] = {}

    def look_round(self, dialable: Iterable[PeerId], is_there: Callable[[PeerId], bool]) -> None:
        """Choose anew, from the members that we would dial; those that are there come first. Forget connected ones that
        are of no region beside ours any more."""
        by_region: dict[str, set[PeerId]] = {}
        for peer in dialable:
            region = self._region_of(peer)
            if region is not None:
                by_region.setdefault(region, set()).add(peer)
        self._members = {  # a whole region that does not answer is tried again
            region: frozenset(filter(is_there, found)) or frozenset(found) for region, found in by_region.items()
        }
        self._met_at = None
        near = (nearest_after(self._me, self._members.get(region, ()), self._scope) for region in sorted(self.adjacent))
        self.wanted = frozenset(peer for peer in near if peer is not None)
        for peer in [peer for peer in self.table if self._region_of(peer) not in self.adjacent]:
            self.lose(peer)

    def needed_by(self, peer: PeerId) -> frozenset[str] | None:
        """Return the regions whose members another member needs to know: its own and those beside it; None where its
        region is not known, or the run has none."""
        return self._needed_by.get(self._region_of(peer) or "")

    def next_to(self, peer: PeerId, members: Iterable[PeerId]) -> list[PeerId]:
        """Return those of these members beside which another member belongs: of each region beside its own the one that
        comes next after it."""
        by_region: dict[str | None, list[PeerId]] = {}
        for member in members:
            by_region.setdefault(self._region_of(member), []).append(member)
        beside = (self.needed_by(peer) or frozenset()) - {self._region_of(peer)}
        near = (nearest_after(peer, by_region.get(region, ()), self._scope) for region in sorted(beside))
        return [member for member in near if member is not None]

    def is_needed(self, region: str, peer: PeerId) -> bool:
        """Return whether a region's models are of use to another member, as far as its region is known."""
        needed = self.needed_by(peer)
        return needed is None or region in needed

    @property
    def regions(self) -> dict[str, int]:
        """How many members each known region has, our own included."""
        return {region: len(there) for region, there in self._members.items()}

    def members_of(self, region: str) -> frozenset[PeerId]:
        """Return the members of a region that may be there, ourselves among those of our own."""
        here = self._members.get(region, frozenset())
        return here | {self._me} if region == self.own else here

    def met(self) -> frozenset[PeerId]:
        """Return the members of our region that have given their records themselves or of whom neighbours enough tell,
        and us: others may be made up."""
        changes = self._met_changes()
        if self._met_at != changes:
            ours = self.members_of(self.own)
            met = frozenset(peer for peer in ours if peer == self._me or self._is_met(peer))
            self._met_at = changes
            self._met = self._met if met == self._met else met  # what was computed of it still holds
        return self._met

    def by_region(self) -> dict[str, set[PeerId]]:
        """Return the connected members of each region beside ours."""
        found: dict[str, set[PeerId]] = {}
        for peer in self.table:
            found.setdefault(self._region_of(peer) or "", set()).add(peer)
        return found

    def is_ours(self, peer: PeerId) -> bool:
        """Return whether a peer may be a neighbour: it is of our region, or has not said of which, or the run has no
        regions."""
        return not self.own or self._region_of(peer) in (None, self.own)

    def is_from_elsewhere(self, signer: PeerId, forwarder: PeerId, *, is_neighbour: bool) -> bool:
        """Return whether a link that `forwarder` passed on is of another region: its signer is, or nothing is known of
        it here and the forwarder is not known to be of ours. Members that have just connected, or only look somebody
        up, have not said of which region they are: one such link would go through all of ours, where nobody knows its
        signer. `is_neighbour`: whether we follow the signer, which may be of no region."""
        if not self.is_ours(signer):
            return True
        is_known = self._region_of(signer) is not None or is_neighbour
        return bool(self.own) and not is_known and self._region_of(forwarder) != self.own

    def takes(self, peer: PeerId) -> bool:
        """Return whether a member of another region is connected here, or may be: where all places are taken, in the
        place of one that neither side needs."""
        if self.is_ours(peer) or self._region_of(peer) not in self.adjacent:
            return False
        if peer in self.table or peer in self.wanted or len(self.table) < MAX_BRIDGES:
            return True
        return self._belongs(peer) and self._least_needed() is not None

    def keeps(self, peer: PeerId) -> bool:
        """Return whether we keep up a connection to a member of another region, or seek it: we belong beside it, or
        nobody of its region is connected beside whom we belong, and of those that are it is the next one. Of all others
        the one that came first stays as well: a crowd of newcomers chooses where its keys stand, and not when."""
        if peer in self.table:
            return peer in self.kept()
        region = self._region_of(peer)
        return peer in self.wanted or not any(self._region_of(each) == region for each in self.table)

    def kept(self) -> frozenset[PeerId]:
        """Return the connected members to which we keep up a connection; see `keeps`."""
        connected = tuple((peer, self._region_of(peer)) for peer in self.table), self.wanted
        if self._kept is None or self._kept[0] != connected:
            self._kept = connected, self._keepable(connected[0])
        return self._kept[1]

    def _keepable(self, connected: tuple[tuple[PeerId, str | None], ...]) -> frozenset[PeerId]:
        by_region: dict[str | None, list[PeerId]] = {}
        for peer, region in connected:
            by_region.setdefault(region, []).append(peer)
        lone = (there for there in by_region.values() if self.wanted.isdisjoint(there))
        nearest = {nearest_after(self._me, there, self._scope) for there in lone}
        first = next((peer for peer, _ in connected if peer not in self.wanted), None)
        return frozenset(peer for peer, _ in connected if peer in self.wanted or peer in nearest or peer == first)

    def seeks(self, peer: PeerId) -> bool:
        """Return whether a member of another region would be of use as a bridge."""
        return self.takes(peer) and self.keeps(peer)

    def admit(self, peer: PeerId, now: float, *, answers: bool = False) -> PeerId | None:
        """Note a hello of a member of another region, if there is room for it. Return whose place it takes, if it takes
        anybody's. `answers`: its hello answers ours."""
        if not self.takes(peer):
            return None
        full = len(self.table) >= MAX_BRIDGES and peer not in self.table and peer not in self.wanted
        displaced = self._least_needed() if full else None
        self.table[peer] = self.greeted[peer] = now
        if not answers:
            self.greeters.add(peer)
        return displaced

    def _belongs(self, peer: PeerId) -> bool:
        """Return whether a member of another region belongs beside us, among the members of ours that are `met`."""
        return nearest_after(peer, self.met(), self._scope) == self._me

    def _least_needed(self) -> PeerId | None:
        """Return the bridge that neither side needs with which we exchanged hellos longest ago; None where there is
        none."""
        kept = self.kept()
        unneeded = [peer for peer in self.table if peer not in kept and not self._belongs(peer)]
        return min(unneeded, key=self.greeted.__getitem__, default=None)

    def heard(self, peer: PeerId, now: float) -> None:
        """Note a sign of life."""
        if peer in self.table:
            self.table[peer] = now

    def says_round(self, peer: PeerId, round: int) -> None:
        """Note the round of a link of a peer; no-op where it is no bridge."""
        if peer in self.table:  # earlier links may come late
            self.rounds[peer] = max(round, self.rounds.get(peer, 0))

    @property
    def said_rounds(self) -> dict[str, int]:
        """The round of each region whose models come to us, as its connected members say: the (lower) median."""
        said: dict[str, list[int]] = {}
        for peer, round in self.rounds.items():
            said.setdefault(self._region_of(peer) or "", []).append(round)
        return {region: median_low(rounds) for region, rounds in said.items() if region in self.heard_regions}

    def lose(self, peer: PeerId) -> None:
        """Forget a connection; no-op for any other peer."""
        self.table.pop(peer, None)
        self.rounds.pop(peer, None)
        self.greeted.pop(peer, None)
        self.greeters.discard(peer)
