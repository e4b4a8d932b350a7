"""A member that trains and exchanges payloads at the same time, for `p2ptrain bench calibrate`.

What an exchange takes on a machine whose cores train is mostly waiting: an event loop shares its interpreter with the
steps, and the cores with other members. So it is measured as nodes have it: a trainer in a thread of each member.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
import trio

from node.bench.network.bench_member import BenchMember, joined
from node.bench.network.child import Order, Orders, now, say
from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import Trainer
from p2ptrain.training.train_config import TrainConfig

CODEC: Final = "none"
ARRIVING_S: Final = 10.0
"""That a payload may take: beyond it the machine is no measure of anything."""


async def exchanger(orders: Orders) -> None:
    """Run one member: orders are `start`, `meet` with the addresses of others, and `exchange`."""
    start = await orders.expect("start")
    trainer = _trainer(start)
    others = start["count"] - 1
    async with joined(start["swarm"], start["addresses"], others, start["bytes"]) as member:
        say("ready", address=member.address)
        await orders.expect("meet")
        say("met", seconds=await member.connect(others))
        while True:
            await _exchange(member, trainer, await orders.expect("exchange"), start["bytes"], others)


def _trainer(start: Order) -> Trainer:
    torch.set_num_threads(start["threads"])
    config = TrainConfig(
        batch_size=start["batch"], threads=start["threads"], device=start["device"], warmup_steps=0, rounds=1 << 20
    )
    shard = Shard(index=start["index"], count=start["count"])
    return Trainer(tasks.get(**start["task"]), config, shard, data_seed=start["index"])


async def _exchange(member: BenchMember, trainer: Trainer, order: Order, size: int, others: int) -> None:
    """Publish payload after payload while the trainer steps. Tells when each was published, when each of the others'
    came, the processor's seconds that the event loop took, and steps and seconds with exchanges and, before and after,
    without: what else runs on the machine changes meanwhile, and so most of it does no harm."""
    rng, published, arrived = random.Random(str(member.peer_id)), [], []
    quiet_s = order["period_s"] * order["times"] / 2
    with _stepping(trainer.step) as taken:
        begins = now(), taken[0]
        await trio.sleep(quiet_s)
        starts = now(), taken[0]
        began = time.thread_time()
        for number in range(order["times"]):
            # All at once, as nodes do: who waits for a quorum ends its next round with the others.
            await trio.sleep(-now() % order["period_s"])
            round_ = order["first"] + number
            published.append(now())
            await member.service.publish(round=round_, codec=CODEC, payload=rng.randbytes(size), steps=1, tokens=0)
            with trio.move_on_after(ARRIVING_S):
                for _ in range(others):
                    arrived.append(await member.arrivals.receive())
        loop_s = time.thread_time() - began
        ends = now(), taken[0]
        await trio.sleep(quiet_s)
        over = now(), taken[0]
    say(
        "exchanged",
        peer=str(member.peer_id),
        published=published,
        arrived=[[str(it.update.peer), it.update.round, it.at] for it in arrived],
        loop_s=loop_s,
        exchanging=[ends[0] - starts[0], ends[1] - starts[1]],
        quiet=[starts[0] - begins[0] + over[0] - ends[0], starts[1] - begins[1] + over[1] - ends[1]],
    )


@contextmanager
def _stepping(step: Callable[[], object]) -> Iterator[list[int]]:
    """Take steps in a thread of its own while the block lasts; the list holds how many."""
    over, taken = threading.Event(), [0]

    def run() -> None:
        while not over.is_set():
            step()
            taken[0] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()
