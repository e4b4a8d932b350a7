"""What a secure sum costs beside a plain exchange of the same vectors: seconds, and bytes, in one process.

    python scripts/secure_sum_cost.py --members 8 --values 10000000 --bits 32

All members are real services over the in-memory network, on the real clock, and share this machine's cores. Each run
does the plain exchange (4 bytes a value, summed as fp32) and the secure sum in turn. Bytes are all that is written to
streams; what the arithmetic says is the vectors' chunks alone:

    owners * (members - 1) * B + (members - owners) * B,    B = values * bits / 8

since every owner of a part but the vector's own member pulls it of each vector, and all that do not own it pull its
sum. Prints a line a run, then the medians.
"""

import argparse
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Final

import numpy as np
import trio

from gossip.allreduce.allreduce import Group
from gossip.core.api import Head, RunInfo
from gossip.core.config import GossipConfig
from gossip.core.digests import digest_of
from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId, RunId
from gossip.core.limits import CHUNK_BYTES
from gossip.secure_aggregation.packing import Values
from gossip.secure_aggregation.secure_group import SecureGroup, SecureSum
from gossip.service import GossipService
from gossip.transport.memory.network import MemoryNetwork
from gossip.transport.memory.traffic_tap import StreamTap
from node.system.script_end import ended_in_a_line

PATIENCE_S: Final = 900.0
"""Seconds for one exchange: nobody is late here."""

RUN: Final = RunInfo(run_id=RunId(b"r" * 16), genesis=digest_of(b"no model"))


class StreamBytes:
    """Counts what is written to streams."""

    def __init__(self) -> None:
        self.total = 0

    def broadcast(self, *args: object, **kwargs: object) -> None:
        """Count no broadcast: there is none of a sum."""

    def stream(self, *args: object) -> StreamTap:
        """Count the bytes of a stream."""

        def count(sender: PeerId, data: bytes | memoryview) -> None:
            self.total += len(data)

        return count


def arithmetic(members: int, owners: int, vector_bytes: int) -> int:
    """Return the bytes of chunks of a sum of which nobody is late, where all parts are alike."""
    return owners * (members - 1) * vector_bytes + (members - owners) * vector_bytes


async def service_of(network: MemoryNetwork, number: int, config: GossipConfig, nursery: trio.Nursery) -> GossipService:
    """Start a member that trains nothing."""
    identity = Identity(number.to_bytes(32, "big"))

    async def no_snapshot() -> tuple[Head, bytes]:
        raise AssertionError("nobody asks for one")

    service = GossipService(
        identity=identity,
        transport=network.attach(identity.peer_id),
        config=config,
        run=RUN,
        rng=random.Random(number),
        snapshot_source=no_snapshot,
    )
    await nursery.start(lambda *, task_status: service.run(task_status=task_status))
    await service.begin_epoch(epoch=1000, round=0, snapshot=None)
    return service


def summed(vectors: Mapping[PeerId, bytes | memoryview]) -> bytes:
    """Add fp32 vectors."""
    total = np.zeros(len(next(iter(vectors.values()))) // 4, np.float32)
    for data in vectors.values():
        total += np.frombuffer(data, np.float32)
    return total.tobytes()


async def plain(services: list[GossipService], group: Group, inputs: list[Values]) -> float:
    """Return the seconds of a plain exchange."""
    began = time.perf_counter()

    async def one(service: GossipService, values: Values) -> None:
        data = values.astype(np.float32).tobytes()
        parts = await service.exchange(group, data, summed, gather_s=PATIENCE_S, timeout_s=PATIENCE_S)
        assert all(part.data is not None for part in parts)

    async with trio.open_nursery() as nursery:
        for service, values in zip(services, inputs, strict=True):
            nursery.start_soon(one, service, values)
    return time.perf_counter() - began


async def secure(services: list[GossipService], group: SecureGroup, inputs: list[Values], expected: Values) -> float:
    """Return the seconds of a secure sum, which is checked afterwards."""
    results: list[SecureSum] = []
    began = time.perf_counter()

    async def one(service: GossipService, values: Values) -> None:
        results.append(await service.sum_securely(group, values, gather_s=PATIENCE_S, timeout_s=2 * PATIENCE_S))

    async with trio.open_nursery() as nursery:
        for service, values in zip(services, inputs, strict=True):
            nursery.start_soon(one, service, values)
    took = time.perf_counter() - began
    for result in results:
        assert len(result.survivors) == len(services)
        assert np.array_equal(result.values(), expected)
    return took


async def measure(options: argparse.Namespace) -> None:
    """Do all runs and print what they took."""
    network = MemoryNetwork(random.Random(1))
    first = Identity((1).to_bytes(32, "big")).peer_id
    config = GossipConfig(
        degree=max(8, options.members - 1),
        request_timeout_s=PATIENCE_S,
        heartbeat_s=PATIENCE_S,
        silence_s=5 * PATIENCE_S,
    )
    async with trio.open_nursery() as nursery:
        services = [await service_of(network, 1, config, nursery)]
        address = services[0]._context.transport.addresses[0]
        joining = replace(config, peers=(address,))
        for number in range(2, options.members + 1):
            services.append(await service_of(network, number, joining, nursery))
        for service in services:
            await service.wait_for_neighbours(options.members - 1, PATIENCE_S)
        assert first == services[0]._context.engine.me
        members = tuple(service._context.engine.me for service in services)
        draw = np.random.default_rng(1)
        inputs = [draw.integers(0, 1 << options.bits, options.values, dtype=np.uint32) for _ in members]
        expected = np.zeros(options.values, np.uint32)
        for values in inputs:
            expected += values
        expected &= np.uint32((1 << options.bits) - 1)
        rows = []
        for round_ in range(1, options.runs + 1):
            group = Group(members=members, round=round_, size=4 * options.values, chunk_bytes=options.chunk_bytes)
            plain_s = await plain(services, group, inputs)
            tap = network.tap = StreamBytes()
            sizes = {"bits": options.bits, "owners": options.owners, "chunk_bytes": options.chunk_bytes}
            secure_group = SecureGroup(members=members, round=round_, count=options.values, **sizes)
            secure_s = await secure(services, secure_group, inputs, expected)
            network.tap = None
            said = arithmetic(options.members, options.owners, secure_group.packed_bytes)
            rows.append((plain_s, secure_s, tap.total / said))
            print(
                f"run {round_}: plain {plain_s:.2f} s, secure {secure_s:.2f} s, {secure_s / plain_s:.2f} times; ",
                end="",
            )
            print(f"{tap.total} bytes on streams, {said} by the arithmetic: {100 * (tap.total / said - 1):+.2f}%")
        ratio = median(secure_s / plain_s for plain_s, secure_s, _ in rows)
        print(f"median of {len(rows)}: {ratio:.2f} times the plain exchange")
        nursery.cancel_scope.cancel()


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description="What a secure sum costs beside a plain exchange.")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--owners", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--chunk-bytes", type=int, default=CHUNK_BYTES // 4)
    options = parser.parse_args()
    try:
        SecureGroup(
            members=tuple(PeerId(str(number)) for number in range(options.members)),
            round=0,
            count=options.values,
            bits=options.bits,
            owners=options.owners,
            chunk_bytes=options.chunk_bytes,
        )
    except LocalError as error:
        parser.error(str(error))
    if options.runs < 1:
        parser.error("--runs must be 1 or more")
    trio.run(measure, options)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
