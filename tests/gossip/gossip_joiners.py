"""A swarm that has trained for a while, and newcomers to it that have to take its models."""

import random

import trio
from gossip_swarm import FakeRuntime, Swarm, until

from gossip.protocol.limits import CHUNK_BYTES, MARK_EVERY

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
