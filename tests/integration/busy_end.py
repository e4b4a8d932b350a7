"""A member that trains and moves a large blob both ways at once: `python busy_end.py MIB TIMES JOIN...`.

Trains a byte-level GPT in a thread, as a node does, and measures how much later than asked the event loop wakes. Prints
JSON lines: `started`, and for each exchange `done` with the lags (seconds), from the announcement until both ends have
each other's blob.
"""

import json
import sys
import time
from functools import partial

import numpy as np
import trio

from node.bench.network.bench_member import BenchMember, joined
from node.system.gc_tuning import SWITCH_INTERVAL_S
from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer

MIB = 1 << 20
EVERY_S = 0.01
SERVED_S = 3.0
"""After our own has come: the other end may still be at it."""


def tell(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "pid": 0, **fields}), flush=True)


class Training:
    """Steps without end, in a thread."""

    def __init__(self) -> None:
        config = TrainConfig(threads=1, device="cpu", batch_size=8)
        task = tasks.get("byte-lm", size="nano")
        self._trainer = Trainer(task, config, Shard(index=0, count=1), data_seed=0)
        self.steps = 0
        self.over = False

    def run(self) -> None:
        while not self.over:
            self._trainer.step()
            self.steps += 1


async def measure(lags: list[float]) -> None:
    while True:
        due = trio.current_time() + EVERY_S
        await trio.sleep_until(due)
        lags.append(trio.current_time() - due)


async def exchange(member: BenchMember, payload: bytes, number: int, training: Training) -> None:
    """Both ends publish at once; each waits for the other's."""
    lags: list[float] = []
    steps, began = training.steps, time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(measure, lags)
        await member.service.publish(round=number, codec="none", payload=payload, steps=1, tokens=0)
        arrival = await member.arrivals.receive()
        seconds = time.perf_counter() - began
        size = len(arrival.update.payload or b"")
        await trio.sleep(SERVED_S)
        nursery.cancel_scope.cancel()
    tell("done", lags=lags, seconds=seconds, size=size, steps=training.steps - steps)


async def main(mib: int, times: int, join: list[str]) -> None:
    training = Training()
    payload = np.random.default_rng(len(join)).bytes(mib * MIB)
    async with joined("lag", join, 1, mib * MIB) as member, trio.open_nursery() as nursery:
        tell("started", address=member.address)
        await member.connect(1)
        nursery.start_soon(partial(trio.to_thread.run_sync, training.run, abandon_on_cancel=True))
        for number in range(times):
            await exchange(member, payload, number + 1, training)
        training.over = True
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as in a node's process
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
