"""Measure the event loop's lag while training keeps Python's interpreter lock for half a second at a time.

    python scripts/loop_lag.py [--of join|node] [--seconds 30] [--hold 0.5]

Two members over loopback, one process each; both hold the lock in one C call (`sum(range(n))`) at every step of a model
of 1.6 million parameters. `join`: in a loop of a user's own; `node`: in the loss of a task of `p2ptrain node`. For each
lane (`node.lane`): quantiles of the lag, from the node's own `/metrics`, rounds closed, and examples a second of the
first member. The buckets of the histogram bound what can be told. `--hold 0`: what the lanes cost without such a loop.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

import p2ptrain
from node.system.script_end import ended_in_a_line
from p2ptrain.tasks.base import Batch, Shard

LAG = re.compile(r'event_loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)')
SIZE = 1_000
LANES = ("thread", "process")
LOOK_S = 0.5


def held(seconds: float) -> int:
    """Return how many numbers to sum for `seconds`."""
    began = time.perf_counter()
    sum(range(10_000_000))
    return int(10_000_000 * seconds / (time.perf_counter() - began))


def model_of() -> nn.Module:
    """Return the model that is trained."""
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 600))


def quantile(buckets: list[tuple[float, float]], part: float) -> float:
    """Return the upper bound of the bucket with this quantile."""
    return next(bound for bound, count in buckets if count >= part * buckets[-1][1])


def lag_at(page: str) -> str:
    """Return the quantiles of the lag at the node's page, in words."""
    with urllib.request.urlopen(f"{page.rstrip('/')}/metrics") as answer:
        text = answer.read().decode()
    found = [(float(bound), float(count)) for bound, count in LAG.findall(text)]
    shown = ", ".join(f"p{100 * part:g} <= {1000 * quantile(found, part):g} ms" for part in (0.5, 0.9, 0.99, 1.0))
    return f"{shown} ({found[-1][1]:g} samples)"


def bare_lag(seconds: float) -> float:
    """Return by how much this process, which does nothing else, slept too long at most: the machine's own lag."""
    ends, worst = time.monotonic() + seconds, 0.0
    while (began := time.monotonic()) < ends:
        time.sleep(LOOK_S)
        worst = max(worst, time.monotonic() - began - LOOK_S)
    return worst


class Holding:
    """A task whose loss holds the lock, as code of a user's own may: `count` numbers are summed."""

    name = "holding"
    metric = "mean square"
    units: ClassVar[dict[str, str]] = {}

    def __init__(self, count: int) -> None:
        self.count = count

    def build_model(self) -> nn.Module:
        """Return the model."""
        return model_of()

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Return rows of noise."""
        return (torch.randn(size, SIZE, generator=torch.Generator().manual_seed(hash((seed, step)))),)

    def eval_batches(self, limit: int) -> list[Batch]:
        """Return one batch."""
        return [self.train_batch(0, seed=1, shard=Shard(), size=8)]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss, after a while in which no other thread of Python runs."""
        if model.training:
            sum(range(self.count))
        return model(batch[0]).square().mean()  # type: ignore[no-any-return]

    def tokens(self, batch: Batch) -> int:
        """Return the number of rows."""
        return len(batch[0])


def create(count: int) -> Holding:
    """Return the task (`--task loop_lag:create`)."""
    return Holding(count)


def member(lane: str, folder: Path, seconds: float, hold: float, peers: list[str]) -> None:
    """Train in a loop of our own for `seconds`, and print what came of it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    settings = {"network.listen": ["/ip4/127.0.0.1/tcp/0"], "network.upnp": False, "node.lane": lane}
    count, steps = held(hold), 0
    x = torch.randn(8, SIZE)
    with p2ptrain.join(
        model, optimizer, peers=peers, run_dir=folder, inner_steps=3, settings=settings, quiet=True
    ) as swarm:
        print(swarm.addresses[0], flush=True)
        began = time.monotonic()
        while (took := time.monotonic() - began) < seconds:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            sum(range(count))
            steps += 1
        assert swarm.page is not None
        shown = lag_at(swarm.page)
        rounds, peers_now = swarm.round, len(swarm.peers)
    print(f"{lane}: {shown}; {rounds} rounds, {peers_now} neighbours, {8 * steps / took:.1f} examples/s", flush=True)


def joined(lane: str, folder: Path, seconds: float, hold: float) -> None:
    """Measure a lane of `p2ptrain.join`."""
    own = [sys.executable, __file__, "--seconds", str(seconds), "--hold", str(hold), "--member", lane]
    first = subprocess.Popen([*own, f"{folder}/0"], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    address = first.stdout.readline().strip()
    second = subprocess.Popen([*own, f"{folder}/1", address], stdout=subprocess.DEVNULL)
    print(first.stdout.read(), end="", flush=True)
    first.wait()
    second.wait()


class NodeProgram:
    """`p2ptrain node --json` with the task of this file, until it is stopped."""

    def __init__(self, lane: str, folder: Path, count: int, peers: list[str]) -> None:
        settings = (
            *(f"node.lane={lane}", f"task.count={count}", "train.threads=1", "train.batch_size=8"),
            *("network.upnp=false", "train.warmup_steps=0", "train.optimizer=sgd", "train.eval_every=1000000"),
        )
        words = ["--json", "--task", "loop_lag:create", "--run-dir", str(folder), "--listen", "/ip4/127.0.0.1/tcp/0"]
        words += ["--rounds", "1000000", "--inner-steps", "3", *(f"--peer={each}" for each in peers)]
        words += [word for each in settings for word in ("--set", each)]
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "p2ptrain", "node", *words],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )

    def hear(self, name: str) -> dict[str, Any]:
        """Wait for an event, and return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                return event
        raise SystemExit(f"the node has ended without {name}")

    def stop(self) -> dict[str, Any]:
        """Stop it, and return its summary."""
        self.process.send_signal(signal.SIGINT)
        summary: dict[str, Any] = self.hear("interrupted")["summary"]
        assert self.process.stdout is not None
        self.process.stdout.read()
        self.process.wait()
        return summary


def noded(lane: str, folder: Path, seconds: float, hold: float) -> None:
    """Measure a lane of `p2ptrain node`."""
    count = held(hold)
    first = NodeProgram(lane, folder / "0", count, [])
    started = first.hear("started")
    second = NodeProgram(lane, folder / "1", count, started["addresses"][:1])
    second.hear("started")
    bare_ms = 1000 * bare_lag(seconds)
    shown = f"{lag_at(started['metrics_url'])}, of this script's own sleeps {bare_ms:.0f} ms at most"
    told = first.stop()
    second.stop()
    rate, rounds, neighbours = told["tokens"] / told["wall_s"], told["rounds"], told["neighbours"]
    print(f"{lane}: {shown}; {rounds} rounds, {neighbours} neighbours, {rate:.1f} examples/s", flush=True)


def main() -> None:
    """Measure both lanes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=("join", "node"), default="join")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--hold", type=float, default=0.5)
    parser.add_argument("--member", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.member is not None:
        lane, folder, *peers = given.member
        member(lane, Path(folder), given.seconds, given.hold, peers)
        return
    for lane in LANES:
        with tempfile.TemporaryDirectory() as folder:
            (joined if given.of == "join" else noded)(lane, Path(folder), given.seconds, given.hold)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
