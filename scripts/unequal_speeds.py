"""What slow nodes count for: real nodes in the simulation whose steps take 1 : 1 : 2 : 5 : 10.

    python scripts/unequal_speeds.py --what class --out DIR     # the slowest alone has the nines: their recall
    python scripts/unequal_speeds.py --what time --out DIR      # virtual seconds to a loss, and the last loss
    python scripts/unequal_speeds.py --what direction --out DIR # the same of outer momentum, corrected or not

One JSON line a row, means over seeds. Rows that --out has are not played again.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Final

from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play

SPEEDS: Final = (1, 1, 2, 5, 10)
EQUAL: Final = (1, 1, 1, 1, 1)
STEP_S: Final = 0.1
LONE: Final = "node.bench.swarm.heterogeneous:lone_digit"
RULES: Final = {
    "mean": {"aggregator": "mean", "f": 0},
    "trimmed_mean": {"aggregator": "trimmed_mean", "f": 1},
    "nnm+trimmed_mean": {"aggregator": "nnm+trimmed_mean", "f": 1},
    "clipped_gossip": {"aggregator": "clipped_gossip", "f": 1},
    "heloco, clipped_gossip": {
        "strategy": "heloco",
        "shrink": 2.0,
        "turn": 0.0,
        "aggregator": "clipped_gossip",
        "f": 1,
        "tau_times": 1.5,
    },
}
Settings = Mapping[str, Mapping[str, object]]


def main() -> None:
    """Play what is missing, and print a line a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["class", "time", "direction"], required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--rules", nargs="*", choices=[*RULES], default=[*RULES], help="of --what class")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--task", default="", help='of --what time: "digits" (the default), or "byte-lm"')
    parser.add_argument("--marks", type=float, nargs="*", default=[0.5, 0.25, 0.15], help="losses")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    {"class": class_rows, "time": time_rows, "direction": direction_rows}[asked.what](asked)


def class_rows(asked: argparse.Namespace) -> None:
    """Print the recall of the class that the slowest node alone has, by rule."""
    for rule, sync in ((rule, RULES[rule]) for rule in asked.rules):
        for normalized in ("none", "fednova"):
            settings = {"sync": sync, "train": {"step_normalization": normalized}, "node": {"pace": "dylu"}}
            name = f"class-{rule}-{normalized}"
            runs = [curve(asked, f"{name}-{seed}", SPEEDS, settings, LONE, seed) for seed in asked.seeds]
            told = {"rule": rule, "step_normalization": normalized}
            told["recall"] = round(fmean(run[-1]["nines"] for run in runs), 3)
            told["of_each_seed"] = [round(run[-1]["nines"], 3) for run in runs]
            told["loss"] = round(fmean(run[-1]["loss"] for run in runs), 4)
            print(json.dumps(told), flush=True)


def time_rows(asked: argparse.Namespace) -> None:
    """Print when the nodes' mean loss came to each of the marks, and what it was when the first node had ended."""
    task = asked.task or "digits"
    dylu, nova = {"node": {"pace": "dylu"}}, {"step_normalization": "fednova"}
    long_s = {"initial_deadline_s": 3600.0, "min_deadline_s": 3600.0}
    alone = {"overlap": False, "overlap_steps": 100_000, "catch_up_rounds": 100_000}
    waiting: Settings = {"network": {"quorum": 1.0, **long_s}, "node": alone}
    ways: dict[str, tuple[tuple[int, ...], Settings]] = {
        "equal speeds, waiting": (EQUAL, waiting),
        "equal speeds": (EQUAL, dylu),
        "fixed, waiting for all": (SPEEDS, waiting),
        "fixed": (SPEEDS, {}),
        "dylu": (SPEEDS, dylu),
        "dylu, fednova": (SPEEDS, dylu | {"train": nova}),
        "dylu, fednova 0.5": (SPEEDS, dylu | {"train": nova | {"normalization_exponent": 0.5}}),
    }
    tell_ways(asked, task, ways)


def direction_rows(asked: argparse.Namespace) -> None:
    """Print the same of strategies with outer momentum, whose updates are as late as unequal speeds make them."""
    momentum = {"alpha": 0.5, "beta": 0.5}
    plain = {"strategy": "diloco", "compressor": "int4", **momentum}
    strategies: dict[str, Mapping[str, object]] = {
        "diloco": plain,
        "heloco": plain | {"strategy": "heloco"},
        "heloco, not turned": plain | {"strategy": "heloco", "turn": 0.0},
        "async": plain | {"strategy": "async"},
    }
    ways: dict[str, tuple[tuple[int, ...], Settings]] = {
        f"{name}, {pace}": (SPEEDS, {"sync": sync, "node": {"pace": pace}})
        for pace in ("dylu", "fixed")
        for name, sync in strategies.items()
    }
    tell_ways(asked, asked.task or "digits", ways)


def tell_ways(asked: argparse.Namespace, task: str, ways: Mapping[str, tuple[tuple[int, ...], Settings]]) -> None:
    """Print a line a way."""
    for way, (speeds, settings) in ways.items():
        runs = [curve(asked, f"time-{task}-{way}-{seed}", speeds, settings, task, seed) for seed in asked.seeds]
        told: dict[str, object] = {"way": way, "loss": round(fmean(run[-1]["loss"] for run in runs), 4)}
        told["ended_s"] = round(fmean(run[-1]["at_s"] for run in runs), 1)
        for mark in asked.marks:
            reached = [next((point["at_s"] for point in run if point["loss"] <= mark), None) for run in runs]
            told[f"to {mark:g}"] = [None if at is None else round(at, 1) for at in reached]
        print(json.dumps(told), flush=True)


def curve(
    asked: argparse.Namespace, name: str, speeds: tuple[int, ...], settings: Settings, task: str, seed: int
) -> list[dict[str, float]]:
    """Return the mean of the nodes' newest losses and metrics at each evaluation, until the first node has ended."""
    key = f"{name}-{asked.rounds}-{asked.rate:g}".replace("/", "_").replace(" ", "_")
    kept = asked.out / f"{key}.json"
    if not kept.exists():
        path = asked.out / f"{key}.toml"
        path.write_text(scenario_text(asked, speeds, settings, task), encoding="utf-8")
        with TemporaryDirectory() as folder:
            course = play(load_scenario(path, seed=seed), folder=Path(folder) / "nodes")
            logs = [Path(folder) / "nodes" / member.name / "events.jsonl" for member in course.honest]
            kept.write_text(json.dumps(_points([log.read_text().splitlines() for log in logs])))
    return [dict(point) for point in json.loads(kept.read_text())]


def _points(logs: list[list[str]]) -> list[dict[str, float]]:
    events = [{**json.loads(line), "node": node} for node, log in enumerate(logs) for line in log]
    events.sort(key=lambda event: event["ts"])
    newest: dict[int, dict[str, float]] = {}
    points = []
    for event in events:
        if event["event"] == "finished":
            break
        if event["event"] == "evaluated":
            newest[event["node"]] = {"loss": event["eval_loss"], **(event.get("own") or {})}
            if len(newest) == len(logs):
                means = {name: fmean(each[name] for each in newest.values()) for name in newest[event["node"]]}
                points.append({"at_s": event["ts"] - events[0]["ts"], **means})
    return points


def scenario_text(asked: argparse.Namespace, speeds: tuple[int, ...], settings: Settings, task: str) -> str:
    """Return the scenario: a node for each of the times that a step takes, on links that cost nothing."""
    sections: dict[str, dict[str, object]] = {
        "task": {"name": task} | ({"size": "pico"} if task == "byte-lm" else {}),
        "train": {
            "rounds": asked.rounds,
            "inner_steps": 20,
            "batch_size": 4 if task == "byte-lm" else 16,
            "warmup_steps": 5,
            "eval_every": 2,
            "learning_rate": asked.rate,
        },
    }
    for section, values in settings.items():
        sections[section] = {**sections.get(section, {}), **values}
    if task == "digits":
        sections["task"]["partition"] = "dirichlet"
    lines = ["until_s = 100000.0"]
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    for index, slowness in enumerate(speeds):
        shard = f"{{ node = {{ shard_index = {index}, shard_count = {len(speeds)} }} }}"
        lines += ["", "[[nodes]]", f'name = "n{index}"', 'link = "site"', f'device = "d{index}"', f"settings = {shard}"]
        lines += ["", f"[devices.d{index}]", f"step_s = {STEP_S * slowness}"]
    return "\n".join([*lines, "", "[links.site]", 'up = "1 Gbit/s"', 'down = "1 Gbit/s"', ""])


if __name__ == "__main__":
    main()
