"""Counts of updates, own and neighbours', since this process began."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gossip.core.api import MAX_COUNTED_PEERS
from gossip.core.ids import PeerId


@dataclass(kw_only=True)
class UpdateCounts:
    """Counts of updates by peer. `here` returns the current neighbours; peers that left long ago are forgotten."""

    here: Callable[[], Collection[PeerId]]
    accepted: Counter[str] = field(default_factory=Counter)
    """Accepted updates of each peer."""
    refused: Counter[str] = field(default_factory=Counter)
    """Updates of each peer that arrived whole and could not be used."""
    deltas: int = 0
    """Accepted updates of all peers, without whole models."""
    newest_bytes: int = 0
    """Bytes of the newest message that was published."""
    published_bytes: int = 0
    """Bytes of all published messages, one copy of each."""
    steps: int = 0
    """Inner steps of the closed rounds: what those messages are about."""
    _published: int = 0

    @property
    def mean_bytes(self) -> float:
        """Mean size of the payloads published so far, in bytes; 0 before the first."""
        return self.published_bytes / max(self._published, 1)

    def note_published(self, size: int) -> None:
        """Count a published payload of `size` bytes."""
        self.newest_bytes = size
        self._published += 1
        self.published_bytes += size

    def note_accepted(self, peer: str, *, delta: bool) -> None:
        """Count an accepted update. `delta`: it is not a whole model."""
        self.accepted = self._counted(self.accepted, peer)
        self.deltas += delta

    def note_refused(self, peer: str) -> None:
        """Count an update that could not be used."""
        self.refused = self._counted(self.refused, peer)

    def _counted(self, counts: Counter[str], peer: str) -> Counter[str]:
        if peer not in counts and len(counts) >= MAX_COUNTED_PEERS:
            here = set(map(str, self.here()))
            counts = Counter({name: count for name, count in counts.items() if name in here})
        counts[peer] += 1
        return counts
