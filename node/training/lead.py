"""Which neighbours have trained far behind a node for long."""

from collections.abc import Mapping
from typing import Final

from gossip.core.ids import PeerId

AHEAD_S: Final = 20.0
"""How long a lead over a neighbour must last: as long as those that come wait before they give up a claim of few
(joining.WAITED_OUT_S). Chosen."""


PACE: Final = 0.75
"""Rounds that a neighbour has trained meanwhile, of ours. With fewer it is slower, and would be behind again at once.
Chosen: one that waits for neighbours until its deadlines has fewer rounds than they have."""


class Lead:
    """A node's lead over its neighbours, as seen at each of its closings."""

    def __init__(self) -> None:
        self._first: dict[PeerId, tuple[float, int, int]] = {}
        """When each was first seen behind, in seconds, in which round it was, and in which we were: of those that still
        are."""

    def over(self, behind: Mapping[PeerId, int], *, mine: int, now: float) -> set[PeerId]:
        """Note the closing of round `mine`, at `now` in seconds. `behind`: the rounds of the neighbours that are too
        far behind. Return those that have been so for AHEAD_S, and keep up with us. Who stands still (paused, stopped,
        dead and not yet missed) is nobody to go back to, nor who is slower. Who has gone back itself, to where others
        are or to its checkpoint, is seen anew: what it lost is no sign of its pace."""
        first = {peer: self._first.get(peer, (now, at, mine)) for peer, at in behind.items()}
        self._first = {peer: it if behind[peer] >= it[1] else (now, behind[peer], mine) for peer, it in first.items()}
        return {
            peer
            for peer, (since, at, ours) in self._first.items()
            if now - since >= AHEAD_S and behind[peer] - at >= max(1.0, PACE * (mine - ours))
        }

    def begin(self) -> None:
        """Forget all closings."""
        self._first.clear()
