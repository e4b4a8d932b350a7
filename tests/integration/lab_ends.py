"""One end of a bulk exchange in the network lab: `python lab_ends.py LISTEN ANNOUNCE MIB PUBLISHES JOIN...`.

Members of a swarm without a trainer. One that publishes sends a blob of MIB mebibytes PUBLISHES times, each when all
others have the one before; one with PUBLISHES = 0 only takes. Every arrival is told as a JSON line. ANNOUNCE and JOIN
may be `-`.
"""

import json
import random
import sys
import time

import trio

from node.bench.network.bench_member import BenchMember, joined

MIB = 1 << 20
UNDER_WAY_S = 3.0
"""What is sent may be on its way still: 4 MiB asked ahead are 1.7 s at 20 Mbit/s."""


def tell(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "at": time.time(), **fields}), flush=True)


async def main(listen: str, announce: str, mib: int, publishes: int, join: list[str]) -> None:
    """Until killed."""
    async with joined(
        "lab",
        [peer for peer in join if peer != "-"],
        1,
        mib * MIB,
        listen=listen,
        announce=[announce] if announce != "-" else [],
    ) as member:
        tell("started", address=member.address, pid=0)
        if publishes:
            await member.connect(1)
            await publish(member, mib, publishes)
        while True:
            arrival = await member.arrivals.receive()
            size = len(arrival.update.payload or b"")
            tell("arrived", round=arrival.update.round, size=size)


async def publish(member: BenchMember, mib: int, publishes: int) -> None:
    """Blobs of random bytes, one after another."""
    rng = random.Random(mib)
    for number in range(1, publishes + 1):
        payload = rng.randbytes(mib * MIB)
        before = member.service.stats.payload_bytes_sent
        tell("publishing", round=number)
        await member.service.publish(round=number, codec="none", payload=payload, steps=1, tokens=0)
        while member.service.stats.payload_bytes_sent - before < len(payload):  # noqa: ASYNC110
            await trio.sleep(0.05)
        await trio.sleep(UNDER_WAY_S)
        tell("served", round=number)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
