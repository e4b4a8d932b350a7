"""Keys that cost nothing come one after another, have a model tracked, and leave: a node's memory does not follow."""

import os
from pathlib import Path

import psutil
import pytest
import torch
import trio
from sim_strangers import stranger, until
from sim_swarm import Member, swarm
from sizes import thorough_but

from gossip.service import GossipService
from node.training.estimates import MAX_DEPARTED, HeldEstimates
from p2ptrain import compress
from p2ptrain.tasks import digits

IDENTITIES = 40
PARAMETERS = 3_200_000
WIDE = 1_750
"""Of the hidden layers of the digits' model: 3.2M parameters."""
MIB = 1 << 20


def update_of(numel: int) -> bytes:
    """A well-formed update of some 81 kB, and a whole model as the receiver holds it."""
    x_d = torch.randn(numel, generator=torch.Generator().manual_seed(1)) * 1e-3
    return compress.get("topk", ratio=0.01, value_bits=2).encode(x_d)


async def tracked(victim: Member, service: GossipService, codec: str, payload: bytes, *, round: int = 0) -> None:
    """Have one model tracked, as any newcomer has."""
    accepted = victim.node.service.stats.updates_accepted
    await service.wait_for_neighbours(1, 60)
    await service.begin_epoch(epoch=1, round=round, snapshot=None)
    await service.publish(round=round, codec=codec, payload=payload, steps=1, tokens=1)
    await until(lambda: victim.node.service.stats.updates_accepted >= accepted + 2)  # the base, and the update


def bytes_of(member: Member) -> int:
    """What a node's estimates hold in memory; those at the initial model share it."""
    vectors = {vector.data_ptr(): vector for vector in member.node.strategy.estimates.values()}
    return sum(vector.numel() * vector.element_size() for vector in vectors.values())


@pytest.mark.parametrize("role", thorough_but({"trainer"}, ["trainer", "observer"]))
async def test_forty_identities_in_turn_hold_no_more_models_than_a_node_has_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: object, role: str
) -> None:
    monkeypatch.setattr(digits, "HIDDEN", WIDE)
    monkeypatch.setattr("gossip.updates.mesh.DEPARTED_S", 0.0)
    async with swarm(tmp_path) as members:
        # One phase outlasts the test: no round is closed meanwhile.
        train = {"rounds": 9, "inner_steps": 5, "batch_size": 1}
        victim = await members.start("victim", step_seconds=10_000.0, train=train, node={"role": role})
        numel, degree = victim.node.inner.trainer.numel, victim.node.config.network.degree
        assert abs(numel - PARAMETERS) < 0.02 * PARAMETERS
        payload = update_of(numel)
        assert 60_000 < len(payload) < 100_000
        rss, most = psutil.Process(os.getpid()).memory_info().rss, 0
        for number in range(IDENTITIES):
            async with stranger(members, victim, number) as service:
                await tracked(victim, service, "topk", payload)
                most = max(most, bytes_of(victim), 4 * numel * len(victim.node.strategy.estimates))
        assert most <= (degree + MAX_DEPARTED) * 4 * numel
        assert most > degree * 4 * numel, "as many as there is room for are held until the round ends"
        grown = psutil.Process(os.getpid()).memory_info().rss - rss
        assert grown < (degree + MAX_DEPARTED) * 4 * numel + 100 * MIB, f"{grown / MIB:.0f} MiB"


async def test_an_update_that_its_sender_did_not_wait_for_is_not_held_for_ever(
    tmp_path: Path, autojump_clock: object
) -> None:
    """Whose base came into the runtime's hands before it left, and is to be tracked after it was forgotten."""
    async with swarm(tmp_path) as members:
        victim = await members.start("victim", step_seconds=10_000.0)
        node = victim.node
        async with stranger(members, victim, 1) as service:
            await service.wait_for_neighbours(1, 60)
            async with node.strategy_lock:  # as while a round is aggregated
                await service.begin_epoch(epoch=1, round=0, snapshot=None)
                await until(lambda: node.strategy_lock.waiting)
                await service.say_goodbye(1.0)
                await until(lambda: not node.service.neighbour_ids)
                node.forget(node.estimates.forget_departed(besides=()))
            await trio.sleep(1.0)
        assert not node.strategy.estimates
        assert not len(node.estimates)


async def test_who_leaves_once_a_round_is_closed_counts_in_it_whoever_comes(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with swarm(tmp_path) as members:
        names = [f"n{number}" for number in range(4)]
        train = {"rounds": 4, "eval_every": 4}
        nodes = [await members.start(name, wait_for=3, train=train) for name in names]
        await members.finished()
        for member in nodes:
            assert [fields["members"] for fields in member.told("round")] == [4] * 4


def held_by(*peers: str, most: int, here: set[str], counted: set[str]) -> HeldEstimates:
    held = HeldEstimates(most=most, here=lambda: here, counted=lambda: counted)
    for peer in peers:
        assert held.make_room(peer) == []
    return held


def test_who_has_left_and_counts_nowhere_goes_first_and_the_last_comer_before_the_first() -> None:
    here, counted = {"a", "b", "c", "d", "e"}, {"a", "b"}
    held = held_by("a", "b", "c", "d", most=4, here=here, counted=counted)
    here -= {"a", "b", "d"}
    assert held.make_room("e") == ["d"], "it has left and does not count"
    here.add("f")
    assert held.make_room("f") == ["b"], "it counts, and was tracked after a"
    assert "a" in held
    assert "c" in held
    assert held.make_room("c") == [], "it is held already"


def test_at_the_end_of_a_round_all_that_left_are_forgotten_but_its_members() -> None:
    here = {"a", "b", "c"}
    held = held_by("a", "b", "c", most=5, here=here, counted=set())
    here -= {"a", "b"}
    assert held.wants("c")
    assert not held.wants("a")
    assert held.forget_departed(besides={"b": 0}) == ["a"]
    assert held.forget_all_but({"c"}) == ["b"]
    assert len(held) == 1
