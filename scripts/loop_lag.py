"""Measure the event loop's lag while a training loop keeps Python's interpreter lock for half a second at a time.

    python scripts/loop_lag.py [--seconds 30] [--hold 0.5]

Two members over loopback, one process each; both hold the lock in one C call (`sum(range(n))`) after every step of a
model of 1.6 million parameters. For each lane (`node.lane`): quantiles of the lag, from the node's own `/metrics`, and
rounds closed with the neighbour's update. The buckets of the histogram bound what can be told.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import torch
from torch import nn

import p2ptrain

LAG = re.compile(r'event_loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)')
SIZE = 1_000


def held(seconds: float) -> int:
    """Return how many numbers to sum for `seconds`."""
    began = time.perf_counter()
    sum(range(10_000_000))
    return int(10_000_000 * seconds / (time.perf_counter() - began))


def quantile(buckets: list[tuple[float, float]], part: float) -> float:
    """Return the upper bound of the bucket with this quantile."""
    return next(bound for bound, count in buckets if count >= part * buckets[-1][1])


def member(lane: str, folder: Path, seconds: float, hold: float, peers: list[str]) -> None:
    """Train for `seconds`, and print what came of it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 600))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    settings = {"network.listen": ["/ip4/127.0.0.1/tcp/0"], "network.upnp": False, "node.lane": lane}
    count = held(hold)
    x = torch.randn(8, SIZE)
    with p2ptrain.join(
        model, optimizer, peers=peers, run_dir=folder, inner_steps=3, settings=settings, quiet=True
    ) as swarm:
        print(swarm.addresses[0], flush=True)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            sum(range(count))
        assert swarm.page is not None
        with urllib.request.urlopen(f"{swarm.page}/metrics") as answer:
            text = answer.read().decode()
        rounds, peers_now = swarm.round, len(swarm.peers)
    found = [(float(bound), float(count)) for bound, count in LAG.findall(text)]
    shown = ", ".join(f"p{100 * part:g} <= {1000 * quantile(found, part):g} ms" for part in (0.5, 0.9, 0.99, 1.0))
    print(f"{lane}: {shown} ({found[-1][1]:g} samples); {rounds} rounds, {peers_now} neighbours", flush=True)


def main() -> None:
    """Measure both lanes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--hold", type=float, default=0.5)
    parser.add_argument("--member", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.member is not None:
        lane, folder, *peers = given.member
        member(lane, Path(folder), given.seconds, given.hold, peers)
        return
    for lane in ("thread", "process"):
        with tempfile.TemporaryDirectory() as folder:
            own = [
                sys.executable,
                __file__,
                "--seconds",
                str(given.seconds),
                "--hold",
                str(given.hold),
                "--member",
                lane,
            ]
            first = subprocess.Popen([*own, f"{folder}/0"], stdout=subprocess.PIPE, text=True)
            assert first.stdout is not None
            address = first.stdout.readline().strip()
            second = subprocess.Popen([*own, f"{folder}/1", address], stdout=subprocess.DEVNULL)
            print(first.stdout.read(), end="", flush=True)
            first.wait()
            second.wait()


if __name__ == "__main__":
    main()
