"""Series of any length in bounded memory, without losing how many there were."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """Keeps every 1st, 2nd, 4th ... of what is added, so that `most` at most are kept, evenly over all."""

    def __init__(self, most: int) -> None:
        self._most, self._stride = most, 1
        self._kept: list[T] = []
        self.added = 0

    def add(self, value: T) -> None:
        """Add one."""
        if self.added % self._stride == 0:
            self._kept.append(value)
        self.added += 1
        if len(self._kept) > self._most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def __iter__(self) -> Iterator[T]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


MAX_FRAMES: Final = 240
"""Most frames of the timeline: a minute at four a second. A slider of a phone has fewer pixels."""

MAX_ENTRIES: Final = 100_000
"""Most numbers of all frames together: 2 MB in the page."""

PICTURED: Final = 200
"""Most members in the picture: names and lines of more lie over each other."""

FIRST_WIDTH_S: Final = 1 / 16


@dataclass
class Frame:
    """What happened within one span of time."""

    exchanges: dict[tuple[str, int], int] = field(default_factory=dict)
    """By author's peer id and reader's number: how often the reader averaged an update of the author's."""
    rounds: dict[int, tuple[int, float | None]] = field(default_factory=dict)
    """By node: the last round that it closed, and its training loss."""

    def entries(self) -> int:
        """Return how many numbers it holds."""
        return len(self.exchanges) + len(self.rounds)


class Frames:
    """Exchanges and rounds over time. Frames grow twice as wide whenever there are too many, or they hold too much."""

    def __init__(self, most: int = MAX_FRAMES, entries: int = MAX_ENTRIES) -> None:
        self.width_s = FIRST_WIDTH_S
        self.left_out = 0
        """Exchanges that no frame had room for."""
        self._most, self._most_entries = most, entries
        self._entries = 0
        self._frames: dict[int, Frame] = {}

    def exchange(self, ts: float, author: str, reader: int) -> None:
        """Count an update of `author` that `reader` averaged."""
        frame = self._at(ts)
        key = (author, reader)
        if key not in frame.exchanges:
            if not self._has_room():
                self.left_out += 1
                return
            frame = self._at(ts)
            self._entries += key not in frame.exchanges
        frame.exchanges[key] = frame.exchanges.get(key, 0) + 1

    def round(self, ts: float, node: int, round: int, loss: float | None) -> None:
        """Note a round that a node closed."""
        if node not in self._at(ts).rounds and not self._has_room():
            return
        frame = self._at(ts)
        self._entries += node not in frame.rounds
        frame.rounds[node] = (round, loss)

    def ordered(self) -> list[tuple[float, Frame]]:
        """Return every frame with the time at which it ends, in order."""
        return [((key + 1) * self.width_s, self._frames[key]) for key in sorted(self._frames)]

    def _at(self, ts: float) -> Frame:
        key = int(ts // self.width_s)
        if key not in self._frames:
            self._frames[key] = Frame()
            while max(self._frames) - min(self._frames) >= self._most:
                self._widen()
            key = int(ts // self.width_s)
        return self._frames[key]

    def _has_room(self) -> bool:
        while self._entries >= self._most_entries and len(self._frames) > 1:
            self._widen()
        return self._entries < self._most_entries

    def _widen(self) -> None:
        before, self._frames = self._frames, {}
        self.width_s *= 2
        for key in sorted(before):
            frame = self._frames.setdefault(key // 2, Frame())
            for edge, count in before[key].exchanges.items():
                frame.exchanges[edge] = frame.exchanges.get(edge, 0) + count
            frame.rounds |= before[key].rounds
        self._entries = sum(frame.entries() for frame in self._frames.values())
