"""A swarm that has trained for a while, and newcomers to it that have to take its models."""

import random
from dataclasses import dataclass

import trio
from gossip_swarm import FakeRuntime, Swarm, until

from gossip.core.limits import CHUNK_BYTES, MARK_EVERY

ROUNDS = MARK_EVERY + 1
"""So many links from a base on nobody replays a chain any more: its mark is the snapshot that newcomers are offered."""


def model_of(number: int, chunks: int) -> bytes:
    """Of a little less than so many chunks: the rounds add some bytes."""
    return random.Random(number).randbytes(chunks * CHUNK_BYTES - 200)


async def trained_swarm(it: Swarm, count: int, *, chunks: int, large: int, **changes: object) -> list[FakeRuntime]:
    """Members that have published ROUNDS updates each, the last one beyond a mark, and follow each other. The first
    `large` have models of so many chunks, the others of one."""
    first = await it.start(1, **changes)
    rest = [await it.start(number, peers=(first.address,), **changes) for number in range(2, count + 1)]
    members = [first, *rest]
    for number, member in enumerate(members):
        await member.begin(snapshot=model_of(number, chunks if number < large else 1))
    await until(lambda: all(followed_by(member, members) for member in members), timeout_s=1000)
    for round_ in range(1, ROUNDS + 1):
        for member in members:
            await member.publish(round_)
        await until(lambda: all(followed_by(member, members) for member in members), timeout_s=1000)
    return members


def followed_by(member: FakeRuntime, others: list[FakeRuntime]) -> bool:
    """Whether these hold exactly what a member has published."""
    return all(other.follows(member) for other in others if other is not member)


def snapshots_in(node: FakeRuntime) -> list[int]:
    """The seqs of the snapshots that a node was given, bases aside."""
    return [update.seq for update in node.received if update.kind == "snapshot" and update.seq]


async def seconds_to_join(it: Swarm, members: list[FakeRuntime], count: int, **changes: object) -> float:
    """Until so many newcomers, all at once, hold the models of all members."""
    began = trio.current_time()
    known = tuple(member.address for member in members)
    newcomers = [await it.start(100 + number, peers=known, **changes) for number in range(count)]
    await until(lambda: all(followed_by(member, newcomers) for member in members), timeout_s=5000)
    return trio.current_time() - began


def sent(node: FakeRuntime) -> int:
    return node.service.stats.snapshot_bytes_sent


@dataclass(frozen=True)
class Crowd:
    """What newcomers of one time, with as many neighbours as a node has by default, took of whom."""

    last_s: float
    """Until the last of them had its models."""
    of_member: float
    """Models that the busiest member sent."""
    of_newcomer: float


async def crowd_to_join(it: Swarm, members: list[FakeRuntime], count: int, *, chunks: int, **changes: object) -> Crowd:
    """So many newcomers that know all members, and each of which gives a model of its own as soon as it has begun."""
    before, began = [sent(member) for member in members], trio.current_time()
    known = tuple(member.address for member in members)

    async def join(number: int) -> None:
        node = await it.start(100 + number, peers=known, **changes)
        await node.service.wait_for_neighbours(1, 1000)
        await _models_wanted(node)
        await node.begin(epoch=2000, round=ROUNDS, snapshot=model_of(1000 + number, chunks))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(join, number)
    size = chunks * CHUNK_BYTES
    return Crowd(
        last_s=trio.current_time() - began,
        of_member=max(sent(member) - already for member, already in zip(members, before, strict=True)) / size,
        of_newcomer=max(sent(node) for node in it.nodes[len(members) :]) / size,
    )


async def _models_wanted(node: FakeRuntime) -> None:
    """As node/training/joining.py has it, for f = 1: three models, or of all who have one to give after a while."""
    patient_until = trio.current_time() + 10.0
    while True:
        patient = trio.current_time() < patient_until
        there = sum(patient or it.gives for it in node.service.neighbours().values())
        wanted = max(1, min(3, there))
        if await node.service.wait_for_tracked(wanted, 0.5) >= wanted:
            return
