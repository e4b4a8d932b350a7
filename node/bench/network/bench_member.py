"""A member of a swarm without a trainer: gossip's own service over libp2p on loopback, built as a node builds it."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from gossip.core.api import GossipEvent, Head, RunInfo, Update
from gossip.core.config import GossipConfig
from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.core.ids import Digest, RunId
from gossip.service import GossipService
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from node.bench.network.child import now, say
from node.system.errors import RunError

LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
RUN: Final = RunInfo(run_id=RunId(b"p2ptrain bench.."), genesis=Digest(bytes(32)))
HISTORY: Final = 2
"""Links kept with their payloads. One would do, as nobody is ever behind; a node's eight would be gigabytes."""
CONNECTING_S: Final = 30.0
"""For neighbours to find each other: three heartbeats, with each of which a member tells of those it knows."""


@dataclass(frozen=True)
class Arrival:
    """A neighbour's payload, verified, and when it came (`now`)."""

    update: Update
    at: float


class BenchMember:
    """A running member. `arrivals` has each neighbour's payloads in order; all of them count as accepted."""

    def __init__(self, service: GossipService, transport: Libp2pTransport) -> None:
        self.service = service
        self.peer_id = transport.peer_id
        self._transport = transport
        self._began = now()
        # Without a bound: a round is over before the next begins, so there is one payload a neighbour at most.
        self._arrived, self.arrivals = trio.open_memory_channel[Arrival](float("inf"))

    @property
    def address(self) -> str:
        """Return the address where others dial it."""
        return self._transport.addresses[0]

    async def connect(self, others: int) -> float:
        """Wait until so many neighbours are there and their chains followed. Returns seconds since our own start."""
        found = await self.service.wait_for_neighbours(others, CONNECTING_S)
        tracked = await self.service.wait_for_tracked(others, CONNECTING_S)
        if min(found, tracked) < others:
            raise RunError(f"found {found} of {others} neighbours within {CONNECTING_S:.0f} s, and {tracked} answered")
        return now() - self._began

    async def take(self) -> None:
        """Accept every update, until cancelled."""
        async for update in self.service.updates:
            at = now()
            self.service.accepted(update)
            if update.kind == "delta":
                self._arrived.send_nowait(Arrival(update, at))


@asynccontextmanager
async def joined(
    swarm: str,
    join: Sequence[str],
    others: int,
    most_bytes: int,
    *,
    listen: str = LOOPBACK,
    announce: Sequence[str] = (),
) -> AsyncIterator[BenchMember]:
    """Run a member of `swarm` while the block lasts; payloads have at most `most_bytes`."""
    identity = Identity.generate()
    transport = Libp2pTransport(Libp2pConfig(listen=(listen,), announce=tuple(announce), swarm=swarm), identity.seed)
    config = GossipConfig(
        swarm=swarm,
        peers=tuple(join),
        degree=max(GossipConfig.degree, others),
        max_payload_bytes=most_bytes,
        history=HISTORY,
    )
    service = GossipService(
        identity=identity,
        transport=transport,
        config=config,
        run=RUN,
        rng=random.Random(),
        snapshot_source=_no_snapshot,
        observer=_tell,
    )
    member = BenchMember(service, transport)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        nursery.start_soon(member.take)
        await service.begin_epoch(epoch=1, round=0, snapshot=None)
        yield member
        nursery.cancel_scope.cancel()


async def _no_snapshot() -> tuple[Head, bytes]:
    raise LocalError("there is no model to be sent")


def _tell(event: GossipEvent) -> None:
    if event.name in ("rejected", "banned", "neighbour_lost", "dial_failed", "warning"):
        reason = f" {event.reason}" if event.reason is not None else ""
        say("note", text=f"{event.name}{reason} {event.detail}".strip())
