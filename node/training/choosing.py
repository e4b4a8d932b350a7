"""Chooses after each round whose updates are fetched first (node/selection), and tells the network."""

import random
from collections.abc import Collection, Iterable, Set
from typing import Protocol

import torch

from gossip.core.api import LinkSpeed, NeighbourStatus
from gossip.core.ids import PeerId
from node.config.schema import Config
from node.events.event_types import NeighboursChosen
from node.selection.chooser import Choice, Chooser, FetchCost
from p2ptrain.protocols import implements
from p2ptrain.sync.base import HasAnchor, InPlace, SyncStrategy
from p2ptrain.sync.mixing import parts


class PullsInOrder(Protocol):
    """What of the network is asked and told."""

    def neighbours(self) -> dict[PeerId, NeighbourStatus]:
        """Return the state of every neighbour."""

    def link_speeds(self) -> dict[PeerId, LinkSpeed]:
        """Return how fast updates come from each."""

    def fetch_first(self, first: Set[PeerId] | None, *, awaited: Set[PeerId] = frozenset(), least: int = 0) -> None:
        """Set from whom updates are fetched first, and for whom rounds wait."""


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


def distances(strategy: SyncStrategy, peers: Iterable[str]) -> dict[str, float]:
    """Return how far the models of these neighbours, as they are held, are from the anchor: L2 distances."""
    if not implements(strategy, HasAnchor):
        return {}
    anchor_d, found = strategy.anchor_d, {}
    for peer in sorted(peers):
        model_d = strategy.estimate_model(peer) if implements(strategy, InPlace) else None
        if model_d is not None:
            found[peer] = _distance(model_d, anchor_d)
    return found


def _distance(one_d: torch.Tensor, other_d: torch.Tensor) -> float:
    """Return ||one - other||, a chunk at a time."""
    squares = (float(torch.linalg.vector_norm(one_d[at] - other_d[at])) ** 2 for at in parts(one_d.numel()))
    return float(sum(squares) ** 0.5)


def choose_next(chooser: Chooser, service: PullsInOrder, live: Collection[str], payload_bytes: int) -> bool:
    """Choose for a round that is about to close. `live`: neighbours whose models are recent enough to be in it.
    `payload_bytes`: of an update. Return whether the choice is another one than before."""
    before = chooser.newest
    speeds = service.link_speeds()
    here = {
        str(peer): FetchCost(lag=it.staleness, seconds=_seconds(speeds.get(peer), payload_bytes))
        for peer, it in service.neighbours().items()
    }
    choice = chooser.choose(here, live)
    if choice is None:
        service.fetch_first(None)
    else:
        first, awaited = (frozenset(map(PeerId, names)) for names in (choice.first, choice.awaited))
        service.fetch_first(first, awaited=awaited, least=chooser.least)
    return choice != before


def chosen_event(round: int, choice: Choice | None) -> NeighboursChosen:
    """Return what the log has of a choice."""
    first, awaited = (frozenset[str](), frozenset[str]()) if choice is None else (choice.first, choice.awaited)
    return NeighboursChosen(round=round, first=sorted(first), explored=sorted(first - awaited))


def _seconds(speed: LinkSpeed | None, payload_bytes: int) -> float | None:
    return None if speed is None or speed.received is None else payload_bytes / speed.received
