"""Who may leave how many differences: one a key and round, and one a key and model; so many a round, of one network
and in all. Keys cost nothing, so the bounds by network and in all are what holds. A body that is on its way has a
place of its own, and what waits for a later round keeps its place."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from gossip.core.networks import network_at, parsed_host
from node.visits.refusals import Refusal, RefusedVisitError

MODELS_EACH: Final = 2
"""Models sent for each difference that may come: one visitor in two may leave before it has trained. Chosen."""

BODIES_EACH: Final = 2
"""Bodies read for each difference that may come: one in two may not arrive whole, or be forged. Chosen."""


class Place:
    """The place of a difference that is on its way. As a context, it is given back at the end."""

    def __init__(self, places: Counter[str], network: str) -> None:
        self.network = network
        self._places: Counter[str] | None = places
        places[network] += 1

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Give the place back, where that has not been done."""
        places, self._places = self._places, None
        if places is not None:
            places[self.network] -= 1
            if not places[self.network]:
                del places[self.network]


class VisitBounds:
    """Counts the differences, the bodies read and the models sent of the round under way. Memory: `most` keys for each
    model kept."""

    def __init__(self, *, most: int, most_of_network: int) -> None:
        self._most = most
        self._most_of_network = most_of_network
        self._keys: set[bytes] = set()
        self._networks: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._bodies: Counter[str] = Counter()
        self._coming: Counter[str] = Counter()
        """Places of differences that are on their way, by network."""
        self._left: set[tuple[bytes, bytes]] = set()
        """Each key, and the model that it has left a difference to: else it could be sent again in the next round."""

    def reserve(self, host: str) -> Place:
        """Return a place for a caller of this host. Raises RefusedVisitError where none is left in this round."""
        network = visitor_network(host)
        if len(self._keys) + self._coming.total() >= self._most:
            raise RefusedVisitError(Refusal.FULL)
        if self._networks[network] + self._coming[network] >= self._most_of_network:
            raise RefusedVisitError(Refusal.NETWORK_FULL)
        self._check_bodies(network)
        return Place(self._coming, network)

    def check(self, key: bytes, model: bytes) -> None:
        """Raise RefusedVisitError where this key has left a difference in this round, or to this model."""
        if key in self._keys or (key, model) in self._left:
            raise RefusedVisitError(Refusal.SECOND)

    def count_body(self, place: Place) -> None:
        """Count a body that is read. Raises RefusedVisitError where no further one is."""
        self._check_bodies(place.network)
        self._bodies[place.network] += 1

    def check_models(self, host: str) -> None:
        """Raise RefusedVisitError where no further model is sent to a caller of this host in this round."""
        if self._sent.total() >= MODELS_EACH * self._most:
            raise RefusedVisitError(Refusal.FULL)
        if self._sent[visitor_network(host)] >= MODELS_EACH * self._most_of_network:
            raise RefusedVisitError(Refusal.NETWORK_FULL)

    def count_model(self, host: str) -> None:
        """Count a model that is sent."""
        self._sent[visitor_network(host)] += 1

    def count(self, key: bytes, model: bytes, place: Place) -> None:
        """Count a difference whose signature holds. Its content may still be refused: that takes the place, too."""
        place.give_back()
        self._keys.add(key)
        self._left.add((key, model))
        self._networks[place.network] += 1

    def begin_round(self, is_kept: Callable[[bytes], bool], waiting: Iterable[tuple[bytes, str]] = ()) -> None:
        """Begin the next round. `is_kept`: whether a visitor may still have started from a model. `waiting`: key and
        network of each difference that counts in a later round: it is one of that round, too."""
        waits = list(waiting)
        self._keys = {key for key, _ in waits}
        self._networks = Counter(network for _, network in waits)
        self._sent.clear()
        self._bodies.clear()
        self._left = {(key, model) for key, model in self._left if is_kept(model)}

    def _check_bodies(self, network: str) -> None:
        if self._bodies.total() >= BODIES_EACH * self._most:
            raise RefusedVisitError(Refusal.FULL)
        if self._bodies[network] >= BODIES_EACH * self._most_of_network:
            raise RefusedVisitError(Refusal.NETWORK_FULL)


def visitor_network(host: str) -> str:
    """Return the /24 or /48 that an address is in; what is none counts as one network."""
    address = parsed_host(host)
    return "" if address is None else network_at(address)
