"""Somebody beside the real nodes of a simulated swarm who speaks the protocol, and has no model to train."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from sim_swarm import Member, Swarm

from gossip.core.api import Head
from gossip.core.config import GossipConfig
from gossip.core.identity import Identity
from gossip.service import GossipService


@asynccontextmanager
async def stranger(members: Swarm, victim: Member, number: int, *, model: bytes = b"") -> AsyncIterator[GossipService]:
    """A key of its own in the victim's run; `model` is what it offers as a snapshot, if anything. It is gone with the
    block, without a word."""
    identity = Identity(bytes([1]) * 28 + number.to_bytes(4, "big"))
    transport = members.network.attach(identity.peer_id)

    async def snapshot() -> tuple[Head, bytes]:
        if not model:
            raise NotImplementedError("it has none")
        return service.head, model

    service = GossipService(
        identity=identity,
        transport=transport,
        config=GossipConfig(
            swarm=victim.node.config.network.swarm,
            peers=tuple(member.transport.addresses[0] for member in members.members.values()),
            hash_in_thread_above=1 << 40,
        ),
        run=victim.node.service._run_info,
        rng=random.Random(number),
        snapshot_source=snapshot,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield service
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Poll on the virtual clock; fails the test after `timeout_s` of it."""
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110  # any state of any node, on a clock that costs nothing
            await trio.sleep(0.05)
