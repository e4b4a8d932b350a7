"""Exchanges among real services over the in-memory network: exact, and what the dead, the late and liars cost."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import trio
import trio.testing
from gossip_swarm import FakeRuntime, Swarm, swarm, until
from sizes import thorough_but

from gossip.allreduce.allreduce import Group, ReducedPart
from gossip.blobs.hashing_task import Hasher
from gossip.core.envelope import seal
from gossip.core.errors import LocalError, Reason
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import CHUNK_BYTES
from gossip.core.statements import Stage, part_statement
from gossip.group_blobs_task import (
    EXCHANGE_VECTORS,
    EXCHANGES_HELD,
    MAX_PULLS,
    MAX_PULLS_PASSED,
    PASSED_AFTER_S,
    Puller,
    _Places,
)
from gossip.transport.base import Stream, TransportError
from gossip.updates.publisher import Payload

SIZE = 5 * CHUNK_BYTES + 12
GATHER_S, TIMEOUT_S = 30.0, 60.0
BAD = 2
"""Which of four members dies or lies; it owns one chunk of the vector's six."""

Results = dict[PeerId, list[ReducedPart]]


def vector(number: int, round_: int = 1) -> np.ndarray:
    return np.random.default_rng([number, round_]).integers(0, 256, SIZE, dtype=np.uint8)


def summed(vectors: Mapping[PeerId, bytes | memoryview]) -> bytes:
    """Exact, and no two orders of summands matter: bytes, modulo 256."""
    total = np.zeros(len(next(iter(vectors.values()))), dtype=np.uint8)
    for data in vectors.values():
        total += np.frombuffer(data, dtype=np.uint8)
    return total.tobytes()


def group_of(nodes: list[FakeRuntime], round_: int = 1, chunk_bytes: int = CHUNK_BYTES) -> Group:
    return Group(members=tuple(node.peer for node in nodes), round=round_, size=SIZE, chunk_bytes=chunk_bytes)


async def exchanged(nodes: list[FakeRuntime], group: Group, *, late_s: Mapping[int, float] = {}) -> Results:
    """All of `nodes` exchange; member number n holds vector n and begins `late_s[n]` after the others."""
    results: Results = {}

    async def one(node: FakeRuntime) -> None:
        number = group.members.index(node.peer)
        await trio.sleep(late_s.get(number, 0.0))
        data = vector(number, group.round).tobytes()
        results[node.peer] = await node.service.exchange(group, data, summed, gather_s=GATHER_S, timeout_s=TIMEOUT_S)

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(one, node)
    return results


def whole(parts: list[ReducedPart]) -> np.ndarray:
    assert all(part.data is not None for part in parts)
    return np.frombuffer(b"".join(part.data or b"" for part in parts), dtype=np.uint8)


def expected(numbers: list[int], part: slice = slice(None), round_: int = 1) -> np.ndarray:
    return sum((vector(number, round_) for number in numbers), np.zeros(SIZE, np.uint8))[part]


def check_others(results: Results, group: Group, summands: dict[int, list[int]]) -> None:
    """Of every part that member n owns, all hold the sum of `summands[n]`'s vectors, or None where that is empty."""
    for parts in results.values():
        for part in parts:
            numbers = summands[group.members.index(part.owner)]
            if not numbers:
                assert part.data is None
            else:
                assert part.data is not None
                assert np.array_equal(np.frombuffer(part.data, np.uint8), expected(numbers, part.part))


async def stopped(net: Swarm, node: FakeRuntime) -> None:
    node.scope.cancel()
    net.nodes.remove(node)


@pytest.mark.slow
@pytest.mark.parametrize("count", thorough_but({3}, [2, 3, 5]))
async def test_all_come_to_the_exact_sum(count, autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(count)
        for round_ in (1, 2, 3):
            results = await exchanged(nodes, group_of(nodes, round_), late_s={0: 0.7 * round_})
            assert len(results) == count
            for parts in results.values():
                assert np.array_equal(whole(parts), expected(list(range(count)), round_=round_))
        assert all(
            len(node.service._allreducer.blobs) == EXCHANGES_HELD * EXCHANGE_VECTORS for node in nodes
        )  # of three exchanges
        assert all(node.service.stats.rejected == {} for node in nodes)


@pytest.mark.parametrize(("chunk_bytes", "most"), [(CHUNK_BYTES, 2), (CHUNK_BYTES // 4, 5.5)])
async def test_it_moves_twice_a_vector_and_not_a_mesh(chunk_bytes, most, autojump_clock):
    """`most`: chunks that one member owns at the most; with smaller ones parts are more alike."""
    async with swarm() as net:
        nodes = await net.start_all(4)
        before = trio.current_time()
        group = group_of(nodes, chunk_bytes=chunk_bytes)
        results = await exchanged(nodes, group)
        assert all(np.array_equal(whole(parts), expected([0, 1, 2, 3])) for parts in results.values())
        assert all(node.service.stats.rejected == {} for node in nodes)
        for node in nodes:  # its own vector but for its part, and its part three times
            own = group.part_size(node.peer)
            assert own <= most * chunk_bytes
            assert node.service.stats.payload_bytes_sent == SIZE + 2 * own
        assert trio.current_time() - before < 5.0  # nobody waited for a deadline
        moved = sum(node.service.stats.payload_bytes_received for node in nodes)
        assert moved == sum(node.service.stats.payload_bytes_sent for node in nodes) == 2 * 3 * SIZE


class SlowHasher(Hasher):
    """A busy machine: what others have reduced is here long before our own part is hashed."""

    async def payload(self, data: bytes, chunk_bytes: int = CHUNK_BYTES) -> Payload:
        await trio.sleep(TIMEOUT_S / 6)
        return await super().payload(data, chunk_bytes)


class CoarseHasher(Hasher):
    """A liar's: whatever the group has agreed on, its chunks are large, so that no part of the vector has its bytes
    where others look for them."""

    async def payload(self, data: bytes, chunk_bytes: int = CHUNK_BYTES) -> Payload:
        return await super().payload(data)


@pytest.mark.slow
async def test_who_hashes_its_own_part_last_still_gives_it_to_all(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(3)
        allreducer = nodes[0].service._allreducer
        allreducer._context = replace(allreducer._context, hasher=SlowHasher(SIZE))
        results = await exchanged(nodes, group_of(nodes))
        for parts in results.values():
            assert np.array_equal(whole(parts), expected([0, 1, 2]))


@pytest.mark.slow
async def test_a_dead_owner_costs_its_part_and_its_vector(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(4)
        group = group_of(nodes)
        await stopped(net, nodes[BAD])
        alive = [0, 1, 3]
        began = trio.current_time()
        results = await exchanged([nodes[number] for number in alive], group)
        assert trio.current_time() - began == pytest.approx(TIMEOUT_S, abs=1.0)
        check_others(results, group, {0: alive, 1: alive, 3: alive, BAD: []})


@pytest.mark.slow
async def test_one_that_dies_midway_costs_its_part(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(4)
        group = group_of(nodes)

        def dies(vectors: Mapping[PeerId, bytes | memoryview]) -> bytes:
            nodes[BAD].scope.cancel()
            return summed(vectors)

        async with trio.open_nursery() as nursery:
            service = nodes[BAD].service
            data = vector(BAD).tobytes()
            kept = partial(service.exchange, group, data, dies, gather_s=GATHER_S, timeout_s=TIMEOUT_S)
            nursery.start_soon(kept)
            results = await exchanged([nodes[number] for number in (0, 1, 3)], group)
            nursery.cancel_scope.cancel()
        net.nodes.remove(nodes[BAD])
        for parts in results.values():
            assert [part.owner for part in parts if part.data is None] == [nodes[BAD].peer]
        for part in results[nodes[0].peer]:  # with the dead one's vector where it came in time
            if part.data is not None:
                sums = [expected(numbers, part.part) for numbers in ([0, 1, 2, 3], [0, 1, 3])]
                assert any(np.array_equal(np.frombuffer(part.data, np.uint8), each) for each in sums)


@pytest.mark.slow
async def test_nobody_waits_for_one_that_is_gone_with_its_part_given(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(3)
        group = group_of(nodes)
        began = trio.current_time()

        async def dies_when_all_have_its_part() -> None:
            await until(lambda: all(node.service._allreducer._exchange is not None for node in nodes))
            ours = [node.service._allreducer._exchange for node in nodes[:2]]
            await until(lambda: all(exchange and nodes[2].peer in exchange.reduced for exchange in ours))
            nodes[2].scope.cancel()

        async def held_up(exchange, work, reduce, perform) -> None:
            await trio.sleep(5.0)  # the others have the last one's part by then, and it has gone
            await honest(exchange, work, reduce, perform)

        first = nodes[0].service._allreducer
        honest, first._reduce = first._reduce, held_up
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dies_when_all_have_its_part)
            data = vector(2).tobytes()
            nursery.start_soon(
                partial(nodes[2].service.exchange, group, data, summed, gather_s=GATHER_S, timeout_s=TIMEOUT_S)
            )
            results = await exchanged(nodes[:2], group)
            nursery.cancel_scope.cancel()
        net.nodes.remove(nodes[2])
        assert trio.current_time() - began < 20.0
        for parts in results.values():
            assert np.array_equal(whole(parts), expected([0, 1, 2]))


@pytest.mark.slow
async def test_one_that_begins_too_late_is_left_out_and_still_served(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(4)
        group, others = group_of(nodes), [0, 1, 3]
        results = await exchanged(nodes, group, late_s={BAD: GATHER_S + 5})
        late = results.pop(nodes[BAD].peer)
        # The part that it owns it reduced when it was there, of everybody's: they had not gone yet.
        check_others(results, group, {0: others, 1: others, 3: others, BAD: [0, 1, 2, 3]})
        assert np.array_equal(whole(late), whole(results[nodes[0].peer]))


@pytest.mark.slow
@pytest.mark.parametrize("announced", [True, False], ids=["by then", "never"])
async def test_a_part_that_was_not_there_in_time_comes_afterwards(announced, autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(3)
        group, impatient = group_of(nodes), nodes[0].service
        slow = nodes[2].service._allreducer
        honest = slow._reduce

        async def held_up(exchange, work, reduce, perform) -> None:
            await trio.sleep(25.0 if announced else 1000.0)
            await honest(exchange, work, reduce, perform)

        slow._reduce = held_up
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchanged, nodes[1:], group)
            parts = await impatient.exchange(
                group, vector(0).tobytes(), summed, gather_s=GATHER_S / 3, timeout_s=TIMEOUT_S / 3
            )
            assert [part.owner for part in parts if part.data is None] == [nodes[2].peer]
            await trio.sleep(10.0)
            missed = await impatient.missed_parts(timeout_s=5.0)
            if announced:
                (part,) = missed
                assert part.owner == nodes[2].peer
                assert np.array_equal(np.frombuffer(part.data, np.uint8), expected([0, 1, 2], part.part))
            else:
                assert not missed
            assert not await impatient.missed_parts(timeout_s=5.0), "once"
            nursery.cancel_scope.cancel()


async def test_vectors_that_come_too_late_do_not_keep_from_us_what_was_reduced(autojump_clock, monkeypatch):
    """They were pulled until the end, though nobody would reduce them: eight slow links took all places of pulls."""
    monkeypatch.setattr("gossip.group_blobs_task.MAX_PULLS", 1)
    monkeypatch.setattr("gossip.group_blobs_task.MAX_PULLS_PASSED", 1)
    fetch = Puller._fetch

    async def slow(puller, peer, address, size, span):
        if peer == nodes[BAD].peer and size == SIZE:
            await trio.sleep(2 * TIMEOUT_S)
        return await fetch(puller, peer, address, size, span)

    monkeypatch.setattr(Puller, "_fetch", slow)
    async with swarm() as net:
        nodes = await net.start_all(3)
        group = group_of(nodes)
        results = await exchanged(nodes, group)
        results.pop(nodes[BAD].peer)
        # With one place, the second member's pull of the first one's vector has waited behind the slow one.
        check_others(results, group, {0: [0, 1], 1: [1], BAD: [0, 1, 2]})


async def test_members_that_trickle_do_not_hold_all_places_of_pulls(autojump_clock, monkeypatch):
    """In a group of more than nine, eight that sent very slowly kept a member from asking anybody else in time."""
    monkeypatch.setattr("gossip.group_blobs_task.MAX_PULLS", 1)
    fetch = Puller._fetch

    async def slow(puller, peer, address, size, span):
        if peer == nodes[BAD].peer:
            await trio.sleep(2 * TIMEOUT_S)
        return await fetch(puller, peer, address, size, span)

    monkeypatch.setattr(Puller, "_fetch", slow)
    async with swarm() as net:
        nodes = await net.start_all(4)
        group, honest = group_of(nodes), [0, 1, 3]
        results = await exchanged(nodes, group)
        results.pop(nodes[BAD].peer)
        check_others(results, group, {0: honest, 1: honest, 3: honest, BAD: []})


@pytest.mark.parametrize("slow", [0, 8, 20])
async def test_a_place_more_is_made_only_while_pulls_wait_and_none_begins(slow, autojump_clock):
    places, begun = _Places(), []

    async def pull(seconds):
        async with places:
            begun.append(trio.current_time())
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for _ in range(slow):
            nursery.start_soon(pull, 1000.0)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(40):
            nursery.start_soon(pull, 0.5)
        await trio.sleep(80.0)
        assert len(begun) == slow + 40
        assert places._count == max(MAX_PULLS, slow + (slow > 0))
        nursery.cancel_scope.cancel()


async def test_places_are_never_more_than_their_bound(autojump_clock):
    places, begun = _Places(), []

    async def pull():
        async with places:
            begun.append(trio.current_time())
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(2 * MAX_PULLS_PASSED):
            nursery.start_soon(pull)
        await trio.sleep(1000.0)
        nursery.cancel_scope.cancel()
    assert len(begun) == MAX_PULLS_PASSED
    assert begun[MAX_PULLS - 1] == begun[0]
    assert begun[MAX_PULLS] == pytest.approx(begun[0] + PASSED_AFTER_S)


def lies_about_size(node: FakeRuntime, group: Group) -> None:
    allreducer = node.service._allreducer
    honest = allreducer._serve

    def serve(exchange, stage, payload):
        if stage is Stage.WHOLE:
            return honest(exchange, stage, payload)
        statement = part_statement(
            exchange=group.name, round=group.round, stage=stage, address=Digest(bytes(range(32))), size=7
        )
        return seal(allreducer._identity, allreducer._scope, statement).raw

    allreducer._serve = serve


def serves_other_bytes(node: FakeRuntime, group: Group) -> None:
    blobs = node.service._allreducer.blobs
    honest = blobs.chunk

    def chunk(address: Digest, index: int) -> memoryview:
        there = honest(address, index)
        return there if blobs.manifest(address).size == SIZE else memoryview(bytes(len(there)))

    blobs.chunk = chunk


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "reason"), [(lies_about_size, Reason.WRONG_SHAPE), (serves_other_bytes, Reason.DIGEST_MISMATCH)]
)
async def test_a_liar_costs_its_part_and_is_charged(lie, reason, autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(4)
        group, everyone = group_of(nodes), [0, 1, 2, 3]
        lie(nodes[BAD], group)
        results = await exchanged(nodes, group)
        results.pop(nodes[BAD].peer)
        check_others(results, group, {0: everyone, 1: everyone, 3: everyone, BAD: []})
        for number in (0, 1, 3):
            assert nodes[number].service.stats.rejected[nodes[BAD].peer, reason] >= 1


async def test_a_lie_that_came_before_we_began_is_charged_when_we_begin(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(2)
        group, liar = group_of(nodes), nodes[1].service._allreducer
        statement = part_statement(
            exchange=group.name, round=group.round, stage=Stage.WHOLE, address=Digest(bytes(range(32))), size=7
        )
        service = nodes[0].service
        service._allreducer.on_part(nodes[1].peer, seal(liar._identity, liar._scope, statement).raw)
        assert service.stats.rejected == {}, "it may be of an exchange that others have"
        parts = await service.exchange(group, vector(0).tobytes(), summed, gather_s=1.0, timeout_s=2.0)
        assert service.stats.rejected == {(nodes[1].peer, Reason.WRONG_SHAPE): 1}
        assert [part.owner for part in parts if part.data is not None] == [nodes[0].peer]


@pytest.mark.slow
async def test_one_that_cuts_its_vector_otherwise_is_left_out_and_charged(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(4)
        allreducer = nodes[BAD].service._allreducer
        allreducer._context = replace(allreducer._context, hasher=CoarseHasher(SIZE))
        group, honest = group_of(nodes, chunk_bytes=CHUNK_BYTES // 4), [0, 1, 3]
        results = await exchanged(nodes, group)
        results.pop(nodes[BAD].peer)
        check_others(results, group, {0: honest, 1: honest, 3: honest, BAD: []})
        for number in honest:
            assert nodes[number].service.stats.rejected[nodes[BAD].peer, Reason.MALFORMED] >= 1


async def test_what_the_network_loses_is_asked_for_again(autojump_clock, monkeypatch):
    async with swarm() as net:
        nodes = await net.start_all(3)
        group = group_of(nodes)
        opened = nodes[0].transport.open_stream
        failures = iter(range(6))

        async def fails_at_first(peer: PeerId, protocol: str, **how: bool) -> Stream:
            if next(failures, None) is not None:
                raise TransportError("lost")
            return await opened(peer, protocol, **how)

        monkeypatch.setattr(nodes[0].transport, "open_stream", fails_at_first)
        results = await exchanged(nodes, group)
        assert next(failures, None) is None
        for parts in results.values():
            assert np.array_equal(whole(parts), expected([0, 1, 2]))


async def test_what_is_no_exchange_is_refused(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(2)
        group, service = group_of(nodes), nodes[0].service
        exchange = partial(service.exchange, group, reduce=summed, gather_s=1.0, timeout_s=2.0)
        with pytest.raises(LocalError, match="a vector of 3 bytes"):
            await exchange(data=b"abc")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(exchange, data=bytes(SIZE)))
            await until(lambda: service._allreducer._exchange is not None)
            with pytest.raises(LocalError, match="under way"):
                await exchange(data=bytes(SIZE))
        with pytest.raises(LocalError, match="once"):
            await exchange(data=bytes(SIZE))
