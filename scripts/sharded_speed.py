"""What a swarm costs the ranks of a model in parts: steps a second inside and outside of `p2ptrain.join`, in turns.

    python scripts/sharded_speed.py --ranks 2 --turns 6 --steps 100

byte-lm nano under FSDP2 over gloo, rounds of 20 steps, with one neighbour of one process that takes a step now and
then: what is timed has the cores to itself but for that. Prints each turn's ratio and the median; for a machine that
others use meanwhile the same of the ranks' CPU seconds, all threads counted; and the share of the time that ranks spend
in the swarm's call after a step, which differs less from turn to turn.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import p2ptrain
from node.system.script_end import ended_in_a_line
from p2ptrain.tasks import ByteLM, Shard

ROUND = 20
SEED = 0
SETTINGS: dict[str, object] = {
    "network.listen": ["/ip4/127.0.0.1/tcp/0"],
    "network.upnp": False,
    "node.metrics_port": -1,
    "node.linger_s": 1.0,
}
NEIGHBOUR_STEP_S = 0.5


class Stopwatch:
    """Counts the seconds between two hooks of an optimizer."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0

    def begin(self, *given: object) -> None:
        """Begin to count."""
        self._began = time.perf_counter()

    def end(self, *given: object) -> None:
        """Count."""
        self.seconds += time.perf_counter() - self._began


class Cost(NamedTuple):
    """What steps take, or two such in proportion."""

    seconds: float
    cpu_seconds: float
    """Of all ranks."""


def main() -> None:
    """Start the neighbour and the ranks; or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if "RANK" in os.environ:
        rank_of_site(asked)
    elif asked.out is not None:
        neighbour(asked.out)
    else:
        with tempfile.TemporaryDirectory() as folder, started_neighbour(Path(folder)):
            words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(asked.ranks)]
            own = [f"--turns={asked.turns}", f"--steps={asked.steps}", f"--batch={asked.batch}", f"--out={folder}"]
            threads = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, *words, __file__, *own], env=threads, check=True)


@contextmanager
def started_neighbour(folder: Path) -> Iterator[None]:
    """Run the neighbour meanwhile."""
    with subprocess.Popen([sys.executable, __file__, "--out", str(folder)]) as process:
        try:
            yield
        finally:
            process.kill()


def task_and_model() -> tuple[ByteLM, nn.Module]:
    """Return the task, and the model that all begin with."""
    task = ByteLM(size="nano")
    torch.manual_seed(SEED)
    return task, task.build_model()


def neighbour(out: Path) -> None:
    """Take a step now and then, until killed."""
    torch.set_num_threads(1)
    task, model = task_and_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with p2ptrain.join(
        model, optimizer, run_dir=out / "neighbour", inner_steps=ROUND, settings=SETTINGS, quiet=True
    ) as swarm:
        (out / "address.new").write_text(swarm.addresses[0])
        (out / "address.new").rename(out / "address")
        for step in range(1_000_000):
            task.loss(model, task.train_batch(step, seed=1, shard=Shard(index=0, count=2), size=2)).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(NEIGHBOUR_STEP_S)


def rank_of_site(asked: argparse.Namespace) -> None:
    """Time steps alone, in the swarm, and alone again."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    while not (asked.out / "address").exists():
        time.sleep(0.1)
    address = (asked.out / "address").read_text()
    task, model = task_and_model()
    for block in model.blocks:  # type: ignore[union-attr]  # the task's own model
        fully_shard(block)  # type: ignore[arg-type]
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    called = Stopwatch()
    optimizer.register_step_post_hook(called.begin)  # hooks are called in the order of their registration
    shard = Shard(index=dist.get_rank(), count=dist.get_world_size())

    def steps(first: int, count: int) -> Cost:
        """What so many steps take."""
        dist.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        for step in range(first, first + count):
            task.loss(model, task.train_batch(step, seed=0, shard=shard, size=asked.batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
        taken = torch.tensor(time.process_time() - cpu, dtype=torch.float64)
        dist.all_reduce(taken)
        return Cost(time.perf_counter() - began, taken.item())

    begun = [parameter.detach().clone() for parameter in model.parameters()]
    steps(0, 2 * ROUND)
    ratios: list[Cost] = []
    shares: list[float] = []
    after = steps(0, asked.steps)
    for turn in range(asked.turns):
        before = after
        with torch.no_grad():  # members begin with one model
            for parameter, value in zip(model.parameters(), begun, strict=True):
                parameter.copy_(value)
        with p2ptrain.join(
            model,
            optimizer,
            peers=[address],
            wait_for=1,
            run_dir=asked.out / f"site-{turn}",
            inner_steps=ROUND,
            settings=SETTINGS,
            quiet=True,
        ) as swarm:
            ends = optimizer.register_step_post_hook(called.end)
            steps(0, ROUND)
            called.seconds = 0.0
            within = steps(ROUND, asked.steps)
            ends.remove()
            rounds = swarm.round if swarm.has_node else 0
        after = steps(0, asked.steps)
        ratios.append(
            Cost(
                (before.seconds + after.seconds) / 2 / within.seconds,
                (before.cpu_seconds + after.cpu_seconds) / 2 / within.cpu_seconds,
            )
        )
        in_calls = torch.tensor(called.seconds / within.seconds)
        dist.all_reduce(in_calls)
        shares.append(in_calls.item() / dist.get_world_size())
        if dist.get_rank() == 0:
            speed, ratio = asked.steps / within.seconds, ratios[-1]
            print(
                f"turn {turn}: {speed:.2f} steps/s, {ratio.seconds:.3f} of alone; {rounds} rounds; "
                f"by CPU {ratio.cpu_seconds:.3f}; {shares[-1]:.2%} in the swarm's calls",
                flush=True,
            )
    if dist.get_rank() == 0:
        middle = Cost(*(median(each) for each in zip(*ratios, strict=True)))
        print(
            f"median of {asked.turns}: {middle.seconds:.3f}; by CPU {middle.cpu_seconds:.3f}; {median(shares):.2%} in "
            "the swarm's calls",
            flush=True,
        )
    dist.barrier()
    os._exit(0)  # gloo's threads outlive the group, and may abort a process that ends


if __name__ == "__main__":
    with ended_in_a_line():
        main()
