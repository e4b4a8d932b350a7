"""Neighbours that have said that they are paused: for some time nobody waits for them.

A pause is said together with its sender's newest link. It holds until a newer statement of the sender's chain is known,
or its time is over, or the sender is lost as a neighbour. It ends waiting, and nothing else: whether a neighbour is
live, belongs to a round, keeps its place or counts for the tolerated liars depends on what it has published, as before
(rounds.py). So who lies about it gains less than by publishing nothing of worth in time: a liar that is waited for no
more was a part of the quorum's denominator, one that publishes is a part of its numerator, and none is out of the one
and in the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isnan
from typing import Final

from gossip.core.ids import PeerId
from gossip.core.messages import PauseRequest
from gossip.updates.neighbour import Neighbour

WORD_S: Final = 600.0
"""Seconds that one word counts at most, whatever return it names, and where it names none. Who is paused for longer
repeats it. So one who is gone, and was not lost as a neighbour, is waited for again within ten minutes. Chosen."""

MAX_SAID_S: Final = 7 * 86_400
"""Seconds to the return that are said, and shown, at most: a week. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """What a neighbour has said. `place`: of its newest link then, (epoch, seq). `until`: when the word ends (seconds,
    monotonic). `returns_at`: when it says that it is back; None: unknown."""

    neighbour: Neighbour
    place: tuple[int, int]
    until: float
    returns_at: float | None


class AnnouncedPauses:
    """The newest word of each neighbour; that of a former one is forgotten."""

    def __init__(self, neighbours: Mapping[PeerId, Neighbour]) -> None:
        self._neighbours = neighbours
        self._said: dict[PeerId, Pause] = {}

    def say(self, peer: PeerId, place: tuple[int, int], seconds: int, now: float) -> None:
        """Note that a neighbour says that it is paused after its link at `place`, for so many seconds (0: unknown)."""
        self._said = {other: pause for other, pause in self._said.items() if self._holds(other, pause, now)}
        until = now + min(seconds or WORD_S, WORD_S)
        returns_at = now + min(seconds, MAX_SAID_S) if seconds else None
        self._said[peer] = Pause(neighbour=self._neighbours[peer], place=place, until=until, returns_at=returns_at)

    def returns(self, now: float) -> dict[PeerId, float | None]:
        """Return the neighbours that have said that they are paused, and in how many seconds each says that it is back
        (None: unknown). For people, and for who has done its last step: it is a claim, and no step and no round depends
        on it."""
        held = {peer: pause.returns_at for peer, pause in self._said.items() if self._holds(peer, pause, now)}
        return {peer: None if at is None else max(0.0, at - now) for peer, at in held.items()}

    def excused(self, round: int, now: float) -> frozenset[PeerId]:
        """Return the neighbours that are paused, and have not signed the work of `round`: nothing of it will come."""
        if not self._said:
            return frozenset()
        paused = [peer for peer, pause in self._said.items() if self._holds(peer, pause, now)]
        promised = {peer: self._neighbours[peer].promised_round for peer in paused}
        return frozenset(peer for peer, reached in promised.items() if reached is None or reached < round)

    def _holds(self, peer: PeerId, pause: Pause, now: float) -> bool:
        still = self._neighbours.get(peer) is pause.neighbour  # one that was lost and is back says it anew
        return still and now < pause.until and pause.neighbour.chain.newest == pause.place


def pause_request(link: bytes, seconds: float | None) -> PauseRequest:
    """Return the word of a pause after `link`, for so many seconds from now on; None, or no number: unknown."""
    if seconds is None or isnan(seconds):
        return PauseRequest(link=link, seconds=0)
    return PauseRequest(link=link, seconds=max(1, ceil(min(seconds, MAX_SAID_S))))
