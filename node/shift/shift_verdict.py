"""Tells a shift here from one everywhere, by this node's own detector and what its neighbours say of theirs.

A neighbour's word is a claim. `everywhere` wants more than half of all that are here, this node included. So liars that
are fewer than half cannot make it where honest members see no shift, and cannot prevent it, by silence, where all of
them do. A neighbour counts once, however often it says so, and only while its claim is as old as the window at most.
"""

from collections.abc import Mapping


class ShiftVerdict:
    """Which shifts were told already. Rounds only: no clock, no network."""

    def __init__(self, window: int) -> None:
        """`window`: rounds within which shifts of several members count as one."""
        self._window = window
        self.claim: int | None = None
        """The round of this node's newest own shift, while it counts; None: there is none."""
        self.everywhere_at: int | None = None
        """The round in which the newest shift everywhere was told."""

    def note_own(self, round: int) -> None:
        """Note that the own detector has alarmed in this round."""
        self.claim = round

    def supporters(self, round: int, claims: Mapping[str, int]) -> frozenset[str]:
        """Return the neighbours whose claims, by round, count in this round."""
        return frozenset(peer for peer, at in claims.items() if abs(round - at) <= self._window)

    def is_everywhere(self, round: int, claims: Mapping[str, int], members: int) -> bool:
        """Return whether it is to be told in this round that data shift everywhere: once for each shift. `members`:
        how many are here, this node included."""
        if self.claim is not None and round - self.claim > self._window:
            self.claim = None
        if self.everywhere_at is not None and round - self.everywhere_at <= self._window:
            return False
        said = len(self.supporters(round, claims))
        if not said or 2 * (said + (self.claim is not None)) <= members:
            return False
        self.everywhere_at = round
        return True
