"""A member with a model of 25M parameters and a slow uplink, as a program: `big_donor.py NUMBER FOLDER [lies] PEERS`

Its estimate after link s is s in 8 bytes, and then its body, which lies in a file: an update says no more than that s
is another. The program trains beside five others, says so, and gives its model to whoever comes, until it is killed.
One that lies offers another state than it has told everybody.
"""

import json
import mmap
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trio

from gossip.blobs.blob import blob_manifest_of
from gossip.core.api import Head, RunInfo, Tracked, Update
from gossip.core.config import GossipConfig
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId, RunId
from gossip.core.limits import MARK_EVERY, MIB
from gossip.service import GossipService
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport

DONORS = range(1, 7)
SIZE = 4 * 25_000_000
PLACE_BYTES = 8
LIFE_S = 900.0
"""A donor whose test was killed ends by itself."""

RUN = RunInfo(run_id=RunId(b"r" * 16), genesis=Digest(b"g" * 32))
UP = 2.0 * MIB


def identity(number: int) -> Identity:
    return Identity(number.to_bytes(32, "big"))


def make_bodies(folder: Path) -> None:
    for number in DONORS:
        (folder / f"{number}").write_bytes(random.Random(number).randbytes(SIZE - PLACE_BYTES))


class Bodies:
    """All donors', read from their files as they are wanted."""

    def __init__(self, folder: Path) -> None:
        self._maps: dict[PeerId, mmap.mmap] = {}
        for number in DONORS:
            with (folder / f"{number}").open("rb") as file:
                self._maps[identity(number).peer_id] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def state(self, peer: PeerId, seq: int) -> bytes:
        return seq.to_bytes(PLACE_BYTES, "big") + self._maps[peer][:]

    def marked(self, number: int) -> Digest:
        """The address of a donor's state that newcomers are offered."""
        return blob_manifest_of(self.state(identity(number).peer_id, MARK_EVERY)).address


class Member:
    """One of them, or a newcomer."""

    def __init__(self, number: int, bodies: Bodies, peers: tuple[str, ...]) -> None:
        key = identity(number)
        self.peer = key.peer_id
        self.transport = Libp2pTransport(Libp2pConfig(listen=("/ip4/127.0.0.1/tcp/0",)), key.seed)
        self.applied: dict[PeerId, int] = {}
        self.taken: dict[PeerId, Digest] = {}
        self.seq = 0
        self.lie: bytes | None = None
        self._bodies = bodies
        self.service = GossipService(
            identity=key,
            transport=self.transport,
            config=GossipConfig(peers=peers, up_bytes_per_s=UP, redial_min_s=0.25, max_payload_bytes=SIZE + MIB),
            run=RUN,
            rng=random.Random(number),
            snapshot_source=self._snapshot,
            tracked=Tracked(estimate=self._estimate),
        )

    async def live(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run)
            nursery.start_soon(self._consume)
            task_status.started()

    async def train(self) -> None:
        """Until its newest link is beyond a mark that all others have found true."""
        await until(lambda: len(self.service.neighbours()) == len(DONORS) - 1)
        await self.service.begin_epoch(epoch=1000, round=0, snapshot=None)
        for seq in range(1, MARK_EVERY + 2):
            self.seq = seq
            await self.service.publish(
                round=seq, codec="none", payload=b"%d" % seq, steps=1, tokens=1, state=self._state
            )
            await until(lambda seq=seq: self.level_at(seq))  # type: ignore[misc]

    def level_at(self, seq: int, donors: range | tuple[int, ...] = DONORS) -> bool:
        """Whether it holds what these have published up to there."""
        others = (identity(number).peer_id for number in donors)
        return all(self.applied.get(peer, -1) >= seq for peer in others if peer != self.peer)

    def begin_to_lie(self) -> None:
        self.lie = random.Random(77).randbytes(SIZE)
        self.service._engine.publisher._offers.clear()  # it cuts another one for whoever asks

    async def _state(self) -> bytes:
        return self.lie or self._bodies.state(self.peer, self.seq)

    async def _snapshot(self) -> tuple[Head, bytes]:
        return self.service.head, await self._state()

    async def _estimate(self, peer: PeerId) -> bytes | None:
        return self._bodies.state(peer, self.applied[peer]) if peer in self.applied else None

    async def _consume(self) -> None:
        async for update in self.service.updates:
            self._take(update)
            self.service.accepted(update)

    def _take(self, update: Update) -> None:
        self.applied[update.peer] = update.seq
        if update.kind == "snapshot":
            assert update.payload is not None
            self.taken[update.peer] = blob_manifest_of(update.payload).address


async def until(condition: Callable[[], bool], within_s: float = LIFE_S) -> None:
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.05)


def tell(event: str, **fields: object) -> None:
    print(json.dumps({"ts": time.time(), "event": event, "pid": os.getpid(), **fields}), flush=True)


async def main(number: int, folder: Path, peers: tuple[str, ...], *, lies: bool) -> None:
    member = Member(number, Bodies(folder), peers)
    with trio.move_on_after(LIFE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda *, task_status: member.live(task_status=task_status))
            tell("started", address=member.transport.addresses[0])
            await member.train()
            tell("trained")
            if lies:
                await trio.sleep(2.0)  # the others may still compare what it named with what they hold
                member.begin_to_lie()
                tell("lies")


if __name__ == "__main__":
    given = sys.argv[3:]
    trio.run(
        lambda: main(
            int(sys.argv[1]), Path(sys.argv[2]), tuple(it for it in given if it != "lies"), lies="lies" in given
        )
    )
