"""Which refinements of the neighbours' updates are fetched, and which neighbour has been sent how many of ours.

A link names the refinements of its update (core/statements.py, `Layer`). They are worth something until the round
closes. So the next one is fetched of a neighbour if its edge has a place for it (layer_places.py) and it is expected to
be here in the time that the runtime says is hidden; one that is under way when the round closes is given up. A newer
update always comes first.

How long one takes is known from the last time, or else from the fastest transfer of this neighbour. Time is measured
here, and nothing of it is a claim of the neighbour. What the neighbour asks of ours is tried although a short update
shows too little of the link, and what it does not take of ours is not fetched for long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gossip.core.ids import PeerId
from gossip.core.statements import UpdateHeader
from gossip.updates.layer_places import RESTS_ROUNDS, Direction, LayerPlaces
from gossip.updates.neighbour import Neighbour
from gossip.updates.throughput import LEAST_S, Throughput

ONE_SIDED: Final = 3
"""Updates in a row of which a layer is fetched although the neighbour has none of ours, before it rests as well. Our
layer can come to the neighbour a round after its own to us; one more, for a round that closes late."""

GivenUp = Literal["failed", "late", "refused"]
"""Why a layer did not come. `late`: its time was over. `refused`: the neighbour has no place, or a newer update."""


@dataclass(frozen=True, kw_only=True)
class FetchLayer:
    """Pull layer `layer`, from 1, of the update of this link, which is applied."""

    link: UpdateHeader
    layer: int


@dataclass(kw_only=True)
class _Refined:
    link: UpdateHeader
    applied_at: float
    taken: int = 0
    over: bool = False
    """Whether nothing more of this link is fetched."""
    shared: int = 0
    """The most layers that both ends had of each other as a round of ours closed while this link was the newest."""


class LayerPlan:
    """Decides for the peers in `neighbours`, of which `liars` may lie; those that have left are forgotten."""

    def __init__(self, neighbours: Mapping[PeerId, Neighbour], speeds: Throughput, liars: int = 0) -> None:
        self._neighbours = neighbours
        self._speeds = speeds
        self._hidden_s = 0.0
        self.closes_at: float | None = None
        """When the time of the round that is being closed is over; None: none is."""
        self._refined: dict[PeerId, _Refined] = {}
        self._took: dict[tuple[PeerId, int], tuple[int, float]] = {}
        """By neighbour and layer: bytes and seconds of the last transfer."""
        self._closings = 0
        self._places = LayerPlaces(liars)
        self._one_sided: dict[tuple[PeerId, int], int] = {}
        """By neighbour and layer: updates in a row that were refined by it at our end alone."""
        self._sent: dict[PeerId, int] = {}
        self._sent_before: dict[PeerId, int] = {}
        self._has_update_since: dict[PeerId, float] = {}
        """When each neighbour had been sent our newest update."""

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

    def applied(self, link: UpdateHeader, now: float) -> None:
        """Note that the runtime has applied the update of a link."""
        self._forget_departed()
        if (replaced := self._refined.pop(link.peer, None)) is not None:
            self._judge(replaced)
        if link.body.layers:
            self._refined[link.peer] = _Refined(link=link, applied_at=now)

    def _judge(self, refined: _Refined) -> None:
        """Let the layers rest that were fetched of some updates in a row, and of which the neighbour had none of
        ours: neither as a round of ours closed, nor now, as of a faster neighbour few updates see one close."""
        peer = refined.link.peer
        shared = max(refined.shared, self.sent_to().get(peer, 0))
        for layer in range(1, refined.taken + 1):
            count = 0 if layer <= shared else self._one_sided.get((peer, layer), 0) + 1
            if count == ONE_SIDED:
                self._places.rest(peer, layer, self._closings + RESTS_ROUNDS)
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
        if not self.is_newest(work) or not self._places.admits(peer, work.layer, self._closings):
            return None
        left = self._hidden_s if self.closes_at is None else self.closes_at - now
        return work if self.expected_s(work, now) <= left and left > 0 else None

    def begin(self, work: FetchLayer) -> None:
        """Note that a layer is fetched from now on: its edge has a place."""
        self._places.give(work.link.peer, work.layer, self._closings)

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
        most where its edge has a place: what it last took, it may have taken beside more of them."""
        peer, size = work.link.peer, work.link.body.layers[work.layer - 1].size
        measured = [size_ / seconds for (who, _), (size_, seconds) in self._took.items() if who == peer]
        received = self._speeds.of(peer, now).received
        speeds = measured if received is None else [*measured, received]
        seconds = size / max(speeds) if speeds else 0.0
        if (known := self._took.get((peer, work.layer))) is not None:
            seconds = min(seconds, known[1] * size / known[0])
        return min(seconds, self._hidden_s / 2) if self._places.has(peer, work.layer) else seconds

    def took(self, work: FetchLayer, seconds: float, now: float) -> None:
        """Note that a layer is here, so many seconds after it was asked for."""
        size = work.link.body.layers[work.layer - 1].size
        self._took[work.link.peer, work.layer] = size, max(LEAST_S, seconds)
        refined = self._refined.get(work.link.peer)
        if refined is not None and refined.link.digest == work.link.digest:
            self._moved(work.link.peer, work.layer, size, "received", now - refined.applied_at, seconds)

    def accepted(self, work: FetchLayer) -> None:
        """Note that the runtime has taken a layer."""
        refined = self._refined.get(work.link.peer)
        if refined is not None and refined.link.digest == work.link.digest:
            refined.taken = work.layer

    def given_up(self, work: FetchLayer, why: GivenUp) -> None:
        """Note that a layer did not come, and nothing more of its link is fetched."""
        peer = work.link.peer
        refined = self._refined.get(peer)
        if refined is not None and refined.link.digest == work.link.digest:
            refined.over = True
        if why == "late":
            self._took.pop((peer, work.layer), None)
            self._places.late(peer, work.layer, self._closings)
        elif why == "refused":
            self._places.take_back(peer, work.layer)

    def depths(self) -> dict[PeerId, int]:
        """Return how many layers of its newest update are held of each neighbour that has sent any."""
        return {peer: it.taken for peer, it in self._refined.items() if it.taken}

    # -- ours

    def published(self) -> None:
        """Note that our next update is out: nobody has any of its layers."""
        self._places.grow(self._hidden_s, self._closings)
        self._sent_before, self._sent = self._sent, {}
        self._has_update_since.clear()

    def updated(self, peer: PeerId, now: float) -> None:
        """Note that a neighbour has been sent our newest update, which its layers follow."""
        self._has_update_since[peer] = now

    def asked(self, peer: PeerId, layer: int) -> bool:
        """Return whether a neighbour that asks for a layer of ours gets it: its edge has a place from now on."""
        if peer not in self._neighbours or not self._places.admits(peer, layer, self._closings):
            return False
        self._places.give(peer, layer, self._closings)
        return True

    def sent(self, peer: PeerId, layer: int, size: int, seconds: float, now: float) -> None:
        """Note that a neighbour has all `size` bytes of a layer of our newest update, so many seconds after it asked
        for them."""
        self._sent[peer] = max(layer, self._sent.get(peer, 0))
        since_update_s = now - self._has_update_since.get(peer, now - seconds)
        self._moved(peer, layer, size, "sent", since_update_s, seconds)

    def _moved(
        self, peer: PeerId, layer: int, size: int, way: Direction, since_update_s: float, seconds: float
    ) -> None:
        if peer in self._neighbours:
            self._places.moved(
                peer,
                layer,
                size,
                way=way,
                since_update_s=since_update_s,
                seconds=seconds,
                closings=self._closings,
            )

    def broken_off(self, peer: PeerId, layer: int) -> None:
        """Note that a neighbour has given up a layer of our newest update on its way: it was late there."""
        if peer in self._neighbours:  # or those that have left would be remembered until another update comes
            self._places.late(peer, layer, self._closings)

    def sent_to(self) -> dict[PeerId, int]:
        """Return how many of our layers each neighbour has: of the newest update, or of the one before: a peer
        that had them then has them before its own round closes, which may be after ours."""
        peers = self._neighbours.keys() & (self._sent.keys() | self._sent_before.keys())
        return {peer: max(self._sent.get(peer, 0), self._sent_before.get(peer, 0)) for peer in peers}

    def _forget_departed(self) -> None:
        here = self._neighbours
        self._refined = {peer: it for peer, it in self._refined.items() if peer in here}
        self._took = {key: it for key, it in self._took.items() if key[0] in here}
        self._places.keep(here)
        self._one_sided = {key: it for key, it in self._one_sided.items() if key[0] in here}
