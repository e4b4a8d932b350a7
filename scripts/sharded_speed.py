"""What a swarm costs the ranks of a model in parts: steps a second with and without `p2ptrain.join`, in turns.

    python scripts/sharded_speed.py --ranks 2 --starts 6 --pairs 8 --steps 60

byte-lm nano under FSDP2 over gloo, rounds of 20 steps. Two sites run by turns, one stopped (SIGSTOP) while the other
takes its steps: one in a swarm with a neighbour that has no gradients, one alone. So both are timed on the same machine
in the same half minute, each first in every other pair. Processes of one program differ in speed for as long as they
live, so that all are started several times. Prints each pair's ratio; the mean of all with its standard error over the
starts; the same of the processor time of all processes of a site; what the neighbour took of the machine meanwhile; and
the share of the time that ranks spend in the swarm's call after a step.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from math import exp, log
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import p2ptrain
from node.system.script_end import ended_in_a_line
from p2ptrain.integrations.swarm import Swarm
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
ALONE, IN_SWARM = "alone", "in the swarm"
LONGEST = timedelta(minutes=10)
"""What a turn, or the start of a site, may take: a rank that died would else be waited for without a word."""


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
    """What the steps of one turn took."""

    seconds: float
    cpu_seconds: float
    """Of all processes of the site."""
    in_calls: float
    """Share of the ranks' time in the swarm's call after a step."""
    neighbour_cpu_seconds: float


def main() -> None:
    """Start the neighbour and both sites; or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=8, help="of turns, in each start")
    parser.add_argument("--steps", type=int, default=60, help="of a turn, whole rounds of 20")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--site", choices=(ALONE, IN_SWARM), help=argparse.SUPPRESS)
    parser.add_argument("--store", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if min(asked.ranks, asked.starts, asked.pairs, asked.steps, asked.batch) < 1:
        parser.error("all numbers are 1 or more")
    if asked.site is not None:
        rank_of_site(asked)
    elif asked.out is not None:
        neighbour(asked.out)
    else:
        compare(asked)


def compare(asked: argparse.Namespace) -> None:
    """Start both sites several times, and print what the steps of their turns took."""
    starts = [list(pairs_of(asked)) for _ in range(asked.starts)]
    within = [pair[1] for pairs in starts for pair in pairs]
    print(
        f"{asked.starts} starts of {asked.pairs} pairs: {_mean_ratio(starts, 'seconds')} of alone; "
        f"by CPU {_mean_ratio(starts, 'cpu_seconds')}; {fmean(each.in_calls for each in within):.2%} in the swarm's "
        f"calls; neighbour {_share_of_neighbour(within):.1%} of a core"
    )


def pairs_of(asked: argparse.Namespace) -> Iterator[tuple[Cost, Cost]]:
    """Start both sites, and yield what the steps of each pair of turns took, alone and in the swarm."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LONGEST)
    with tempfile.TemporaryDirectory() as folder, Site.started(asked, store, Path(folder)) as sites:
        for turn in range(asked.pairs):
            order = (ALONE, IN_SWARM) if turn % 2 else (IN_SWARM, ALONE)
            costs = {site: sites[site].turn(turn) for site in order}
            alone, within = costs[ALONE], costs[IN_SWARM]
            print(
                f"{asked.steps / within.seconds:.2f} steps/s, {alone.seconds / within.seconds:.3f} of alone; by CPU "
                f"{alone.cpu_seconds / within.cpu_seconds:.3f}; {within.in_calls:.2%} in the swarm's calls; neighbour "
                f"{_share_of_neighbour([within]):.1%} of a core",
                flush=True,
            )
            yield alone, within


def _mean_ratio(starts: list[list[tuple[Cost, Cost]]], what: str) -> str:
    """Say the geometric mean, with its standard error where there were several starts."""
    logs = [fmean(log(getattr(alone, what) / getattr(within, what)) for alone, within in pairs) for pairs in starts]
    middle = exp(fmean(logs))
    return f"{middle:.4f} +- {middle * stdev(logs) / len(logs) ** 0.5:.4f}" if len(logs) > 1 else f"{middle:.4f}"


def _share_of_neighbour(within: list[Cost]) -> float:
    return sum(each.neighbour_cpu_seconds for each in within) / sum(each.seconds for each in within)


class Site:
    """The processes of one site, which run while it has the turn."""

    def __init__(self, name: str, store: dist.TCPStore, roots: list[psutil.Process]) -> None:
        self._name, self._store = name, store
        self._site, *self._others = roots
        self._answer("ready")
        self._signal(signal.SIGSTOP)

    @classmethod
    @contextmanager
    def started(cls, asked: argparse.Namespace, store: dist.TCPStore, folder: Path) -> Iterator[dict[str, "Site"]]:
        """Run both sites meanwhile, the neighbour of the one with it."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(asked.ranks)]
        own = [__file__, f"--steps={asked.steps}", f"--batch={asked.batch}", f"--out={folder}"]
        threads = {**os.environ, "OMP_NUM_THREADS": "1"}
        began: list[psutil.Popen] = []

        def start(words: list[str]) -> psutil.Process:
            began.append(psutil.Popen(words, env=threads))
            return began[-1]

        try:
            of = {ALONE: cls(ALONE, store, [start([*torchrun, *own, f"--store={store.port}", f"--site={ALONE}"])])}
            partner = start([sys.executable, *own])
            site = start([*torchrun, *own, f"--store={store.port}", f"--site={IN_SWARM}"])
            yield {**of, IN_SWARM: cls(IN_SWARM, store, [site, partner])}
        finally:
            for process in [each for root in began for each in (*root.children(recursive=True), root)]:
                process.kill()

    def turn(self, number: int) -> Cost:
        """Let it take the steps of its turn, and return what they took."""
        self._signal(signal.SIGCONT)
        before = [_cpu_seconds(root) for root in (self._site, *self._others)]
        self._store.set(f"{self._name} go {number}", "")
        seconds, in_calls = map(float, self._answer(f"done {number}").split())
        after = [_cpu_seconds(root) for root in (self._site, *self._others)]
        self._signal(signal.SIGSTOP)
        taken, *neighbour = (now - then for now, then in zip(after, before, strict=True))
        return Cost(seconds, taken, in_calls, sum(neighbour))

    def _answer(self, what: str) -> str:
        """Wait for what the site says. By looking: an interrupt would wait for as long as the store does."""
        key, ends = f"{self._name} {what}", time.monotonic() + LONGEST.total_seconds()
        while not self._store.check([key]):
            if time.monotonic() > ends or not self._site.is_running():
                raise TimeoutError(f"the site {self._name} does not answer")
            time.sleep(0.02)
        return str(self._store.get(key).decode())

    def _signal(self, number: signal.Signals) -> None:
        for root in (self._site, *self._others):
            for process in (root, *root.children(recursive=True)):
                process.send_signal(number)


def _cpu_seconds(root: psutil.Process) -> float:
    """Return what a process and those that it has started have computed."""
    return sum(times.user + times.system for each in (root, *root.children(True)) for times in (each.cpu_times(),))


def task_and_model() -> tuple[ByteLM, nn.Module]:
    """Return the task, and the model that all begin with."""
    task = ByteLM(size="nano")
    torch.manual_seed(SEED)
    return task, task.build_model()


def neighbour(out: Path) -> None:
    """Take a step now and then, until killed: by no gradient, since what that takes is another machine's matter."""
    torch.set_num_threads(1)
    _, model = task_and_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with p2ptrain.join(
        model, optimizer, run_dir=out / "neighbour", inner_steps=ROUND, settings=SETTINGS, quiet=True
    ) as swarm:
        (out / "address.new").write_text(swarm.addresses[0])
        (out / "address.new").rename(out / "address")
        while True:
            optimizer.step()
            time.sleep(NEIGHBOUR_STEP_S)


def rank_of_site(asked: argparse.Namespace) -> None:
    """Take the steps of each turn, in the swarm or alone."""
    dist.init_process_group("gloo", timeout=LONGEST)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", asked.store, is_master=False, timeout=LONGEST)
    task, model = task_and_model()
    for block in model.blocks:  # type: ignore[union-attr]  # the task's own model
        fully_shard(block)  # type: ignore[arg-type]
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    called = Stopwatch()
    optimizer.register_step_post_hook(called.begin)  # hooks are called in the order of their registration
    shard = Shard(index=dist.get_rank(), count=dist.get_world_size())

    def steps(first: int, count: int) -> float:
        """Take so many, and return the seconds."""
        dist.barrier()
        began = time.perf_counter()
        for step in range(first, first + count):
            task.loss(model, task.train_batch(step, seed=0, shard=shard, size=asked.batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
        return time.perf_counter() - began

    with joined(asked, model, optimizer) if asked.site == IN_SWARM else nullcontext():
        optimizer.register_step_post_hook(called.end)
        steps(0, 2 * ROUND)
        dist.barrier()
        if dist.get_rank() == 0:
            store.set(f"{asked.site} ready", "")
        for turn in range(1_000_000):
            store.get(f"{asked.site} go {turn}")
            called.seconds = 0.0
            seconds = steps(2 * ROUND + turn * asked.steps, asked.steps)
            in_calls = torch.tensor(called.seconds / seconds)
            dist.all_reduce(in_calls)
            if dist.get_rank() == 0:
                store.set(f"{asked.site} done {turn}", f"{seconds} {in_calls.item() / dist.get_world_size()}")


def joined(asked: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> Swarm:
    """Join the neighbour's swarm."""
    ends = time.monotonic() + LONGEST.total_seconds()
    while not (asked.out / "address").exists():
        if time.monotonic() > ends:
            raise TimeoutError("the neighbour has written no address")
        time.sleep(0.1)
    return p2ptrain.join(
        model,
        optimizer,
        peers=[(asked.out / "address").read_text()],
        wait_for=1,
        run_dir=asked.out / "site",
        inner_steps=ROUND,
        settings=SETTINGS,
        quiet=True,
    )


if __name__ == "__main__":
    with ended_in_a_line():
        main()
