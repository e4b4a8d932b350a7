"""Measures `p2ptrain up --task digits` with short rounds: do updates arrive before their round closes?

    nice -n 0 .venv/bin/python scripts/short_rounds.py [--nodes 2 4 6 8] [--busy 1] [--repeat 1] [--out FOLDER]

Each run is a real swarm of processes on this machine, with `--busy` other processes that compute all the time. A row of
the table is one run: load average before it, share of the neighbours' updates that were taken and that were there when
their round closed, final losses, utilization, distance, seconds. Give `-- WORDS` to add words to `p2ptrain up`.
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
from typing import Any

HEADS = ("nodes", "load", "taken", "in time", "loss", "own loss", "utilization", "apart", "steps/round", "seconds")


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
    in_time = [
        sum(fields["fresh"] for fields in told) / most for told, most in zip(rounds.values(), possible, strict=True)
    ]
    useful = [node["utilization"] for node in nodes]
    steps = sum(node["steps"] for node in nodes) / sum(node["rounds"] for node in nodes)
    return [
        str(count),
        f"{load:.1f}",
        span(taken),
        span(in_time),
        f"{swarm['eval_loss_mean_model']:.3f}",
        f"{swarm['eval_loss_last']:.3f}",
        span(useful),
        f"{swarm['consensus_distance']:.2f}",
        f"{steps:.0f}",
        f"{swarm['wall_s']:.0f}",
    ]


def rounds_of(log: Path) -> list[dict[str, Any]]:
    """A node's `round` events."""
    events = (json.loads(line) for line in log.read_text().splitlines())
    return [event for event in events if event["event"] == "round"]


def span(values: Sequence[float]) -> str:
    """The least and the most."""
    return f"{min(values):.2f} to {max(values):.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
