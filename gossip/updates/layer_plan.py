"""Which refinements of the neighbours' updates are fetched, and which neighbour has been sent how many of ours.

A link names the refinements of its update (core/statements.py, `Layer`). They are worth something until the round
closes. So the next one is fetched of a neighbour if it is expected to be here in the time that the runtime says is
hidden, and one that is under way when the round closes is given up. A newer update always comes first.

How long one takes is known from the last time, or else from the fastest transfer of this neighbour. What was given up
is not asked for again for some rounds of ours. Time is measured here, and nothing of it is a claim of the neighbour.

An edge is averaged by as many layers as both ends have. So what the neighbour has of ours is tried although a short
update shows too little of the link, and what it does not take of ours is not fetched for long: links that carry some of
the layers would otherwise carry one of each pair.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gossip.core.ids import PeerId
from gossip.core.statements import UpdateHeader
from gossip.updates.neighbour import Neighbour
from gossip.updates.throughput import LEAST_S, Throughput

RESTS_ROUNDS: Final = 8
"""Rounds of ours for which a neighbour's layer is not fetched that did not come in time: at most an eighth of them have
a transfer of it that is given up. Links are not counted: a liar makes as many as it likes."""

ONE_SIDED: Final = 3
"""Updates in a row of which a layer is fetched although the neighbour has none of ours, before it rests as well. Our
layer can come to the neighbour a round after its own to us; one more, for a round that closes late."""


@dataclass(frozen=True, kw_only=True)
class FetchLayer:
    """Pull layer `layer`, from 1, of the update of this link, which is applied."""

    link: UpdateHeader
    layer: int


@dataclass(kw_only=True)
class _Refined:
    link: UpdateHeader
    taken: int = 0
    over: bool = False
    """Whether nothing more of this link is fetched."""
    shared: int = 0
    """The most layers that both ends had of each other as a round of ours closed while this link was the newest."""


class LayerPlan:
    """Decides for the peers in `neighbours`; those that have left are forgotten."""

    def __init__(self, neighbours: Mapping[PeerId, Neighbour], speeds: Throughput) -> None:
        self._neighbours = neighbours
        self._speeds = speeds
        self._hidden_s = 0.0
        self.closes_at: float | None = None
        """When the time of the round that is being closed is over; None: none is."""
        self._refined: dict[PeerId, _Refined] = {}
        self._took: dict[tuple[PeerId, int], tuple[int, float]] = {}
        """By neighbour and layer: bytes and seconds of the last transfer."""
        self._closings = 0
        self._rests: dict[tuple[PeerId, int], int] = {}
        """By neighbour and layer: before which closing of ours it is not fetched again."""
        self._one_sided: dict[tuple[PeerId, int], int] = {}
        """By neighbour and layer: updates in a row that were refined by it at our end alone."""
        self._sent: dict[PeerId, int] = {}
        self._sent_before: dict[PeerId, int] = {}

    # -- theirs

    def begin_closing(self, hidden_s: float, now: float) -> None:
        """Note that a round closes now, and that this and later ones have so many seconds for refinements."""
        self._closings += 1
        self._hidden_s = hidden_s
        self.closes_at = now + hidden_s

    def end_closing(self) -> None:
        """Note that the round has closed."""
        self.closes_at = None
        sent = self.sent_to()
        for peer, refined in self._refined.items():
            refined.shared = max(refined.shared, min(refined.taken, sent.get(peer, 0)))

    def applied(self, link: UpdateHeader) -> None:
        """Note that the runtime has applied the update of a link."""
        self._forget_departed()
        if (replaced := self._refined.pop(link.peer, None)) is not None:
            self._judge(replaced)
        if link.body.layers:
            self._refined[link.peer] = _Refined(link=link)

    def _judge(self, refined: _Refined) -> None:
        """Let the layers rest that were fetched of some updates in a row, and of which the neighbour had none of
        ours: neither as a round of ours closed, nor now, as of a faster neighbour few updates see one close."""
        peer = refined.link.peer
        shared = max(refined.shared, self.sent_to().get(peer, 0))
        for layer in range(1, refined.taken + 1):
            count = 0 if layer <= shared else self._one_sided.get((peer, layer), 0) + 1
            if count == ONE_SIDED:
                self._rests[peer, layer] = self._closings + RESTS_ROUNDS
            self._one_sided[peer, layer] = count % ONE_SIDED

    def void(self, peer: PeerId) -> None:
        """Note that the runtime's estimate of a neighbour is another one than after its newest link."""
        self._refined.pop(peer, None)

    def next_layer(self, peer: PeerId, now: float) -> FetchLayer | None:
        """Return the refinement to fetch from a neighbour now; None where there is none, or no time for it."""
        refined = self._refined.get(peer)
        if refined is None or refined.over or refined.taken == len(refined.link.body.layers):
            return None
        work = FetchLayer(link=refined.link, layer=refined.taken + 1)
        if not self.is_newest(work) or self._rests.get((peer, work.layer), 0) > self._closings:
            return None
        left = self._hidden_s if self.closes_at is None else self.closes_at - now
        return work if self.expected_s(work, now) <= left and left > 0 else None

    def is_newest(self, work: FetchLayer) -> bool:
        """Return whether a layer is of the neighbour's newest link, and the runtime's estimate that of this link: of a
        neighbour that has left and come back it may have none."""
        neighbour = self._neighbours.get(work.link.peer)
        announced = neighbour.chain.announced if neighbour else None
        applied = neighbour.chain.applied if neighbour else None
        newest = announced is not None and announced.place <= work.link.place
        return newest and applied is not None and applied.digest == work.link.digest

    def expected_s(self, work: FetchLayer, now: float) -> float:
        """Return how long a layer is expected to take; 0 where nothing was measured yet, and half of what is hidden at
        most where the neighbour has this layer of ours and it was not tried lately."""
        peer, size = work.link.peer, work.link.body.layers[work.layer - 1].size
        measured = [size_ / seconds for (who, _), (size_, seconds) in self._took.items() if who == peer]
        received = self._speeds.of(peer, now).received
        speeds = measured if received is None else [*measured, received]
        by_speed = size / max(speeds) if speeds else 0.0
        known = self._took.get((peer, work.layer))
        if known is not None:
            return min(by_speed, known[1] * size / known[0])
        return min(by_speed, self._hidden_s / 2) if self.sent_to().get(peer, 0) >= work.layer else by_speed

    def took(self, work: FetchLayer, seconds: float) -> None:
        """Note that a layer is here, so many seconds after it was asked for."""
        self._took[work.link.peer, work.layer] = work.link.body.layers[work.layer - 1].size, max(LEAST_S, seconds)

    def accepted(self, work: FetchLayer) -> None:
        """Note that the runtime has taken a layer."""
        refined = self._refined.get(work.link.peer)
        if refined is not None and refined.link.digest == work.link.digest:
            refined.taken = work.layer

    def given_up(self, work: FetchLayer, *, late: bool) -> None:
        """Note that a layer did not come, and nothing more of its link is fetched. `late`: its time was over."""
        peer = work.link.peer
        refined = self._refined.get(peer)
        if refined is not None and refined.link.digest == work.link.digest:
            refined.over = True
        if late:
            self._took.pop((peer, work.layer), None)
            self._rests[peer, work.layer] = self._closings + RESTS_ROUNDS

    def depths(self) -> dict[PeerId, int]:
        """Return how many layers of its newest update are held of each neighbour that has sent any."""
        return {peer: it.taken for peer, it in self._refined.items() if it.taken}

    # -- ours

    def published(self) -> None:
        """Note that our next update is out: nobody has any of its layers."""
        self._sent_before, self._sent = self._sent, {}

    def sent(self, peer: PeerId, layer: int) -> None:
        """Note that a neighbour has been sent all of a layer of our newest update."""
        self._sent[peer] = max(layer, self._sent.get(peer, 0))

    def sent_to(self) -> dict[PeerId, int]:
        """Return how many of our layers each neighbour has: of the newest update, or of the one before: a peer
        that had them then has them before its own round closes, which may be after ours."""
        peers = self._neighbours.keys() & (self._sent.keys() | self._sent_before.keys())
        return {peer: max(self._sent.get(peer, 0), self._sent_before.get(peer, 0)) for peer in peers}

    def _forget_departed(self) -> None:
        here = self._neighbours
        self._refined = {peer: it for peer, it in self._refined.items() if peer in here}
        self._took = {key: it for key, it in self._took.items() if key[0] in here}
        self._rests = {key: it for key, it in self._rests.items() if key[0] in here}
        self._one_sided = {key: it for key, it in self._one_sided.items() if key[0] in here}
