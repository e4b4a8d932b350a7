"""A plan against a real swarm on this machine: round time and bytes, foretold first.

    .venv/bin/python scripts/plan_against_up.py [--size pico] [--nodes 4] [--inner-steps 20] [--rounds 30]
    sudo .venv/bin/python scripts/plan_against_up.py --mbit 20 [--mbit 5]

First this machine is measured (`p2ptrain bench calibrate`, as many trainers at once as there are nodes), then the plan
is made and printed, then the swarm runs: `p2ptrain up`, or with --mbit nodes in network namespaces of their own behind
links of that speed (as in `bench race`, which needs root). A round's time is the mean from the end of the third round
to the last, bytes those that the nodes say in their events, all of a round's included.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from node.bench import pilot_swarm
from node.bench.calibrate import Calibrate
from node.bench.race.contestants import wait_until
from node.bench.race.crew import Crew
from node.bench.race.namespaces import PORT, Hosts, check_possible
from node.config.schema import Config, from_raw
from node.planning.accelerators import accelerator
from node.planning.forecast import PlanRequest, RunForecast, forecast
from node.planning.model_shape import context_of_byte_lm, shape_of_byte_lm
from node.planning.round_timing import PlannedLink
from node.system.script_end import ended_in_a_line

FIRST = 3
"""Rounds that are left out: nodes meet, and what they hold is asked for."""
LOOPBACK_BITS_S = 1e9
LIMIT_S = 600.0


def main(words: Sequence[str]) -> None:
    """Measure, foretell, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="pico")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--mbit", type=float, help="in network namespaces, behind links of this speed")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long steps are timed")
    given = parser.parse_args(list(words))
    config = from_raw(
        {
            "task": {"name": "byte-lm", "size": given.size},
            "train": {"rounds": given.rounds, "inner_steps": given.inner_steps},
        }
    )
    found = foretold(config, given)
    times = found.times
    print(
        f"foretold: round {times.round_s:.3f} s ({times.words}), step {found.step_s:.4f} s, exchange "
        f"{times.exchange_s:.3f} s, sent {found.sent_bytes / 1e3:.1f} kB a round",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        run = up if given.mbit is None else in_namespaces
        rounds = run(config, given, Path(folder))
    round_s, step_s, sent, steps = measured(rounds)
    print(f"measured: round {round_s:.3f} s, step {step_s:.4f} s, sent {sent / 1e3:.1f} kB a round, {steps:.1f} steps")
    again = forecast(replace(found.request, step_s=step_s))
    print(f"by the step as measured: round {again.times.round_s:.3f} s, {of(again.times.round_s, round_s)}")
    round_off, step_off, bytes_off = of(times.round_s, round_s), of(found.step_s, step_s), of(found.sent_bytes, sent)
    print(f"off by: round {round_off}, step {step_off}, bytes {bytes_off}")


def foretold(config: Config, given: argparse.Namespace) -> RunForecast:
    """The plan for this machine as it is now."""
    benchmark = Calibrate(
        size=given.size,
        batch=config.train.batch_size,
        processes=given.nodes,
        seconds=given.seconds,
        network=False,
    )
    rows = list(benchmark.run())
    print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
    bits_s = LOOPBACK_BITS_S if given.mbit is None else given.mbit * 1e6
    return forecast(
        PlanRequest(
            shape=shape_of_byte_lm(given.size),
            length=context_of_byte_lm(given.size),
            config=config,
            nodes=given.nodes,
            link=PlannedLink(up_bits_s=bits_s, down_bits_s=bits_s, rtt_s=0.0),
            device=accelerator("cpu-core"),
            tokens=1e6,
            calibration=benchmark.calibration(rows),
        )
    )


def up(config: Config, given: argparse.Namespace, folder: Path) -> list[list[dict[str, Any]]]:
    """Each node's rounds, of a swarm over loopback."""
    file = folder / "settings.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    pilot_swarm.up(file, given.nodes, folder / "run")
    return [rounds_of(log) for log in sorted((folder / "run").glob("node-*/events.jsonl"))]


def in_namespaces(config: Config, given: argparse.Namespace, folder: Path) -> list[list[dict[str, Any]]]:
    """Each node's rounds, of a swarm of hosts."""
    check_possible()
    logs = [folder / f"host-{rank}" / "events.jsonl" for rank in range(given.nodes)]
    with Hosts(given.nodes, given.mbit) as hosts, Crew() as crew:
        start(config, given, folder, hosts, crew, 0, ())
        wait_until(lambda: bool(address_in(logs[0])), crew, "the first node has not started")
        for rank in range(1, given.nodes):
            start(config, given, folder, hosts, crew, rank, (address_in(logs[0]),))
        deadline = time.monotonic() + LIMIT_S
        while not all(ended(log) for log in logs) and time.monotonic() < deadline:  # one ends before another: no error
            time.sleep(0.2)
        return [rounds_of(log) for log in logs]


def start(
    config: Config,
    given: argparse.Namespace,
    folder: Path,
    hosts: Hosts,
    crew: Crew,
    rank: int,
    peers: tuple[str, ...],
) -> None:
    """Start a node at a host."""
    raw = config.model_dump(mode="json", exclude_none=True)
    raw["train"]["threads"] = max(1, len(os.sched_getaffinity(0)) // given.nodes)
    raw["network"] |= {"listen": [f"/ip4/{hosts.address(rank)}/tcp/{PORT}"], "peers": list(peers), "upnp": False}
    raw["node"] |= {
        "name": f"host-{rank}",
        "wait_for": given.nodes // 2 - 1 if config.node.region else given.nodes - 1,
        "shard_index": rank,
        "shard_count": given.nodes,
        "metrics_port": 0,  # as nodes of `p2ptrain up` have it
    }
    own = folder / f"host-{rank}"
    own.mkdir()
    (own / "given.toml").write_text(from_raw(raw).to_toml(), encoding="utf-8")
    words = [sys.executable, "-m", "p2ptrain", "node", "--json", "--with-parent", "--run-dir", str(folder)]
    threads = raw["train"]["threads"]  # as `p2ptrain up` gives them, to threads of torch that are not its own as well
    environment = ["env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}", f"OMP_NUM_THREADS={threads}"]
    crew.start(f"host {rank}", [*hosts.inside(rank), *environment, *words, "--config", str(own / "given.toml")], own)


def events_in(log: Path) -> list[dict[str, Any]]:
    """A node's events."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")] if log.exists() else []


def rounds_of(log: Path) -> list[dict[str, Any]]:
    """A node's `round` events."""
    return [event for event in events_in(log) if event["event"] == "round"]


def ended(log: Path) -> bool:
    """Whether a node has finished."""
    return any(event["event"] == "finished" for event in events_in(log))


def address_in(log: Path) -> str:
    """Where a node is reached; empty while it does not say."""
    for event in events_in(log):
        if event["event"] == "started" and event.get("addresses"):
            return str(event["addresses"][0])
    return ""


def measured(rounds: Sequence[Sequence[dict[str, Any]]]) -> tuple[float, float, float, float]:
    """Mean seconds of a round, median seconds of a step, bytes sent a round and steps a round, of all nodes."""
    long = [each[FIRST - 1 :] for each in rounds]
    round_s = [(each[-1]["ts"] - each[0]["ts"]) / (len(each) - 1) for each in long]
    sent = [(each[-1]["bytes_sent"] - each[0]["bytes_sent"]) / (len(each) - 1) for each in long]
    step_s = [event["step_s"] for each in long for event in each[1:] if event["step_s"]]
    steps = [event["steps"] for each in long for event in each[1:]]
    return statistics.mean(round_s), statistics.median(step_s), statistics.mean(sent), statistics.mean(steps)


def of(predicted: float, found: float) -> str:
    """How far off a prediction was."""
    return f"{100 * (predicted / found - 1):+.1f}%"


if __name__ == "__main__":
    with ended_in_a_line():
        main(sys.argv[1:])
