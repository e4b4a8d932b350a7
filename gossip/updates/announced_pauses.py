"""Neighbours that have said that they are paused: for some time nobody waits for them.

A pause is said together with its sender's newest link. It holds until a newer link of the sender is known, or its time
is over. It ends waiting, and nothing else: whether a neighbour is live, belongs to a round, keeps its place or counts
for the tolerated liars depends on what it has published, as before (rounds.py). So who lies about it gains less than by
publishing nothing of worth in time: a liar that is waited for no more was a part of the quorum's denominator, one that
publishes is a part of its numerator.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from gossip.core.ids import PeerId
from gossip.core.messages import PauseRequest
from gossip.updates.neighbour import Neighbour

WORD_S: Final = 600.0
"""Seconds that one word counts at most, whatever return it names, and where it names none. Who is paused for longer
repeats it. So one who is gone, and was not lost as a neighbour, is waited for again within ten minutes. Chosen."""

MAX_SAID_S: Final = 7 * 86_400
"""Seconds to the return that are said at most: a week. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """What a neighbour has said. `place`: of its newest link then, (epoch, seq). `until`: when the word ends (seconds,
    monotonic)."""

    place: tuple[int, int]
    until: float


class AnnouncedPauses:
    """The newest word of each neighbour; that of a former one is forgotten."""

    def __init__(self, neighbours: Mapping[PeerId, Neighbour]) -> None:
        self._neighbours = neighbours
        self._said: dict[PeerId, Pause] = {}

    def say(self, peer: PeerId, place: tuple[int, int], seconds: int, now: float) -> None:
        """Note that a neighbour says that it is paused after its link at `place`, for so many seconds (0: unknown)."""
        self._said = {other: pause for other, pause in self._said.items() if self._holds(other, pause, now)}
        self._said[peer] = Pause(place=place, until=now + min(seconds or WORD_S, WORD_S))

    def excused(self, round: int, now: float) -> frozenset[PeerId]:
        """Return the neighbours that are paused, and have not signed the work of `round`: nothing of it will come."""
        if not self._said:
            return frozenset()
        paused = [peer for peer, pause in self._said.items() if self._holds(peer, pause, now)]
        promised = {peer: self._neighbours[peer].promised_round for peer in paused}
        return frozenset(peer for peer, reached in promised.items() if reached is None or reached < round)

    def _holds(self, peer: PeerId, pause: Pause, now: float) -> bool:
        neighbour = self._neighbours.get(peer)
        newest = None if neighbour is None else neighbour.chain.announced
        return now < pause.until and newest is not None and newest.place == pause.place


def pause_request(link: bytes, seconds: float | None) -> PauseRequest:
    """Return the word of a pause after `link`, for so many seconds from now on; None: unknown."""
    return PauseRequest(link=link, seconds=0 if seconds is None else max(1, min(ceil(seconds), MAX_SAID_S)))
