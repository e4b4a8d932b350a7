"""The links of the in-memory network: loss, latency, bandwidth, cuts, partitions, stalls.

Draws only from the given `rng`.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import trio

from gossip.core.ids import PeerId


@dataclass(frozen=True, kw_only=True)
class LinkQuality:
    """What a link does to its traffic: share of broadcasts lost, seconds one way, and bytes a second that each stream
    gets, each way."""

    loss: float = 0.0
    latency_s: float = 0.0
    bytes_per_s: float = math.inf


class Links:
    """The state of every link between two peers."""

    def __init__(self, rng: random.Random, quality: LinkQuality) -> None:
        self._rng = rng
        self._default = quality
        self._qualities: dict[frozenset[PeerId], LinkQuality] = {}
        self._cut: set[frozenset[PeerId]] = set()
        self._groups: list[frozenset[PeerId]] = []
        self._stalled: set[PeerId] = set()
        self._hidden: set[PeerId] = set()
        self._changed = trio.Event()

    def set_link(self, one: PeerId, other: PeerId, quality: LinkQuality) -> None:
        """The quality of one link, both ways."""
        self._qualities[frozenset((one, other))] = quality

    def cut(self, one: PeerId, other: PeerId) -> None:
        """Break the link between two nodes until `heal`."""
        self._cut.add(frozenset((one, other)))
        self._beat()

    def cut_exactly(self, pairs: Iterable[frozenset[PeerId]]) -> None:
        """Break the links between these pairs, and mend all others that `cut` had broken."""
        self._cut = set(pairs)
        self._beat()

    def part(self, *groups: Sequence[PeerId]) -> None:
        """Break all links between nodes of different groups until `heal`."""
        self._groups = [frozenset(group) for group in groups]
        self._beat()

    def heal(self) -> None:
        """Undo `cut` and `part`; nodes dial again by themselves."""
        self._cut.clear()
        self._groups = []
        self._beat()

    def hide(self, peer: PeerId) -> None:
        """Let nobody dial `peer`, as behind a router; it dials others."""
        self._hidden.add(peer)

    def unhide(self, peer: PeerId) -> None:
        """Let everybody dial `peer` again, as when its router forwards a port."""
        self._hidden.discard(peer)

    def stall(self, peer: PeerId) -> None:
        """Let nothing pass to or from `peer`, while its connections stay: a stopped process."""
        self._stalled.add(peer)
        self._beat()

    def unstall(self, peer: PeerId) -> None:
        """Let a stalled node's traffic pass again."""
        self._stalled.discard(peer)
        self._beat()

    def reachable(self, one: PeerId, other: PeerId) -> bool:
        """Whether nothing is broken between two nodes."""
        grouped = all(any(peer in group for group in self._groups) for peer in (one, other))
        together = any(one in group and other in group for group in self._groups)
        return (together or not grouped) and frozenset((one, other)) not in self._cut

    def hidden(self, peer: PeerId) -> bool:
        """Whether nobody can dial this node."""
        return peer in self._hidden

    def delay(self, one: PeerId, other: PeerId, size: int = 0) -> float:
        """Seconds one way for `size` bytes; infinite while either end is stalled."""
        if self.stands_still(one, other):
            return math.inf
        quality = self._quality(one, other)
        return quality.latency_s + size / quality.bytes_per_s

    def stands_still(self, one: PeerId, other: PeerId) -> bool:
        """Whether either end is stalled."""
        return bool(self._stalled) and (one in self._stalled or other in self._stalled)

    async def until_it_flows(self, one: PeerId, other: PeerId) -> float:
        """Wait while the link is stalled; its delay then."""
        while math.isinf(delay := self.delay(one, other)):
            await self._changed.wait()
        return delay

    def loses(self, one: PeerId, other: PeerId) -> bool:
        """Draw whether a broadcast is lost on this link."""
        loss = self._quality(one, other).loss
        return math.isinf(self.delay(one, other)) or (loss > 0 and self._rng.random() < loss)

    def _quality(self, one: PeerId, other: PeerId) -> LinkQuality:
        return self._qualities.get(frozenset((one, other)), self._default)

    def _beat(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self._links_changed()

    def _links_changed(self) -> None:
        """What the network does about it."""
