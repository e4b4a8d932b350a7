"""Chooses after each round whose updates are fetched first (node/selection), and tells the network."""

import random
from collections.abc import Mapping
from typing import Final, Protocol

import torch

from gossip.core.api import LinkSpeed, NeighbourStatus
from gossip.core.ids import PeerId
from node.config.schema import Config
from node.selection.chooser import Chooser, Measured
from p2ptrain.protocols import implements
from p2ptrain.sync.base import HasAnchor, InPlace, SyncStrategy


KEEPS_UP: Final = 1
"""Rounds by which a neighbour's model is behind, at the end of our own steps, if it was here in the round before."""


class PullsInOrder(Protocol):
    """What of the network is asked and told."""

    def neighbours(self) -> dict[PeerId, NeighbourStatus]:
        """Return the state of every neighbour."""

    def link_speeds(self) -> dict[PeerId, LinkSpeed]:
        """Return how fast updates come from each."""

    def fetch_first(self, first: frozenset[PeerId] | None, *, least: int = 0) -> None:
        """Set from whom updates are fetched first."""


def chooser_for(config: Config, needed_members: int, rng: random.Random) -> Chooser | None:
    """Return what chooses; None where all neighbours are alike. `needed_members`: as many models, own included, the
    aggregator needs."""
    settings = config.selection
    policy = settings.find()
    if policy is None or config.node.role != "trainer":
        return None
    return Chooser(
        policy,
        most=settings.most,
        least=needed_members - 1,
        oldest=settings.oldest,
        explore=settings.explore,
        rng=random.Random(rng.random()),
    )


def distances(strategy: SyncStrategy, staleness: Mapping[str, int]) -> dict[str, float]:
    """Return how far the models of the neighbours that keep up are from the anchor: L2 distances."""
    if not (implements(strategy, HasAnchor) and implements(strategy, InPlace)):
        return {}
    found = {}
    for peer in sorted(peer for peer, rounds in staleness.items() if rounds <= KEEPS_UP):
        model_d = strategy.estimate_model(peer)
        if model_d is not None:
            found[peer] = float(torch.linalg.vector_norm(model_d - strategy.anchor_d))
    return found


def choose_next(chooser: Chooser, service: PullsInOrder, staleness: Mapping[str, int], payload_bytes: int) -> None:
    """Choose for a round that is about to close. `staleness`: how old each neighbour's model is by now, in rounds.
    `payload_bytes`: of an update."""
    speeds = service.link_speeds()
    here = {
        str(peer): Measured(lag=it.staleness, seconds=_seconds(speeds.get(peer), payload_bytes))
        for peer, it in service.neighbours().items()
    }
    first = chooser.choose(here, [peer for peer, rounds in staleness.items() if rounds <= KEEPS_UP])
    service.fetch_first(None if first is None else frozenset(map(PeerId, first)), least=chooser.least)


def _seconds(speed: LinkSpeed | None, payload_bytes: int) -> float | None:
    return None if speed is None or speed.received is None else payload_bytes / speed.received
