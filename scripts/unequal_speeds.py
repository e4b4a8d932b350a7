"""What slow nodes count for: real nodes in the simulation whose steps take 1 : 1 : 2 : 5 : 10.

    python scripts/unequal_speeds.py --what class --out DIR     # the slowest alone has the nines: their recall
    python scripts/unequal_speeds.py --what time --out DIR      # virtual seconds to a loss, and the last loss

One JSON line a row, means over seeds. Rows that --out has are not played again.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

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
}
Settings = Mapping[str, Mapping[str, object]]


def main() -> None:
    """Play what is missing, and print a line a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["class", "time"], required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--task", default="", help='of --what time: "digits" (the default), or "byte-lm"')
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    (class_rows if asked.what == "class" else time_rows)(asked)


def class_rows(asked: argparse.Namespace) -> None:
    """Print the recall of the class that the slowest node alone has, by rule."""
    for rule, sync in RULES.items():
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
    """Print the loss after all rounds, and when each way came to the loss at which `fixed` ended."""
    task = asked.task or "digits"
    dylu, nova = {"node": {"pace": "dylu"}}, {"train": {"step_normalization": "fednova"}}
    ways: dict[str, tuple[tuple[int, ...], Settings]] = {
        "equal speeds": (EQUAL, {}),
        "fixed, all are waited for": (SPEEDS, {"network": {"quorum": 1.0}, "node": {"overlap": False}}),
        "fixed": (SPEEDS, {}),
        "dylu": (SPEEDS, dylu),
        "dylu, fednova": (SPEEDS, dylu | nova),
        "dylu, fednova 0.5": (
            SPEEDS,
            dylu | {"train": {"step_normalization": "fednova", "normalization_exponent": 0.5}},
        ),
    }
    runs = {
        way: [curve(asked, f"time-{task}-{way}-{seed}", speeds, settings, task, seed) for seed in asked.seeds]
        for way, (speeds, settings) in ways.items()
    }
    marks = [run[-1]["loss"] for run in runs["fixed, all are waited for"]]
    for way, each in runs.items():
        reached = [
            next((point["at_s"] for point in run if point["loss"] <= mark), None)
            for run, mark in zip(each, marks, strict=True)
        ]
        told: dict[str, object] = {"way": way, "loss": round(fmean(run[-1]["loss"] for run in each), 4)}
        told["ended_s"] = round(fmean(run[-1]["at_s"] for run in each), 1)
        told["to_the_mark_s"] = [None if at is None else round(at, 1) for at in reached]
        print(json.dumps(told), flush=True)


def curve(
    asked: argparse.Namespace, name: str, speeds: tuple[int, ...], settings: Settings, task: str, seed: int
) -> list[dict[str, float]]:
    """Return the evaluations of a run, in order: when the last node had it, and the nodes' mean loss and metrics."""
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
    events = [[json.loads(line) for line in log] for log in logs]
    began = min(event["ts"] for each in events for event in each)
    by_round: dict[int, list[dict[str, Any]]] = {}
    for each in events:
        for event in each:
            if event["event"] == "evaluated":
                by_round.setdefault(event["round"], []).append(event)
    points = []
    for round_, found in sorted(by_round.items()):
        point = {"round": round_, "at_s": max(event["ts"] for event in found) - began}
        point |= {"loss": fmean(event["eval_loss"] for event in found)}
        names = found[0].get("own") or {}
        points.append(point | {name: fmean(event["own"][name] for event in found) for name in names})
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
