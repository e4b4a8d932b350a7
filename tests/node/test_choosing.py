"""From the network's and the strategy's measurements to a choice, and what the network is told of it."""

import random
from collections.abc import Set

import torch

from gossip.core.api import LinkSpeed, NeighbourStatus
from gossip.core.ids import PeerId
from node.config.schema import Config, from_raw
from node.selection.chooser import WARM_UP
from node.training.choosing import choose_next, chooser_for, chosen_event, distances
from p2ptrain.sync import SyncConfig, build
from p2ptrain.sync.vectors import to_bytes

PEERS = [PeerId(f"n{number}") for number in range(6)]


class Network:
    """Six neighbours, of which the last ones are further behind and slower."""

    def __init__(self) -> None:
        self.told: list[tuple[Set[PeerId] | None, Set[PeerId], int]] = []

    def neighbours(self) -> dict[PeerId, NeighbourStatus]:
        return {
            peer: NeighbourStatus(
                round=9, staleness=number, score=0.0, gives=True, tracked=True, address="", neighbours=6
            )
            for number, peer in enumerate(PEERS)
        }

    def link_speeds(self) -> dict[PeerId, LinkSpeed]:
        return {peer: LinkSpeed(sent=None, received=1000.0 / (1 + number)) for number, peer in enumerate(PEERS)}

    def fetch_first(self, first: Set[PeerId] | None, *, awaited: Set[PeerId] = frozenset(), least: int = 0) -> None:
        self.told.append((first, awaited, least))


def test_by_default_and_for_who_does_not_train_there_is_none() -> None:
    assert chooser_for(Config(), 3, random.Random(1)) is None
    observer = from_raw({"node": {"role": "observer"}, "selection": {"policy": "nearest"}})
    assert chooser_for(observer, 3, random.Random(1)) is None


def test_a_node_without_a_choice_draws_no_lot() -> None:
    rng, same = random.Random(1), random.Random(1)
    chooser_for(Config(), 3, rng)
    assert rng.random() == same.random()


def test_the_network_is_told_who_is_first_and_how_many_of_them_the_rule_needs() -> None:
    config = from_raw({"selection": {"policy": "nearest", "most": 3, "explore": 0.0}})
    chooser, network = chooser_for(config, 3, random.Random(1)), Network()
    assert chooser is not None
    changed = [choose_next(chooser, network, list(map(str, PEERS)), payload_bytes=1000) for _ in range(WARM_UP + 2)]
    assert changed == [*[False] * WARM_UP, True, False]
    nearest = frozenset(PEERS[:3])
    assert network.told == [*[(None, frozenset(), 0)] * WARM_UP, *[(nearest, nearest, 2)] * 2]
    event = chosen_event(4, chooser.newest)
    assert (event.first, event.explored) == (sorted(nearest), [])
    assert chosen_event(4, None).first == []


def test_distances_are_from_the_anchor_to_what_is_held_of_a_neighbour() -> None:
    genesis_d = torch.zeros(4)
    strategy = build(SyncConfig(), genesis_d, "me")
    strategy.track("near", to_bytes(torch.tensor([3.0, 4.0, 0.0, 0.0])))
    strategy.track("same", None)
    assert distances(strategy, ["same", "near", "unknown"]) == {"near": 5.0, "same": 0.0}
