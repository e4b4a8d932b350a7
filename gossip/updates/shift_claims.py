"""Neighbours that have said that their data have shifted: one claim each, as of a link that they have signed.

It is a claim about data that nobody else sees, and nothing of the protocol follows from it: no quorum, no weight, no
place. Who reads it counts neighbours (node/shift). A neighbour has one claim however often it says so, the newest; it
is forgotten with the neighbour.
"""

from collections.abc import Mapping

from gossip.core.ids import PeerId
from gossip.updates.neighbour import Neighbour


class ShiftClaims:
    """The newest claim of each neighbour: the round of the link that it was said with."""

    def __init__(self, neighbours: Mapping[PeerId, Neighbour]) -> None:
        self._neighbours = neighbours
        self._said: dict[PeerId, tuple[Neighbour, int]] = {}

    def say(self, peer: PeerId, round: int) -> None:
        """Note that a neighbour says that its data have shifted by this round."""
        self._said = {other: said for other, said in self._said.items() if self._neighbours.get(other) is said[0]}
        self._said[peer] = (self._neighbours[peer], round)

    def rounds(self) -> dict[PeerId, int]:
        """Return the neighbours that have said so, and by which round. One that was lost and is back says it anew."""
        return {peer: round for peer, (it, round) in self._said.items() if self._neighbours.get(peer) is it}
