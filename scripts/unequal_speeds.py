"""What slow nodes count for: real nodes in the simulation whose steps take 1 : 1 : 2 : 5 : 10.

    python scripts/unequal_speeds.py --what class --out DIR     # the slowest alone has the nines: their recall
    python scripts/unequal_speeds.py --what time --out DIR      # virtual seconds to a loss, and the last loss
    python scripts/unequal_speeds.py --what loss --out DIR      # the last loss over that of equal speeds, by settings
    python scripts/unequal_speeds.py --what direction --out DIR # the same of outer momentum, corrected or not
    python scripts/unequal_speeds.py --what real --rounds 40 --out DIR  # seconds of five processes over libp2p

One JSON line a row, means over seeds. Rows that --out has are not played again.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

import slowed_loop

from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play
from node.system.script_end import ended_in_a_line

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
FEDNOVA: Final = {"step_normalization": "fednova"}
WORK: Final = 0.57
"""About the share of all steps that nodes of these speeds take under `dylu`."""
MEAN: Final = {"sync.aggregator": "mean", "sync.f": 0}
Settings = Mapping[str, Mapping[str, object]]


def main() -> None:
    """Play what is missing, and print a line a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=[*WHAT], required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--rules", nargs="*", choices=[*RULES], default=[*RULES], help="of --what class")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--task", default="", help='of --what time: "digits" (the default), or "byte-lm"')
    parser.add_argument("--marks", type=float, nargs="*", default=[0.5, 0.25, 0.15], help="losses")
    parser.add_argument("--ways", nargs="*", default=[], help="of all but --what class: these rows alone")
    parser.add_argument(
        "--data", choices=["dirichlet", "lone"], default="dirichlet", help="of --what real; lone: as --what class"
    )
    parser.add_argument("--step-s", type=float, default=0.04, help="of --what real: the fastest's seconds of a step")
    parser.add_argument("--at-most-s", type=float, default=600.0, help="of --what real: stop a run after so long")
    parser.add_argument("--out", type=Path, required=True)
    parser.set_defaults(fail=parser.error)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    WHAT[asked.what](asked)


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


def loss_rows(asked: argparse.Namespace) -> None:
    """Print the last loss of each way over that of its reference at equal speeds, seed by seed."""
    momentum = {"compressor": "int4", "alpha": 0.5, "beta": 0.5}
    mean = {"aggregator": "mean", "f": 0}
    equal = "equal speeds"
    ways: dict[str, tuple[tuple[int, ...], Settings, str]] = {
        equal: (EQUAL, _paced(), equal),
        "equal speeds, as many steps": (EQUAL, _paced(rounds=round(asked.rounds * WORK)), equal),
        "fednova": (SPEEDS, _paced(**FEDNOVA), equal),
        "fednova, a tenth more rounds": (SPEEDS, _paced(**FEDNOVA, rounds=round(asked.rounds * 1.1)), equal),
        "fednova, a fifth more rounds": (SPEEDS, _paced(**FEDNOVA, rounds=round(asked.rounds * 1.2)), equal),
        "fednova, as many steps": (SPEEDS, _paced(**FEDNOVA, rounds=round(asked.rounds / WORK)), equal),
        "fednova 0.75": (SPEEDS, _paced(**FEDNOVA, normalization_exponent=0.75), equal),
        "fednova 0.5": (SPEEDS, _paced(**FEDNOVA, normalization_exponent=0.5), equal),
        "fednova, rounds of half": (SPEEDS, _paced(**FEDNOVA, inner_steps=10, rounds=2 * asked.rounds), equal),
        "equal speeds, mean": (EQUAL, {**_paced(), "sync": mean}, equal),
        "fednova, mean": (SPEEDS, {**_paced(**FEDNOVA), "sync": mean}, "equal speeds, mean"),
    }
    for strategy in ("diloco", "heloco"):
        sync = {"strategy": strategy, **momentum}
        ways[f"equal speeds, {strategy}"] = (EQUAL, {**_paced(), "sync": sync}, equal)
        ways[f"fednova, {strategy}"] = (SPEEDS, {**_paced(**FEDNOVA), "sync": sync}, f"equal speeds, {strategy}")
    task = asked.task or "digits"
    for way in chosen(asked, ways):
        speeds, settings, reference = ways[way]
        runs = [curve(asked, f"loss-{task}-{way}-{seed}", speeds, settings, task, seed) for seed in asked.seeds]
        told = told_of(asked, way, runs)
        for name in {equal, reference}:
            their = [curve(asked, f"loss-{task}-{name}-{seed}", *ways[name][:2], task, seed) for seed in asked.seeds]
            pairs = zip(runs, their, strict=True)
            told[f"over {name}"] = [round(run[-1]["loss"] / other[-1]["loss"], 3) for run, other in pairs]
        print(json.dumps(told), flush=True)


def _paced(**train: object) -> dict[str, Mapping[str, object]]:
    return {"node": {"pace": "dylu"}, "train": train}


def real_rows(asked: argparse.Namespace) -> None:
    """Print seconds to each of the marks of five real processes, and the last loss."""
    alone = {"node.overlap": False, "node.overlap_steps": 100_000, "node.catch_up_rounds": 100_000}
    long_s = {"network.initial_deadline_s": 3600.0, "network.min_deadline_s": 3600.0}
    dylu = {"node.pace": "dylu"}
    ways: dict[str, tuple[tuple[int, ...], dict[str, object]]] = {
        "equal speeds": (EQUAL, dylu),
        "dylu": (SPEEDS, dylu),
        "dylu, fednova": (SPEEDS, dylu | {"train.step_normalization": "fednova"}),
        "fixed, waiting for all": (SPEEDS, {"network.quorum": 1.0, **long_s, **alone}),
    }
    for way in chosen(asked, ways):
        speeds, settings = ways[way]
        with_rule = settings | (MEAN if asked.data == "lone" else {})
        runs = [real_run(asked, f"real-{asked.data}-{way}-{seed}", speeds, with_rule, seed) for seed in asked.seeds]
        told = told_of(asked, way, [run["points"] for run in runs])
        for name in ("rounds", "steps", "seen"):
            told[f"{name}_of_each_node"] = [[member[name] for member in run["members"]] for run in runs]
        print(json.dumps(told), flush=True)


def tell_ways(asked: argparse.Namespace, task: str, ways: Mapping[str, tuple[tuple[int, ...], Settings]]) -> None:
    """Print a line a way."""
    for way in chosen(asked, ways):
        speeds, settings = ways[way]
        runs = [curve(asked, f"time-{task}-{way}-{seed}", speeds, settings, task, seed) for seed in asked.seeds]
        print(json.dumps(told_of(asked, way, runs)), flush=True)


def chosen(asked: argparse.Namespace, ways: Mapping[str, object]) -> list[str]:
    """Return the ways that were asked for: all, where none was named. Ends the program for one that there is not."""
    unknown = [way for way in asked.ways if way not in ways]
    if unknown:
        asked.fail(f"--ways: there is no {unknown[0]!r}, but " + "; ".join(ways))
    return [way for way in ways if not asked.ways or way in asked.ways]


def told_of(asked: argparse.Namespace, way: str, runs: list[list[dict[str, float]]]) -> dict[str, object]:
    """Return the row of a way: means over its seeds, and each seed's."""
    told: dict[str, object] = {"way": way, "loss": round(fmean(run[-1]["loss"] for run in runs), 4)}
    told["of_each_seed"] = [round(run[-1]["loss"], 4) for run in runs]
    told["steps"] = round(fmean(run[-1]["steps"] for run in runs))
    told["ended_s"] = round(fmean(run[-1]["at_s"] for run in runs), 1)
    for mark in asked.marks:
        reached = [next((point["at_s"] for point in run if point["loss"] <= mark), None) for run in runs]
        told[f"to {mark:g}"] = [None if at is None else round(at, 1) for at in reached]
    for metric in sorted(runs[0][-1].keys() - {"at_s", "steps", "loss"}):
        told[metric] = [round(run[-1][metric], 3) for run in runs]
    return told


def curve(
    asked: argparse.Namespace, name: str, speeds: tuple[int, ...], settings: Settings, task: str, seed: int
) -> list[dict[str, float]]:
    """Return the mean of the nodes' newest losses and metrics at each evaluation, until the first node has ended."""
    key = _key(asked, name)
    kept = asked.out / f"{key}.json"
    if not kept.exists():
        path = asked.out / f"{key}.toml"
        path.write_text(scenario_text(asked, speeds, settings, task), encoding="utf-8")
        with TemporaryDirectory() as folder:
            course = play(load_scenario(path, seed=seed), folder=Path(folder) / "nodes")
            logs = [Path(folder) / "nodes" / member.name / "events.jsonl" for member in course.honest]
            kept.write_text(json.dumps(_points([log.read_text().splitlines() for log in logs])))
    return [dict(point) for point in json.loads(kept.read_text())]


def real_run(
    asked: argparse.Namespace, name: str, speeds: tuple[int, ...], settings: Mapping[str, object], seed: int
) -> dict[str, Any]:
    """Return the same `points` of five processes over libp2p on loopback, each a loop of its own (slowed_loop.py).
    `members`: of each its closed `rounds`, its `steps`, and in how many of its rounds it has `seen` the slowest."""
    kept = asked.out / f"{_key(asked, name)}.json"
    if not kept.exists():
        with TemporaryDirectory() as folder:
            logs = _played(asked, Path(folder), speeds, settings, seed)
        kept.write_text(json.dumps({"points": _points(logs), "members": _members(logs)}))
    return dict(json.loads(kept.read_text()))


def _members(logs: list[list[str]]) -> list[dict[str, int]]:
    events = [[json.loads(line) for line in log] for log in logs]
    slowest = next(event["peer_id"] for event in events[-1] if event["event"] == "started")
    rounds = [[event for event in each if event["event"] == "round"] for each in events]
    return [
        {
            "rounds": len(each),
            "steps": sum(event["steps"] for event in each),
            "seen": sum(slowest in event["weights"] for event in each),
        }
        for each in rounds
    ]


def _played(
    asked: argparse.Namespace, folder: Path, speeds: tuple[int, ...], settings: Mapping[str, object], seed: int
) -> list[list[str]]:
    """Start the processes, once the first has an address the others. Return their event logs, beginning with the first
    step of any of them."""
    forks = multiprocessing.get_context("fork")  # what is imported is imported once; nothing has run here yet
    folders = [folder / str(index) for index in range(len(speeds))]
    members: list[BaseProcess] = []
    peer: list[str] = []
    try:
        for index, slowness in enumerate(speeds):
            words = ["--index", index, "--count", len(speeds), "--step-s", asked.step_s * slowness]
            words += ["--rounds", asked.rounds, "--rate", asked.rate, "--seed", seed, "--folder", folders[index]]
            words += ["--data", asked.data, "--settings", json.dumps(settings), *peer]
            members.append(forks.Process(target=slowed_loop.main, args=([str(word) for word in words],)))
            members[-1].start()
            peer = peer or ["--peer", _address(folders[0], members[0])]
        until_s = time.monotonic() + asked.at_most_s
        for member in members:
            member.join(max(0.0, until_s - time.monotonic()))
    finally:
        for member in members:
            member.kill()
            member.join()
    first = min((each / slowed_loop.BEGAN).read_text() for each in folders)
    logs = [slowed_loop.log_of(each).read_text().splitlines(keepends=True) for each in folders]
    return [[first, *(line for line in log if line.endswith("\n"))] for log in logs]


def _address(folder: Path, member: BaseProcess) -> str:
    """Wait until the member says where it listens. Raises SystemExit where it ends before that."""
    log = slowed_loop.log_of(folder)
    while member.is_alive():
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        for event in (json.loads(line) for line in lines if line.endswith("\n")):
            if event["event"] == "started":
                return str(event["addresses"][0])
        time.sleep(0.05)
    raise SystemExit("a member ended before it listened")


def _key(asked: argparse.Namespace, name: str) -> str:
    return f"{name}-{asked.rounds}-{asked.rate:g}".replace("/", "_").replace(" ", "_")


def _points(logs: list[list[str]]) -> list[dict[str, float]]:
    events = [{**json.loads(line), "node": node} for node, log in enumerate(logs) for line in log]
    events.sort(key=lambda event: event["ts"])
    began = next((event for event in events if event["event"] == "began"), events[0])["ts"]
    newest: dict[int, dict[str, float]] = {}
    points, steps = [], 0
    for event in events:
        if event["event"] == "finished":
            break
        if event["event"] == "round":
            steps += event["steps"]
        if event["event"] == "evaluated":
            newest[event["node"]] = {"loss": event["eval_loss"], **(event.get("own") or {})}
            if len(newest) == len(logs):
                means = {name: fmean(each[name] for each in newest.values()) for name in newest[event["node"]]}
                points.append({"at_s": event["ts"] - began, "steps": steps, **means})
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


WHAT: Final = {
    "class": class_rows,
    "time": time_rows,
    "loss": loss_rows,
    "direction": direction_rows,
    "real": real_rows,
}
"""Who prints the rows."""


if __name__ == "__main__":
    with ended_in_a_line():
        main()
