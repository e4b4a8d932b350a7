"""Who may leave how many differences: one a key and round, and one a key and model; so many a round, of one network
and in all. Keys cost nothing, so the bounds by network and in all are what holds."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from gossip.core.networks import network_at, parsed_host
from node.visits.refusals import Refusal, RefusedVisitError

MODELS_EACH: Final = 2
"""Models sent for each difference that may come: one visitor in two may leave before it has trained. Chosen."""


class VisitBounds:
    """Counts the differences, and the models sent, of the round under way. Memory: `most` keys for each model kept."""

    def __init__(self, *, most: int, most_of_network: int) -> None:
        self._most = most
        self._most_of_network = most_of_network
        self._keys: set[bytes] = set()
        self._networks: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._left: set[tuple[bytes, bytes]] = set()
        """Each key, and the model that it has left a difference to: else it could be sent again in the next round."""

    def check(self, key: bytes, model: bytes, host: str) -> None:
        """Raise RefusedVisitError where this key, or a caller of this host, has no place left in this round."""
        if key in self._keys or (key, model) in self._left:
            raise RefusedVisitError(Refusal.SECOND)
        self.check_host(host)

    def check_host(self, host: str) -> None:
        """Raise RefusedVisitError where a caller of this host has no place left in this round, whatever its key."""
        if len(self._keys) >= self._most:
            raise RefusedVisitError(Refusal.FULL)
        if self._networks[visitor_network(host)] >= self._most_of_network:
            raise RefusedVisitError(Refusal.NETWORK_FULL)

    def check_models(self, host: str) -> None:
        """Raise RefusedVisitError where no further model is sent to a caller of this host in this round."""
        if self._sent.total() >= MODELS_EACH * self._most:
            raise RefusedVisitError(Refusal.FULL)
        if self._sent[visitor_network(host)] >= MODELS_EACH * self._most_of_network:
            raise RefusedVisitError(Refusal.NETWORK_FULL)

    def count_model(self, host: str) -> None:
        """Count a model that is sent."""
        self._sent[visitor_network(host)] += 1

    def count(self, key: bytes, model: bytes, host: str) -> None:
        """Count a difference whose signature holds. Its content may still be refused: that takes the place, too."""
        self._keys.add(key)
        self._left.add((key, model))
        self._networks[visitor_network(host)] += 1

    def begin_round(self, is_kept: Callable[[bytes], bool]) -> None:
        """Begin the next round. `is_kept`: whether a visitor may still have started from a model."""
        self._keys.clear()
        self._networks.clear()
        self._sent.clear()
        self._left = {(key, model) for key, model in self._left if is_kept(model)}


def visitor_network(host: str) -> str:
    """Return the /24 or /48 that an address is in; what is none counts as one network."""
    address = parsed_host(host)
    return "" if address is None else network_at(address)
