"""Measures `p2ptrain up --task digits` with short rounds: do updates arrive before their round closes?

    .venv/bin/python scripts/short_rounds.py [--nodes 2 4 6 8] [--busy 1] [--repeat 1] [--out FOLDER]

Each run is a real swarm of processes on this machine, with `--busy` other processes that compute all the time. A row is
one run; where nodes differ, the least and the most. Load average before it; of the neighbours' updates the share that
was taken, that came in time, and that was there when its round closed; held-out loss of the averaged model, and the
mean of the nodes' own; utilization; distance; median exchange; mean steps of a round; seconds in all. Words after `--`
are added to `p2ptrain up`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from node.system.script_end import ended_in_a_line

HEADS = (
    *("nodes", "load", "taken", "in time", "at closing", "loss", "own loss", "utilization", "apart"),
    *("exchange", "steps a round", "seconds"),
)


def main(words: Sequence[str]) -> None:
    """Run all, one after the other, and print a Markdown table."""
    cut = words.index("--") if "--" in words else len(words)
    extra = list(words[cut + 1 :])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 6, 8])
    parser.add_argument("--busy", type=int, default=1, help="other processes that compute")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the runs' folders go (default: a new temporary folder)")
    given = parser.parse_args(list(words[:cut]))
    out = given.out or Path(tempfile.mkdtemp(prefix="short-rounds-"))
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}", flush=True)
    with busy(given.busy):
        for count in given.nodes:
            for turn in range(given.repeat):
                folder = out / f"{count}-nodes-{turn}"
                print(f"| {' | '.join(measured(count, folder, extra))} |", flush=True)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Others that compute beside the swarm."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(count: int, folder: Path, extra: Sequence[str]) -> list[str]:
    """One run's row."""
    load = os.getloadavg()[0]
    command = [sys.executable, "-m", "p2ptrain", "up", "--json", "--task", "digits", "--nodes", str(count)]
    ended = subprocess.run(
        [*command, "--run-dir", str(folder), *extra], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    if ended.returncode:
        return [str(count), f"failed: {ended.stderr.decode()[-200:]}"]
    summary = json.loads((folder / "summary.json").read_text())
    rounds = {name.parent.name: rounds_of(name) for name in sorted(folder.glob("node-*/events.jsonl"))}
    swarm, nodes = summary["swarm"], summary["nodes"]
    possible = [sum(fields["neighbours"] for fields in told) for told in rounds.values()]
    taken = [told[-1]["accepted"] / most for told, most in zip(rounds.values(), possible, strict=True)]
    fresh = [
        sum(fields["fresh"] for fields in told) / most for told, most in zip(rounds.values(), possible, strict=True)
    ]
    in_time = [node["updates_in_time"] for node in nodes if node.get("updates_in_time") is not None]
    exchange = [fields["exchange_s"] for told in rounds.values() for fields in told if fields.get("exchange_s")]
    useful = [node["utilization"] for node in nodes]
    steps = sum(node["steps"] for node in nodes) / sum(node["rounds"] for node in nodes)
    return [
        str(count),
        f"{load:.1f}",
        span(taken),
        span(in_time),
        span(fresh),
        f"{swarm['eval_loss_mean_model']:.3f}",
        f"{swarm['eval_loss_last']:.3f}",
        span(useful),
        f"{swarm['consensus_distance']:.2f}",
        f"{median(exchange):.2f} s" if exchange else "-",
        f"{steps:.0f}",
        f"{swarm['wall_s']:.0f}",
    ]


def rounds_of(log: Path) -> list[dict[str, Any]]:
    """A node's `round` events."""
    events = (json.loads(line) for line in log.read_text().splitlines())
    return [event for event in events if event["event"] == "round"]


def span(values: Sequence[float]) -> str:
    """The least and the most; `-` where nobody knows (a release that does not tell)."""
    if not values:
        return "-"
    return f"{min(values):.2f} to {max(values):.2f}"


if __name__ == "__main__":
    with ended_in_a_line():
        main(sys.argv[1:])
