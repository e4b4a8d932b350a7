"""Members of one run over real libp2p on loopback, some of which nobody can dial."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from gossip.core.api import GossipEvent, Head, RunInfo, Update
from gossip.core.config import GossipConfig
from gossip.core.identity import Identity
from gossip.core.ids import Digest, RunId
from gossip.membership.private_swarm import PrivateMembership
from gossip.service import GossipService
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport

NOWHERE = ("/ip4/127.0.0.1/tcp/1",)
"""What a node announces that nobody can dial: connections there are refused."""

RUN = RunInfo(run_id=RunId(b"r" * 16), genesis=Digest(b"g" * 32))


class Member:
    """A service over real libp2p, and the updates that it was given."""

    def __init__(
        self, number: int, *, hidden: bool = False, private: PrivateMembership | None = None, **config: object
    ) -> None:
        identity = Identity(number.to_bytes(32, "big"))
        announce = NOWHERE if hidden else ()
        self.transport = Libp2pTransport(
            Libp2pConfig(announce=announce, dial_timeout_s=10.0),
            identity.seed,
            admission=None if private is None else private.admission,
        )
        self.events: list[GossipEvent] = []
        self.updates: list[Update] = []
        self.scope = trio.CancelScope()
        self.service = GossipService(
            identity=identity,
            transport=self.transport,
            config=GossipConfig(heartbeat_s=2.0, redial_min_s=0.25, redial_max_s=8.0, **config),
            run=RUN,
            rng=random.Random(number),
            snapshot_source=self._snapshot,
            observer=self.events.append,
            private=private,
        )

    @property
    def address(self) -> str:
        return self.transport.addresses[0]

    async def _snapshot(self) -> tuple[Head, bytes]:
        return self.service.head, b"a snapshot"

    async def consume(self) -> None:
        async for update in self.service.updates:
            self.updates.append(update)
            self.service.accepted(update)

    def follows(self, other: "Member") -> bool:
        return other.transport.peer_id in self.service.neighbours()

    def told(self) -> str:
        return " ".join(event.detail for event in self.events if event.name == "reachability")


@asynccontextmanager
async def living(*members: Member) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:

        async def live(member: Member, *, task_status: trio.TaskStatus[None]) -> None:
            with member.scope:
                async with trio.open_nursery() as inner:
                    await inner.start(member.service.run)
                    inner.start_soon(member.consume)
                    task_status.started()

        for member in members:
            await nursery.start(live, member)
        yield nursery
        nursery.cancel_scope.cancel()
