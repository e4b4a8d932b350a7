"""The twin of a swarm on this machine, from `bench calibrate` alone, against the swarm itself.

    .venv/bin/python scripts/twin_against_up.py [--task digits] [--nodes 4] [--inner-steps 20] [--rounds 40] [--turns 3]
    sudo .venv/bin/python scripts/twin_against_up.py --mbit 20 [--task byte-lm --size pico]

In each turn this machine is measured, then the swarm runs, and then the twin is simulated, from what was measured
alone. (In between, one of two cores would rest, and a machine computes faster after a rest.) The swarm is `p2ptrain
up`, or with --mbit nodes in network namespaces of their own behind links of that speed (as in `bench race`, which needs
root). Both leave the logs of nodes, and the same code reads them. At the end come medians over turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w
from plan_against_up import in_namespaces, of, up

from node.bench.calibrate import Calibrate
from node.config.schema import Config, from_raw
from node.planning.run_settings_file import changed_settings
from node.simulation.like_run import real_nodes
from node.system.script_end import ended_in_a_line

LOOPBACK_MS = 0.05
"""One way, between processes of one machine; what an event loop takes on top is measured."""

Figures = Mapping[str, float]


def main(words: Sequence[str]) -> None:
    """Measure, simulate, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--size", default="pico", help="of the byte-lm")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--mbit", type=float, help="in network namespaces, behind links of this speed")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long steps are timed")
    given = parser.parse_args(list(words))
    task = {"name": given.task} | ({"size": given.size} if given.task == "byte-lm" else {})
    train = {"rounds": given.rounds, "inner_steps": given.inner_steps, "eval_every": given.rounds}
    config = from_raw({"task": task, "train": train})
    pairs = [turn(config, given) for _ in range(given.turns)]
    print("medians over turns")
    for what in pairs[0][0]:
        twin, run = (statistics.median(figures[what] for figures in each) for each in zip(*pairs, strict=True))
        apart = [of(one[what], other[what]) for one, other in pairs]
        print(f"  {what}: twin {twin:.4g}, run {run:.4g}, off by {of(twin, run)} (turns: {', '.join(apart)})")


def turn(config: Config, given: argparse.Namespace) -> tuple[Figures, Figures]:
    """The twin's figures, and the run's."""
    with tempfile.TemporaryDirectory(prefix="twin-") as name:
        folder = Path(name)
        benchmark = Calibrate(
            task=given.task,
            size=given.size,
            batch=config.train.batch_size,
            processes=given.nodes,
            seconds=given.seconds,
            numel=1 << 18,
            repetitions=15,
        )
        rows = list(benchmark.run())
        print(
            f"load {os.getloadavg()[0]:.1f}; {json.dumps([row['rounds'] for row in rows if 'rounds' in row])}",
            flush=True,
        )
        swarm = folder / "swarm"
        swarm.mkdir()
        if given.mbit is None:
            up(config, given, swarm)
            run = figures(swarm / "run")
        else:
            in_namespaces(config, given, swarm)
            run = figures(swarm)
        calibration, scenario = folder / "machine.json", folder / "twin.toml"
        calibration.write_text(benchmark.calibration(rows).to_json(), encoding="utf-8")
        scenario.write_text(scenario_of(config, given), encoding="utf-8")
        command = [sys.executable, "-m", "p2ptrain", "simulate", str(scenario), "--json"]
        command += ["--calibration", str(calibration), "--out", str(folder / "twin")]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        twin = figures(folder / "twin")
        print(f"device {device(folder / 'twin' / 'scenario.toml')}")
        print(f"twin: {told(twin)}", flush=True)
        print(f"run:  {told(run)}", flush=True)
        print(f"off:  {', '.join(f'{what} {of(twin[what], run[what])}' for what in twin)}", flush=True)
        return twin, run


def scenario_of(config: Config, given: argparse.Namespace) -> str:
    """The scenario's text: the same settings, and nothing of what is measured."""
    raw = changed_settings(config)
    group: dict[str, object] = {"name": "node", "count": given.nodes, "region": "here"}
    if given.mbit is not None:
        raw["links"] = {"shaped": {"up": f"{given.mbit:g} Mbit/s", "down": f"{given.mbit:g} Mbit/s"}}
        raw.setdefault("node", {})["wait_for"] = given.nodes - 1  # as in_namespaces has it
        group["link"] = "shaped"
    regions = [{"name": "here", "latency_ms": {"here": LOOPBACK_MS}}]
    return tomli_w.dumps({"until_s": 3600.0, **raw, "regions": regions, "nodes": [group]})


def device(scenario: Path) -> str:
    """The device as it was measured."""
    lines = scenario.read_text(encoding="utf-8").partition("[devices.measured]\n")[2].partition("\n\n")[0]
    return json.dumps([line for line in lines.split("\n") if line])


def figures(run: Path) -> Figures:
    """What the logs of a run's nodes tell."""
    nodes = real_nodes(run)
    rounds = [json.loads(line) for node in nodes for line in _rounds(run / node.name)]
    return {
        "round": statistics.median(node.round_s for node in nodes),
        "all rounds": statistics.fmean(node.all_rounds_s for node in nodes),
        "bytes": statistics.fmean(node.bytes_sent or 0 for node in nodes),
        "loss": statistics.fmean(node.loss or 0.0 for node in nodes),
        "steps a round": statistics.fmean(each["steps"] for each in rounds),
        "exchange": statistics.median(each["exchange_s"] for each in rounds if each["exchange_s"]),
    }


def _rounds(folder: Path) -> list[str]:
    return [
        line
        for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        if '"event": "round"' in line and line.endswith("}")
    ]


def told(found: Figures) -> str:
    """In words."""
    return ", ".join(f"{what} {value:.4g}" for what, value in found.items())


if __name__ == "__main__":
    with ended_in_a_line():
        main(sys.argv[1:])
