"""What a neighbour says its state is, held against what its updates lead to; and what those who follow it tell."""

import pytest
import trio
from gossip_joiners import ROUNDS, snapshots_in, trained_swarm
from gossip_samples import ALICE, chain
from gossip_swarm import FakeRuntime, Swarm, all_follow, play, swarm, until

from gossip.blobs.attestation import overruled
from gossip.blobs.attestation_task import ASK_S
from gossip.core.digests import NO_DIGEST
from gossip.core.errors import Reason
from gossip.core.ids import Digest
from gossip.core.limits import CHUNK_BYTES, KIB, MARK_EVERY
from gossip.core.messages import SnapshotRequest
from gossip.session import ask_once
from gossip.updates.neighbour import Neighbour

A, B, C = (Digest(bytes([letter]) * 32) for letter in b"abc")


@pytest.mark.parametrize(
    ("said", "waiting", "verdict"),
    [
        ((), 0, False),
        ((), 1, False),
        ((), 2, None),
        ((B,), 0, False),
        ((B, B), 0, True),
        ((B, B), 1, True),
        ((B, B), 2, None),
        ((B, C), 0, False),
        ((A, B, B), 0, True),
        ((A, B, B), 1, None),
        ((A, A, B, B), 0, False),
        ((A, A, A), 2, False),
        ((A, A, A, B), 2, False),
        ((A, B, C, C, C), 0, True),
    ],
)
def test_more_than_half_and_more_than_the_liars_overrule_an_author(said, waiting, verdict):
    assert overruled(A, said, 1, waiting) is verdict


def test_a_witness_speaks_of_what_it_has_applied_and_of_a_mark_that_was_asked_for():
    peer, last = Neighbour(ALICE.peer_id, 0.0), MARK_EVERY + 1
    for each in chain(last + 1):
        peer.chain.learn(each)
        peer.accepted(each)
    peer.marked((1, MARK_EVERY), A)
    assert peer.witness(1, MARK_EVERY, 0) == A
    assert peer.witness(1, last, MARK_EVERY) == NO_DIGEST, "the marked state was due"
    assert peer.witness(1, last, last) is None, "it was asked for a later one than the mark"
    assert peer.witness(1, last + 1, 0) is None, "it has not come so far"
    assert peer.witness(2, last, 0) is None
    peer.marked((1, MARK_EVERY), None)
    assert peer.witness(1, MARK_EVERY, 0) is None, "it was not computed"
    assert peer.witness(1, last, 0) is None


def liar(node: FakeRuntime, *, marks: bool = True) -> None:
    """From now on its snapshots, and the states that it names, are not what its updates lead to."""

    async def state() -> bytes:
        return b"x" * CHUNK_BYTES

    node.state, node.marks = state, marks


def rejections(nodes: list[FakeRuntime], peer: str) -> list[dict[Reason, int]]:
    return [{why: times for (who, why), times in it.service.stats.rejected.items() if who == peer} for it in nodes]


async def test_a_state_that_its_updates_do_not_lead_to_is_charged_and_its_author_begun_anew(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4)
        liar(nodes[0])
        await play(nodes, range(1, MARK_EVERY))
        await until(lambda: all_follow(nodes))
        await play(nodes, [MARK_EVERY])
        await until(lambda: rejections(nodes[1:], nodes[0].peer) == [{Reason.CONTRADICTED: 1}] * 3)
        assert not any(node.service.neighbours()[nodes[0].peer].tracked for node in nodes[1:])
        assert all(node.service.neighbours()[nodes[1].peer].tracked for node in nodes[2:])
        del nodes[0].state
        await play(nodes, range(MARK_EVERY + 1, 3 * MARK_EVERY))
        await until(lambda: all(node.service.neighbours()[nodes[0].peer].tracked for node in nodes[1:]))
        assert rejections(nodes[1:], nodes[0].peer) == [{Reason.CONTRADICTED: 1}] * 3, "it has mended"


async def test_who_cannot_read_what_it_holds_warns_and_goes_on(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(2)

        async def broken(peer: str) -> bytes:
            raise ZeroDivisionError("a bug in the runtime")

        nodes[0].estimate = broken
        await play(nodes, range(1, MARK_EVERY + 2))
        await until(lambda: all_follow(nodes))
        assert "a bug in the runtime" in nodes[0].told("warning")[0].detail
        nodes[0].events.clear()


async def newcomer_to(it: Swarm, members: list[FakeRuntime]) -> FakeRuntime:
    one = await it.start(99, peers=tuple(member.address for member in members))
    await until(lambda: len(one.service.neighbours()) == len(members))
    return one


@pytest.mark.slow
async def test_a_newcomer_leaves_who_offers_another_state_than_it_has_told_everybody(autojump_clock):
    async with swarm() as it:
        members = await trained_swarm(it, 4, chunks=2, large=4)
        liar(members[0], marks=False)
        members[0].service._engine.publisher._offers.clear()  # the snapshot is cut anew, and is another one
        one = await newcomer_to(it, members)
        await until(lambda: all(one.follows(member) for member in members[1:]))
        await until(lambda: bool(one.told("banned")))
        assert rejections([one], members[0].peer)[0][Reason.CONTRADICTED] >= 2
        assert members[0].peer not in one.estimates, "it took nothing of it"
        assert members[0].service.stats.snapshot_bytes_sent < 5 * 2 * CHUNK_BYTES, "nor did it pull any of that"
        assert not any(rejections([one], member.peer)[0] for member in members[1:])


async def test_one_that_speaks_against_everybody_keeps_no_newcomer_out(autojump_clock):
    async with swarm() as it:
        members = await trained_swarm(it, 3, chunks=1, large=0)
        for neighbour in members[0].service._engine.neighbours.values():
            neighbour.witness = lambda *_: Digest(bytes(31) + b"l")
        one = await newcomer_to(it, members)
        await until(lambda: all(one.follows(member) for member in members))
        assert not one.service.stats.rejected


async def test_a_snapshot_that_its_author_owes_to_nobody_is_taken_at_its_word(autojump_clock):
    """Where no state is named there is nothing to agree on, as before."""
    async with swarm() as it:
        nodes = [await it.start(1)]
        nodes += [await it.start(number, peers=(nodes[0].address,)) for number in (2, 3)]
        for node in nodes:
            node.marks = False
            await node.begin()
        await play(nodes, range(1, 2 * MARK_EVERY))
        one = await newcomer_to(it, nodes)
        await until(lambda: all(one.follows(node) for node in nodes))
        assert snapshots_in(one) == [2 * MARK_EVERY - 1] * 3


async def test_a_neighbour_that_asks_for_the_newest_models_sets_no_newcomer_against_their_authors(autojump_clock):
    async with swarm() as it:
        members = await trained_swarm(it, 4, chunks=1, large=0)
        context = members[3].service._context
        for member in members[:3]:
            newest = SnapshotRequest(epoch=member.service.head.epoch, seq=ROUNDS)
            await ask_once(context.transport, member.peer, newest, context.config.request_timeout_s, KIB)
        one = await newcomer_to(it, members)
        await until(lambda: all(one.follows(member) for member in members))
        assert not one.service.stats.rejected
        assert snapshots_in(one) == [MARK_EVERY] * 4


@pytest.mark.slow
async def test_witnesses_that_are_gone_hold_nobody_up_for_long(autojump_clock):
    async with swarm() as it:
        members = await trained_swarm(it, 4, chunks=1, large=0)
        one = await newcomer_to(it, members)
        await until(lambda: all(one.follows(member) for member in members))
        for member in members[:2]:
            it.network.cut(one.peer, member.peer)
        await until(lambda: len(one.service.neighbours()) == 2)
        await play(members, range(ROUNDS + 1, ROUNDS + 12))
        await until(lambda: all(one.follows(member) for member in members[2:]))
        for member in members[2:]:
            it.network.stall(member.peer)
        it.network.heal()
        await until(lambda: len(one.service.neighbours()) == 4)
        began = trio.current_time()
        await until(lambda: all(one.follows(member) for member in members[:2]))
        assert trio.current_time() < began + ASK_S + 0.5
        assert not one.service.stats.rejected


async def test_a_newcomer_begins_at_the_mark_and_follows_from_there(autojump_clock):
    async with swarm() as it:
        members = await trained_swarm(it, 3, chunks=1, large=0)
        one = await newcomer_to(it, members)
        await until(lambda: all(one.follows(member) for member in members))
        assert snapshots_in(one) == [MARK_EVERY] * 3
        assert sorted(update.seq for update in one.received if update.kind == "delta") == [ROUNDS] * 3
