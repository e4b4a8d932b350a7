"""Swarms of more members than anybody has places: what real services come to, that know one address at first.

Heartbeats and announcements are rare here, since what is measured is who finds whom; with the defaults it goes faster.
"""

from dataclasses import replace

import pytest
import trio
from gossip_samples import SCOPE, record
from gossip_swarm import CONFIG, FakeRuntime, Swarm, identity, swarm
from test_finding_peers import announcing
from topology_graphs import Graph, gap_of, random_regular_gap, rings_of

from gossip.core.ids import PeerId
from gossip.discovery.topology import Rings, tag_of

DEGREE = CONFIG.degree
QUIET = replace(CONFIG, heartbeat_s=60.0, silence_s=270.0, reannounce_s=600.0)
ROUND_S = 10.0
"""A short round of a home link: what heals within two of these heals within two of any that is longer."""


def graph_of(nodes: list[FakeRuntime]) -> dict[PeerId, frozenset[PeerId]]:
    there = {node.peer for node in nodes}
    return {node.peer: frozenset(node.service.neighbours()) & there for node in nodes}


def missing(nodes: list[FakeRuntime]) -> set[frozenset[PeerId]]:
    """Edges that the rings of these members have, and the swarm has not."""
    graph = graph_of(nodes)
    wanted = rings_of(list(graph), DEGREE)
    return {frozenset((peer, other)) for peer in wanted for other in wanted[peer] if other not in graph[peer]}


def unhealed(nodes: list[FakeRuntime], bereft: frozenset[PeerId]) -> set[frozenset[PeerId]]:
    """Edges that are missing between two of those that have lost a neighbour."""
    return {edge for edge in missing(nodes) if edge <= bereft}


def share_of_bound(graph: Graph) -> float:
    """The graph's spectral gap over that of random regular graphs of its mean degree."""
    return gap_of(graph) / random_regular_gap(sum(map(len, graph.values())) / len(graph))


async def gather(it: Swarm, count: int) -> list[FakeRuntime]:
    """So many members, all of whom know the first one's address and nothing else."""
    first = await it.start(1)
    nodes = [first, *[await it.start(number, peers=(first.address,)) for number in range(2, count + 1)]]
    for node in nodes:
        await node.begin()
    return nodes


@pytest.mark.thorough
@pytest.mark.parametrize("count", [32, pytest.param(64, marks=pytest.mark.thorough)])
async def test_many_members_find_their_places_and_heal(autojump_clock, count):
    async with swarm(QUIET) as it:
        nodes = await gather(it, count)
        with trio.fail_after(900):
            while len(missing(nodes)) > count // 32:  # noqa: ASYNC110  # seldom: each look draws every ring anew
                await trio.sleep(ROUND_S)
        graph = graph_of(nodes)
        assert all(DEGREE - 2 <= len(beside) <= DEGREE for beside in graph.values())
        assert share_of_bound(graph) > 0.9
        assert {(event.reason, event.detail) for node in nodes for event in node.told("rejected")} == set()

        for gone in (nodes[3], nodes[count // 2], nodes[-1]):
            bereft = graph_of(nodes)[gone.peer]
            nodes.remove(gone)
            gone.scope.cancel()
            await trio.sleep(3 * ROUND_S)
            assert len(unhealed(nodes, bereft)) <= count // 32, "one edge may take a round more"
            assert share_of_bound(graph_of(nodes)) > 0.9

        crowd = nodes[: count // 4]
        for gone in crowd:
            nodes.remove(gone)
            gone.scope.cancel()
        await trio.sleep(2 * ROUND_S)
        assert len(missing(nodes)) <= len(nodes) // 6, "a quarter at once: nearly all is healed within two rounds"
        assert gap_of(graph_of(nodes)) > 0.8 * random_regular_gap(6)


@pytest.mark.thorough
async def test_members_know_the_graph_from_what_both_ends_of_an_edge_sign(autojump_clock):
    async with swarm(CONFIG) as it:
        nodes = await gather(it, 16)
        await trio.sleep(90)
        graph = graph_of(nodes)
        edges = {frozenset((tag_of(peer), tag_of(other))) for peer in graph for other in graph[peer]}
        for node in nodes:
            known = node.service.known_graph()
            claimed = {frozenset((tag, other)) for tag in known for other in known[tag]}
            assert len(known) >= len(nodes) - 2
            assert len(claimed & edges) >= 0.8 * len(edges)
            assert len(claimed - edges) <= 2, "news of a change takes a heartbeat or two"
            assert gap_of(known) == pytest.approx(gap_of(graph), rel=0.25)


@pytest.mark.thorough
async def test_members_that_are_made_up_beside_a_victim_leave_the_rings_and_cost_it_no_neighbour(autojump_clock):
    """Signed records of ground ids, told by one liar, that answer nowhere: without `absent` they held the rings."""
    async with swarm(QUIET) as it, trio.open_nursery() as nursery:
        nodes = await gather(it, 14)
        victim = nodes[5]
        await trio.sleep(60)
        honest = {node.peer for node in nodes}
        before = set(victim.service.neighbours())
        rings = Rings(victim.peer, SCOPE, DEGREE)
        rings.see(honest)
        fakes = [key for key in map(identity, range(1000, 1600)) if rings.wants(key.peer_id)][:32]
        assert len(fakes) == 32, "it is cheap to grind so many"
        liar = await announcing(it, nursery, 66)
        liar.told = tuple(
            record(by=key, addresses=(f"/memory/{number}/p2p/{key.peer_id}",))
            for number, key in enumerate(fakes, start=5000)
        )
        await liar.transport.dial(victim.address)
        await liar.say(victim)
        made_up, held = {key.peer_id for key in fakes}, []
        for _ in range(60):
            await trio.sleep(5)
            held.append(len(made_up & victim.service._engine.mesh.rings.wanted))
        assert sum(held) / len(held) < 1, "each is tried now and then, and is gone again"
        assert len(before & set(victim.service.neighbours())) >= DEGREE - 2
        assert not any(peer in made_up for node in nodes[:5] for peer in node.service._engine.mesh.rings._seen)
        nursery.cancel_scope.cancel()
