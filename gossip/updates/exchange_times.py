"""How long an exchange takes, by neighbour: measured on the updates that are sent anyway.

Received: from the first announcement of a neighbour's link until the runtime has applied its update. That is pulling,
verifying and decoding under the present load, and waiting for the updates before it. Sent: from the publication of our
own update until a neighbour has been sent all of it. Only the exchange is measured, not how long a neighbour trains. A
longer time counts at once, by the newest update; a shorter one counts when the median of the newest few says so. When a
neighbour has announced further updates while one is still not here, its exchange takes longer than the time between its
announcements. A neighbour that died announces nothing, and its time does not grow.

Of the neighbours the quorum's slowest decides, and never one of the `liars` slowest. So rounds are prolonged neither by
liars, whether they deliver late or announce and deliver nothing, nor by a few slow links.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Container
from statistics import median
from typing import Final, Literal

from gossip.core.ids import Digest, PeerId
from gossip.core.limits import MAX_LINKS

Direction = Literal["sent", "received"]
Place = tuple[int, int]
"""(epoch, seq)."""

WINDOW: Final = 5
"""Updates remembered in each direction, as for the speed of links (throughput.py): two lucky ones in a row do not
count."""

MAX_OPEN: Final = 2 * MAX_LINKS
"""Announced links of a neighbour that are not applied yet: as many as its chain keeps waiting (hash_chain.py)."""


class ExchangeTimes:
    """Exchange times of the peers in `known`; a peer that has left is forgotten."""

    def __init__(self, known: Container[PeerId]) -> None:
        self._known = known
        self._seconds: dict[tuple[PeerId, Direction], deque[float]] = {}
        self._heard: dict[PeerId, OrderedDict[Place, float]] = {}
        self._applied_at: dict[PeerId, float] = {}
        self._published_at: OrderedDict[Digest, float] = OrderedDict()

    def heard(self, peer: PeerId, place: Place, now: float) -> None:
        """Note that a link of `peer` is known. Only the first time counts."""
        open_ = self._heard.setdefault(peer, OrderedDict())
        if place not in open_:
            open_[place] = now
            while len(open_) > MAX_OPEN:
                open_.popitem(last=False)

    def applied(self, peer: PeerId, place: Place, now: float, *, delta: bool) -> None:
        """Note that the runtime has applied the update of `peer` at `place`. Only a `delta` is an exchange of a round:
        a base costs nothing, and a snapshot much more."""
        self._forget_departed()
        if peer not in self._known:
            return
        self._applied_at[peer] = now
        open_ = self._heard.pop(peer, OrderedDict())
        if delta and place in open_:
            self._add(peer, "received", now - open_[place])
        if later := {other: at for other, at in open_.items() if other > place}:
            self._heard[peer] = OrderedDict(later)

    def published(self, address: Digest, now: float) -> None:
        """Note that our own update can be pulled."""
        self._published_at[address] = now
        self._published_at.move_to_end(address)
        while len(self._published_at) > MAX_LINKS:
            self._published_at.popitem(last=False)

    def delivered(self, peer: PeerId, address: Digest, now: float) -> None:
        """Note that `peer` was sent all of a blob of ours."""
        began = self._published_at.get(address)
        if began is not None and peer in self._known:
            self._add(peer, "sent", now - began)

    def delivers(self, peer: PeerId, since: float) -> bool:
        """Return whether an update of `peer` has been applied since then."""
        return self._applied_at.get(peer, -math.inf) >= since

    def seconds(
        self, *, quorum: float, liars: int, delivered: bool = False, besides: Collection[PeerId] = ()
    ) -> float | None:
        """Return the seconds of an exchange with a quorum (a share) of the neighbours; None before anything was
        measured. `delivered`: use only what has arrived, not what is overdue. `besides`: neighbours that do not
        count."""
        self._forget_departed()
        slowest: dict[PeerId, float] = {}
        for (peer, _), took in self._seconds.items():
            slowest[peer] = max(slowest.get(peer, 0.0), took[-1], median(took))
        for peer, open_ in self._heard.items():
            if len(open_) > 1 and not delivered:
                first, *_, last = open_.values()
                slowest[peer] = max(slowest.get(peer, 0.0), last - first)
        ordered = sorted(took for peer, took in slowest.items() if peer not in besides)
        place = min(math.ceil(quorum * len(ordered) - 1e-9), len(ordered) - liars)
        return ordered[max(place, 1) - 1] if ordered else None

    def _add(self, peer: PeerId, direction: Direction, seconds: float) -> None:
        self._seconds.setdefault((peer, direction), deque(maxlen=WINDOW)).append(seconds)

    def _forget_departed(self) -> None:
        self._seconds = {key: took for key, took in self._seconds.items() if key[0] in self._known}
        self._heard = {peer: places for peer, places in self._heard.items() if peer in self._known}
        self._applied_at = {peer: at for peer, at in self._applied_at.items() if peer in self._known}
