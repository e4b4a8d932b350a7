"""Which edges are refined by which layers on unlike links, and how many places a link has for them.

Services on links of 20 and 200 Mbit/s, with payloads of configs/scenarios/unequal-links.toml; payloads and links are a
tenth as large. On a middle link the hidden 0.7 s hold 175 kB each way: five updates, the first layer for five
neighbours and the second one for two, if all came at the same moment.
"""

import random
from itertools import combinations
from statistics import fmean

import pytest
import trio
import trio.testing
from gossip_swarm import FakeRuntime, identity, swarm

from gossip.core.ids import PeerId
from gossip.transport.memory.wan import AccessLink, WideAreaNetwork
from gossip.updates.layer_places import RESTS_ROUNDS, LayerPlaces
from gossip.updates.layer_plan import LayerPlan
from gossip.updates.throughput import Throughput

BASE, LAYERS = 960, (("q2", 11_900), ("int8", 47_000))
ROUND_S, HIDDEN_S, JITTER = 1.4, 0.7, 0.05 / 10**0.5
"""A round's seconds waver by as much as the sum of ten steps of which each wavers by a twentieth."""
MIDDLE, FAST = 250e3, 2500e3
Depths = list[dict[tuple[int, int], int]]
"""By round: of each edge, by how many layers it is averaged at both ends."""


async def played(up: tuple[float, ...], down: tuple[float, ...], rounds: int, seed: int) -> Depths:
    """Play rounds of nodes on these links, in bytes a second."""
    rng, ends = random.Random(seed), [dict[int, dict[PeerId, int]]() for _ in up]
    async with swarm(seed=seed) as it:
        it.network.wan = WideAreaNetwork(rng, lambda one, other: 0.0001)
        for number, rates in enumerate(zip(up, down, strict=True), 1):
            link = AccessLink(up_bytes_per_s=rates[0], down_bytes_per_s=rates[1])
            it.network.wan.connect(identity(number).peer_id, link)
        nodes = await it.start_all(len(up), degree=len(up) - 1)
        begins_s = trio.current_time()

        async def train(node: FakeRuntime, held: dict[int, dict[PeerId, int]], draw: random.Random) -> None:
            ends_s = begins_s
            for round_ in range(1, rounds + 1):
                ends_s += ROUND_S * draw.gauss(1.0, JITTER)
                await trio.sleep_until(ends_s)
                layers = [(name, draw.randbytes(size)) for name, size in LAYERS]
                await node.publish(round_, draw.randbytes(BASE), layers)
                node.service.begin_layers(HIDDEN_S)
                await node.service.close_round(round_, at_most_s=ROUND_S)
                await node.service.finish_layers(wait=True)
                sent = node.service.layers_sent()
                held[round_] = {peer: min(it, sent.get(peer, 0)) for peer, it in node.service.layers_taken().items()}

        async with trio.open_nursery() as nursery:
            for node, held in zip(nodes, ends, strict=True):
                nursery.start_soon(train, node, held, random.Random(rng.random()))
    peers = [node.peer for node in nodes]
    edges = list(combinations(range(len(up)), 2))
    return [
        {
            (one, other): min(ends[one][round_].get(peers[other], 0), ends[other][round_].get(peers[one], 0))
            for one, other in edges
        }
        for round_ in range(1, rounds + 1)
    ]


def edges_of(depths: Depths, node: int, layer: int) -> float:
    """Of how many of its edges a node holds so many layers at both ends, in the mean of rounds."""
    return fmean(sum(depth >= layer for edge, depth in each.items() if node in edge) for each in depths)


@pytest.mark.thorough
async def test_middle_links_have_the_finest_layer_of_an_edge_in_every_round_and_fast_ones_of_all_they_can(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rates = (MIDDLE,) * 3 + (FAST,) * 3
    settled = (await played(rates, rates, rounds=9, seed=0))[3:]
    assert [edges_of(settled, node, 1) for node in range(6)] == [5.0] * 6, "the first layer is in time on all edges"
    assert min(edges_of([each], node, 2) for each in settled for node in range(3)) >= 1, "in every round"
    assert all(each[pair] == 2 for each in settled for pair in combinations(range(3, 6), 2))


ONE, TWO, THREE = (identity(number).peer_id for number in (1, 2, 3))


def filled(*peers: PeerId, layer: int = 1) -> LayerPlaces:
    places = LayerPlaces()
    for peer in peers:
        places.give(peer, layer, 0)
    return places


def went(places: LayerPlaces, peer: PeerId, *, since_update_s: float = 0.1, closings: int = 0) -> None:
    places.moved(peer, 2, 100, way="sent", since_update_s=since_update_s, seconds=0.1, closings=closings)


def test_the_coarsest_layer_is_tried_with_all_and_a_finer_one_with_one():
    places = filled(ONE, TWO)
    assert places.admits(THREE, 1, 0)
    assert places.admits(ONE, 2, 0)
    places.give(ONE, 2, 0)
    assert not places.admits(TWO, 2, 0)
    places.take_back(ONE, 2)
    assert places.admits(TWO, 2, 0)
    assert places.has(ONE, 1)


def test_after_a_late_layer_there_are_as_many_places_as_edges_are_left_and_the_late_one_rests():
    places = filled(ONE, TWO)
    places.late(ONE, 1, 1)
    places.late(ONE, 1, 1)  # it was late at the other end as well
    assert [places.admits(ONE, 1, 2), places.admits(TWO, 1, 2), places.admits(THREE, 1, 2)] == [False, True, False]
    assert places.admits(ONE, 1, 3) is False, "no room, until transfers show some"
    places.take_back(TWO, 1)
    assert places.admits(ONE, 1, 3), "of none one is tried"


def test_of_as_many_late_ones_as_may_lie_the_others_places_are_not_bounded():
    places = LayerPlaces(liars=1)
    places.give(ONE, 1, 0)
    places.late(ONE, 1, 0)
    places.late(ONE, 1, 5)  # alone, and again
    assert [places.admits(peer, 1, 5) for peer in (ONE, TWO, THREE)] == [False, True, True]
    places.grow(0.7, 5)
    places.late(TWO, 1, 5)
    assert places.admits(THREE, 1, 5), "in another round"
    places.late(THREE, 1, 5)
    fourth = identity(4).peer_id
    assert [places.admits(fourth, 1, closing) for closing in (5, 6, 7)] == [False, False, True]


def test_one_that_is_late_again_and_again_bounds_a_link_for_no_longer_than_the_other():
    places = LayerPlaces(liars=1)
    for closing in (0, 2, 6, 14):
        places.late(ONE, 1, closing)
        places.grow(0.7, closing)
    places.late(ONE, 1, 22)
    places.late(TWO, 1, 22)
    assert [places.admits(THREE, 1, closing) for closing in (23, 24)] == [False, True], "two rounds, and not eight"


def test_who_was_in_time_for_long_rests_as_short_as_at_first():
    places, closing, rests = filled(ONE), 0, []
    for good in (0, 0, 0, 0, RESTS_ROUNDS, 0):
        closing += good
        places.late(ONE, 1, closing)
        rests.append(next(rounds for rounds in range(1, 20) if places.admits(ONE, 1, closing + rounds)))
        closing += rests[-1]
        places.give(ONE, 1, closing)
    assert rests == [2, 4, 8, 8, 2, 4]


@pytest.mark.parametrize(("since_update_s", "more"), [(0.1, 4), (0.69, 0), (1.5, 0)])
def test_there_are_as_many_places_more_as_fit_into_what_was_to_spare(since_update_s, more):
    """At 1 kB/s, 0.1 s with the margin for each."""
    places = filled(ONE, layer=2)
    went(places, ONE, since_update_s=since_update_s)
    places.grow(0.7, 1)
    others = [identity(number).peer_id for number in range(10, 20)]
    for peer in others:
        if places.admits(peer, 2, 1):
            places.give(peer, 2, 1)
    assert sum(places.has(peer, 2) for peer in others) == more


def test_a_layer_of_a_byte_makes_no_places_for_those_of_others():
    it = LayerPlaces(liars=1)
    for peer, size in (("liar", 1), ("one", 1000), ("other", 1000)):
        it.give(PeerId(peer), 2, 1)
        it.moved(PeerId(peer), 2, size, way="received", since_update_s=0.1, seconds=0.1, closings=1)
    it.grow(0.4, 2)
    assert it.admits(PeerId("a third"), 2, 2)
    for number in range(2):
        it.give(PeerId(f"more {number}"), 2, 2)
    assert not it.admits(PeerId("a third"), 2, 2), "two more fit into 0.3 s"


def test_a_late_layer_is_no_reason_for_more_places_though_others_were_quick():
    places = filled(ONE, TWO, layer=2)
    places.late(ONE, 2, 1)
    went(places, ONE)
    places.grow(0.7, 1)
    assert not places.admits(THREE, 2, 1)
    went(places, ONE)
    places.grow(0.7, 3)
    assert places.admits(THREE, 2, 3)


def test_who_has_left_holds_no_place():
    places = filled(ONE, layer=2)
    places.keep({TWO})
    assert not places.has(ONE, 1)
    assert places.admits(TWO, 2, 1)


def test_who_asks_for_a_layer_and_never_takes_it_holds_the_only_place_for_no_more_than_eight_rounds():
    places = filled(ONE, layer=2)
    for closing in range(RESTS_ROUNDS):
        places.grow(0.7, closing)
        assert not places.admits(TWO, 2, closing)
    places.grow(0.7, RESTS_ROUNDS)
    assert not places.admits(ONE, 2, RESTS_ROUNDS), "it rests, or it would ask again before any other"
    assert places.admits(TWO, 2, RESTS_ROUNDS)
    assert places.admits(ONE, 2, 2 * RESTS_ROUNDS), "nobody has come"


def test_an_edge_that_is_used_keeps_its_place():
    places = filled(ONE, layer=1)
    places.give(ONE, 2, 0)
    for closing in range(1, 3 * RESTS_ROUNDS):
        places.moved(ONE, 1, 100, way="received", since_update_s=0.1, seconds=0.1, closings=closing)
        went(places, ONE, closings=closing)
        places.grow(0.0, closing)
        assert places.has(ONE, 2)


def test_who_takes_a_layer_again_and_late_leaves_others_their_places():
    places = filled(ONE, layer=2)
    went(places, ONE)
    for _ in range(100):
        went(places, ONE, since_update_s=9.0)
    places.grow(0.7, 1)
    assert places.admits(TWO, 2, 1)


def test_of_who_has_left_a_layer_that_breaks_off_leaves_nothing():
    plan = LayerPlan({}, Throughput({}))
    plan.broken_off(ONE, 1)
    plan.sent(ONE, 2, 100, 0.1, 0.1)
    assert plan._places.admits(ONE, 1, 0)
    assert not plan._places._moved
