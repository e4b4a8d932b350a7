"""Secure sums among real services over the in-memory network: exact, never in the clear, once, and in time."""

from dataclasses import replace

import numpy as np
import pytest
import trio
from gossip_swarm import FakeRuntime, Swarm, identity, swarm, until
from secure_members import SCOPE
from sizes import thorough_but

from gossip.core.digests import digest_of
from gossip.core.envelope import seal
from gossip.core.errors import LocalError, Reason
from gossip.core.limits import CHUNK_BYTES, MAX_GROUP
from gossip.core.said_once import SaidOnce
from gossip.core.secure_statements import SecureStage, SecureStatement, SummedBody, parse_secure, secure_statement
from gossip.secure_aggregation.packing import pack_values
from gossip.secure_aggregation.secure_group import SecureGroup, SecureSum, SecureSumError, Values
from gossip.secure_aggregation.secure_sum import SecureSumming
from gossip.secure_aggregation.secure_sum_task import MAX_EARLY_STATEMENTS, EarlyStatements
from gossip.transport.memory.traffic_tap import StreamTap

COUNT, BITS = 2051, 20
GATHER_S, TIMEOUT_S = 30.0, 60.0


def vector(number: int) -> Values:
    return np.random.default_rng(number).integers(0, 1 << BITS, COUNT, dtype=np.uint32)


def group_of(nodes: list[FakeRuntime], **sizes: int) -> SecureGroup:
    """Parts of some five hundred values, in chunks of a hundred."""
    members = tuple(node.peer for node in nodes)
    return SecureGroup(**{"members": members, "round": 1, "count": COUNT, "bits": BITS, "chunk_bytes": 260, **sizes})


def expected(places: list[int]) -> Values:
    total = np.zeros(COUNT, np.uint32)
    for place in places:
        total += vector(place)
    return total & np.uint32((1 << BITS) - 1)


async def summed(nodes: list[FakeRuntime], group: SecureGroup) -> dict[int, SecureSum | str]:
    """What each of the nodes comes to, by its place: the sum, or why there is none."""
    found: dict[int, SecureSum | str] = {}

    async def one(node: FakeRuntime) -> None:
        place = group.members.index(node.peer)
        try:
            sum_securely = node.service.sum_securely
            found[place] = await sum_securely(group, vector(place), gather_s=GATHER_S, timeout_s=TIMEOUT_S)
        except SecureSumError as error:
            found[place] = str(error)

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(one, node)
    return found


def check_exact(found: dict[int, SecureSum | str], places: list[int], group: SecureGroup) -> None:
    for it in found.values():
        assert isinstance(it, SecureSum), it
        assert it.survivors == tuple(group.members[place] for place in places)
        assert np.array_equal(it.values(), expected(places))


class Captured:
    """All that is written to streams."""

    def __init__(self) -> None:
        self.streams: list[bytearray] = []

    def broadcast(self, *args: object, **kwargs: object) -> None:
        pass

    def stream(self, *args: object) -> StreamTap:
        said = bytearray()
        self.streams.append(said)

        def keep(sender: object, data: bytes | memoryview) -> None:
            said.extend(data)

        return keep


@pytest.mark.slow
async def test_the_sum_is_exact_and_no_frame_has_a_vector_in_the_clear(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(4)
        captured = net.network.tap = Captured()
        group = group_of(nodes)
        began = trio.current_time()
        check_exact(await summed(nodes, group), [0, 1, 2, 3], group)
        assert trio.current_time() - began < 1.0
        assert all(node.service.stats.rejected == {} for node in nodes)
        for node in nodes:  # as in an exchange: its vector but for its part, and the sum of its part three times
            assert node.service.stats.payload_bytes_sent == group.packed_bytes + 2 * group.parts.part_size(node.peer)
        carried = b"".join(map(bytes, captured.streams))
        assert len(carried) > 6 * group.packed_bytes
        for place in range(4):
            values, packed = vector(place), pack_values(vector(place), BITS)
            for at in range(0, COUNT - 16, 8):  # eight values on end, as they are packed and as they are
                assert packed[at * BITS // 8 : (at + 8) * BITS // 8] not in carried
                assert values[at : at + 4].tobytes() not in carried
        assert pack_values(expected([0, 1, 2, 3]), BITS)[:20] in carried  # so that the search can find something


async def stopped(net: Swarm, node: FakeRuntime) -> None:
    node.scope.cancel()
    net.nodes.remove(node)


@pytest.mark.slow
@pytest.mark.parametrize("late_s", [0.4 * GATHER_S, 0.8 * GATHER_S])
async def test_members_come_as_their_phases_end_and_nobody_gives_it_up_before_the_gathering_is_over(
    autojump_clock, late_s
):
    """Three of five, without whom there is no sum, come late: the others wait for them while they may still come."""
    async with swarm() as net:
        nodes = await net.start_all(5)
        group = group_of(nodes)
        found: dict[int, SecureSum | str] = {}

        async def one(place: int) -> None:
            await trio.sleep(late_s if place >= 2 else 0)
            found.update(await summed([nodes[place]], group))

        async with trio.open_nursery() as nursery:
            for place in range(5):
                nursery.start_soon(one, place)
        check_exact(found, list(range(5)), group)


@pytest.mark.slow
async def test_one_that_is_gone_is_left_out_in_time(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(5)
        group = group_of(nodes, chunk_bytes=220)
        await stopped(net, nodes[3])
        began = trio.current_time()
        check_exact(await summed([nodes[place] for place in (0, 1, 2, 4)], group), [0, 1, 2, 4], group)
        assert trio.current_time() - began < TIMEOUT_S


class CrashedError(Exception):
    """The end of a process."""


def crashes_at(stage: SecureStage, node: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node die when it has signed what it says at this stage, and before anybody hears it."""
    honest = SecureSumming.learn_own

    def learn_own(summing: SecureSumming, statement: SecureStatement) -> None:
        honest(summing, statement)
        if statement.peer == node.peer and statement.stage is stage:
            node.scope.cancel()
            raise CrashedError

    monkeypatch.setattr(SecureSumming, "learn_own", learn_own)


@pytest.mark.slow
@pytest.mark.parametrize("stage", thorough_but([SecureStage.HELD], list(SecureStage)))
async def test_who_crashes_at_a_stage_costs_nothing_with_two_owners_and_never_answers_again(
    stage, tmp_path, monkeypatch, autojump_clock
):
    async with swarm() as net:
        nodes = await net.start_all(5)
        group, victim, file = group_of(nodes, chunk_bytes=220, owners=2), nodes[1], tmp_path / "begun"
        victim.service._summer._begun._path = file
        crashes_at(stage, victim, monkeypatch)

        async def crash() -> None:
            try:
                await victim.service.sum_securely(group, vector(1), gather_s=GATHER_S, timeout_s=TIMEOUT_S)
            except* CrashedError:
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            found = await summed([node for node in nodes if node is not victim], group)
        net.nodes.remove(victim)
        agreed = stage >= SecureStage.AGREED
        check_exact(found, [0, 1, 2, 3, 4] if agreed else [0, 2, 3, 4], group)
        assert file.stat().st_mode & 0o777 == 0o600
        assert not SaidOnce(file, "which secure sums were begun").first(group.name, group.round)


@pytest.mark.slow
async def test_too_few_end_it_with_one_line(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(5)
        group = group_of(nodes, chunk_bytes=220)
        found = await summed(nodes[:3], group)
        assert set(found.values()) == {"3 of 5 members announced keys in time, and 4 must"}
        again = group_of(nodes, chunk_bytes=220, round=2)
        check_exact(await summed(nodes, again), [0, 1, 2, 3, 4], again)


def serves_other_bytes(node: FakeRuntime) -> None:
    blobs = node.service._summer.blobs
    honest = blobs.chunk
    blobs.chunk = lambda address, index: memoryview(bytes(len(honest(address, index))))


@pytest.mark.slow
async def test_one_that_serves_other_bytes_is_left_out_and_charged(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(5)
        group = group_of(nodes, chunk_bytes=220)
        serves_other_bytes(nodes[2])
        found = await summed(nodes, group)
        found.pop(2)
        check_exact(found, [0, 1, 3, 4], group)
        for place in (0, 1, 3, 4):
            assert nodes[place].service.stats.rejected[nodes[2].peer, Reason.DIGEST_MISMATCH] >= 1


@pytest.mark.slow
async def test_what_is_no_sum_is_refused(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(4)
        group, service = group_of(nodes), nodes[0].service

        async def sum_of(values: Values, group: SecureGroup = group) -> None:
            await service.sum_securely(group, values, gather_s=1.0, timeout_s=2.0)

        with pytest.raises(LocalError, match="shape"):
            await sum_of(vector(0)[1:])
        with pytest.raises(LocalError, match="max_payload_bytes"):
            await sum_of(vector(0), replace(group, count=1 << 31, chunk_bytes=CHUNK_BYTES))
        async with trio.open_nursery() as nursery:

            async def first() -> None:
                with pytest.raises(SecureSumError, match="3 must"):
                    await sum_of(vector(0))

            nursery.start_soon(first)
            await until(lambda: service._summer._sum is not None)
            with pytest.raises(LocalError, match="under way"):
                await sum_of(vector(0))
        with pytest.raises(LocalError, match="once"):
            await sum_of(vector(0))


def test_what_comes_early_is_kept_within_bounds():
    early = EarlyStatements()
    statements = {}
    for number in range(MAX_GROUP + 5):
        for part in range(MAX_EARLY_STATEMENTS + 2):
            said = secure_statement(
                exchange=digest_of(b"a sum"),
                round=1,
                stage=SecureStage.SUMMED,
                body=SummedBody(part=part),
                payload=digest_of(b"it"),
            )
            statements[number, part] = parse_secure(seal(identity(number + 1), SCOPE, said))
            early.keep(statements[number, part])
    assert len(early) == MAX_GROUP * MAX_EARLY_STATEMENTS
    assert early.take(digest_of(b"another")) == []
    found = early.take(digest_of(b"a sum"))
    newest = [statements[number, part] for number in range(5, MAX_GROUP + 5) for part in range(2, 10)]
    assert found == newest
    assert len(early) == 0
