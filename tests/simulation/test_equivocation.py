"""After how many rounds two histories come out, in swarms of every size, whatever the liar tries."""

import pytest
from sizes import thorough_but

from gossip.core.envelope import Scope
from gossip.core.ids import PeerId, RunId, SwarmId
from gossip.discovery.topology import Rings
from gossip.updates.audits import LOG_SHARE_OF_REGION, audit_every
from node.simulation.equivocation import AWAY_ROUNDS, EquivocationModel, Lie
from node.simulation.large.ring_graph import RingGraph


@pytest.mark.parametrize("nodes", [16, 64, 128])
@pytest.mark.parametrize("lie", Lie)
def test_up_to_a_hundred_members_compare_at_once_whatever_k_is(nodes: int, lie: Lie) -> None:
    for seed in range(3):
        found = EquivocationModel(nodes, seed).play(lie, 4)
        assert (found.first, found.all) == (1, 1), seed


@pytest.mark.parametrize("lie", Lie)
def test_members_of_a_region_compare_at_once_though_fewer_links_go_all_the_way(lie: Lie) -> None:
    every = audit_every(64, LOG_SHARE_OF_REGION)
    assert every > audit_every(64)
    for seed in range(3):
        found = EquivocationModel(64, seed, every=every).play(lie, 4)
        assert (found.first, found.all) == (1, 1), seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", thorough_but([0, 6], range(20)))
@pytest.mark.parametrize("lie", Lie)
def test_among_a_thousand_it_comes_out_within_k_rounds_or_when_it_begins_anew(lie: Lie, seed: int) -> None:
    k = audit_every(1000)
    within = k + AWAY_ROUNDS if lie is Lie.LEAVES else 2 * k  # some believe in more members
    found = EquivocationModel(1000, seed).play(lie, within)
    assert found.first is not None
    assert found.all is not None


@pytest.mark.slow
def test_without_comparing_who_begins_anew_is_never_found() -> None:
    """What the rule replaced: the model would show it."""
    found = EquivocationModel(1000, 0, compares=False, every=32).play(Lie.ANEW, 200)
    assert found.first is None


def test_what_nodes_of_a_model_believe_is_what_real_ones_do() -> None:
    scope = Scope(swarm=SwarmId(bytes(16)), run=RunId(bytes(16)))
    names = [PeerId(f"node {number}") for number in range(60)]
    believed = RingGraph(names, scope, 8).believed(range(60))
    for node, name in enumerate(names):
        rings = Rings(name, scope, 8)
        rings.see(rings.beside(name, [each for each in names if each != name], 3))
        assert max(believed[node], len(rings._seen) + 1) == rings.members
