"""The two ends of `p2ptrain bench blob`: one makes random bytes and publishes them, the other fetches."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from node.bench.network.bench_member import joined
from node.bench.network.child import Orders, now, say
from node.bench.network.pipes import fetching, serving

MIB: Final = 1 << 20
CODEC: Final = "none"
"""Gossip wants a name, and asks nothing of it."""


@dataclass
class _Blob:
    """The bytes to be sent, made anew for each repetition."""

    rng: np.random.Generator
    data: bytes = field(default=b"", repr=False)

    def make(self, size: int) -> str:
        self.data = b""  # first: two of them may be more than there is room for
        self.data = self.rng.bytes(size)
        return digest_of([self.data])


def digest_of(parts: Iterable[bytes]) -> str:
    """Return the whole blob's BLAKE2b-256: the benchmark's own, beside those of the protocol's chunks."""
    hashed = hashlib.blake2b(digest_size=32)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


async def publisher(orders: Orders) -> None:
    """Run the publishing end: orders are `start`, then `make` and `publish` by turns. The other ways only need the
    bytes."""
    start = await orders.expect("start")
    size = start["mib"] * MIB
    blob = _Blob(np.random.default_rng(start["seed"]))
    async with joined(start["swarm"], [], 1, size) as member, serving(lambda: blob.data) as addresses:
        say("ready", addresses={"gossip": member.address, **addresses})
        await member.connect(1)
        round_ = 0
        while True:
            order = await orders.next()
            if order["do"] == "make":
                say("made", digest=blob.make(size))
                continue
            round_ += 1
            began = now()
            await member.service.publish(round=round_, codec=CODEC, payload=blob.data, steps=1, tokens=0)
            say("published", began=began, ended=now())


async def fetcher(orders: Orders) -> None:
    """Run the fetching end: orders are `start`, then `fetch` in a way that is named. By gossip it only waits for the
    announcement."""
    start = await orders.expect("start")
    size, addresses = start["mib"] * MIB, start["addresses"]
    async with joined(start["swarm"], [addresses["gossip"]], 1, size) as member, fetching(addresses) as ways:
        say("connected", seconds=await member.connect(1))
        while True:
            order = await orders.expect("fetch")
            began, parts = now(), []
            if order["way"] == "gossip":
                arrival = await member.arrivals.receive()
                ended, parts = arrival.at, [arrival.update.payload or b""]
                del arrival
            else:
                parts = await ways[order["way"]](size)
                ended = now()
            say("fetched", began=began, ended=ended, digest=digest_of(parts))
            del parts
