"""Many seeds of a scenario: each as it would be alone, kept as it ends, and nothing twice."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import ROOT, ran, scenario_in

from node.cli.app import main
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play
from node.simulation.verdict import judged
from node.sweep.base import Cell, CellFailure, Outcome
from node.sweep.executors import EXECUTORS
from node.sweep.seeds import MOST_SEEDS, SEEDS, SeedRuns, in_words, is_well, parse_seeds
from node.system.errors import RunError, UsageError
from node.system.run_dir import locked

LARGE = ("configs/scenarios/thousand-homes.toml", "nodes.home.count=16", "nodes.liar.count=2", "train.rounds=2")


@given(st.sets(st.integers(0, 60), min_size=1))
def test_a_list_of_seeds_comes_back_as_it_was(seeds: set[int]) -> None:
    assert parse_seeds(",".join(map(str, seeds))) == tuple(sorted(seeds))
    assert parse_seeds(f"{min(seeds)}-{max(seeds)}") == tuple(range(min(seeds), max(seeds) + 1))


@given(st.text(max_size=12))
def test_any_text_is_a_list_of_seeds_or_a_mistake_in_one_line(text: str) -> None:
    found: Sequence[int] = ()
    with suppress(UsageError):
        found = parse_seeds(text)
    assert list(found) == sorted(set(found))


@pytest.mark.parametrize("text", ["", "5-3", "a", "-1", "1-", "0-10000", "0-6000,7000-12000", str(1 << 63), "1,,2"])
def test_what_is_no_list_of_seeds(text: str) -> None:
    with pytest.raises(UsageError, match="--seeds"):
        parse_seeds(text)
    assert MOST_SEEDS == 10_000


def test_each_seed_is_what_it_is_alone(tmp_path: Path) -> None:
    """In this process where hashes are fixed, and in one of its own where they are not."""
    loaded = scenario_in(tmp_path, "", "train.rounds=1")
    rows = list(SeedRuns(loaded=loaded, seeds=(1, 2), executor="here").run())
    assert [row["seed"] for row in rows] == [1, 2]
    assert all(is_well(row) for row in rows)
    alone = judged(play(load_scenario(loaded.path, ["train.rounds=1"], seed=2)))
    assert rows[1]["events_digest"] == alone.events_digest != rows[0]["events_digest"]
    assert rows[1]["replay"] == alone.replay
    assert (rows[1]["loss"], rows[1]["sent_bytes"]) == (alone.loss_mean, alone.bytes_sent_mean)
    assert f"events {alone.events_digest}" in in_words(rows[1])


@pytest.mark.thorough
def test_processes_give_the_same_in_the_large_mode(tmp_path: Path) -> None:
    path, *sets = LARGE
    words = [path, *(word for text in sets for word in ("--set", text)), "--set", "assert={}"]
    many = json.loads(ran(*words, "--seeds", "3,1", "--jobs", "2", "--json").stdout)
    assert [row["seed"] for row in many["seeds"]] == [1, 3], "in order, however they end"
    assert many["not_well"] == []
    alone = json.loads(ran(*words, "--seed", "3", "--json").stdout)
    assert many["seeds"][1]["events_digest"] == alone["events_digest"]
    assert many["seeds"][1]["mode"] == "large"


class Counting:
    """An executor that notes what it is asked for; seed 4 fails, and seed 5 breaks a promise."""

    asked: list[int] = []

    def run(self, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Outcome]]:
        for cell in reversed(cells):
            Counting.asked.append(cell.seed)
            yield cell, CellFailure("its process died") if cell.seed == 4 else row_of(cell.seed)


def row_of(seed: int) -> dict[str, Any]:
    texts = {"events_digest": f"d{seed}", "mode": "faithful", "crypto": "shared"}
    numbers = dict.fromkeys(("nodes", "honest", "finished", "rounds_min", "rounds_max", "bytes_sent_max"), 3)
    rest = {"staleness_max": 0, "honest_bans": 0, "broken": ["loss_max: no"] if seed == 5 else []}
    return texts | numbers | rest | {"wall_s": 1.0, "loss": None, "sent_bytes": 9.0, "seconds": 2.0}


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(EXECUTORS, "get", lambda name: Counting())
    monkeypatch.setattr(Counting, "asked", [])
    return Counting.asked


def test_what_is_kept_is_not_run_again_and_what_failed_is(
    tmp_path: Path, counting: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.simulation.sealed.hashes_are_fixed", lambda: True)
    words = ["simulate", str(scenario_in(tmp_path).path), "--out", str(tmp_path / "out"), "--seeds"]
    assert main([*words, "3-5"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "seed 5: 3 of 3 came to the last round, 3 rounds, no loss, 2.0 virtual seconds in 1.0, events d5; broken: "
        "loss_max: no",
        "seed 4: failed: its process died",
        "seed 3: 3 of 3 came to the last round, 3 rounds, no loss, 2.0 virtual seconds in 1.0, events d3",
        "1 of 3 seeds kept every promise.",
    ]
    path = scenario_in(tmp_path).path
    assert err.splitlines() == [
        f"seed {seed}, play it again: p2ptrain simulate {path} --seed {seed} --until 120" for seed in (4, 5)
    ]
    counting.clear()
    assert main([*words, "2-5", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert counting == [4, 2]
    assert ([row["seed"] for row in found["seeds"]], found["kept"], found["not_well"]) == ([2, 3, 4, 5], 2, [4, 5])
    counting.clear()
    assert main([*words, "2-3", "--set", "train.rounds=9"]) == 0, "another setting is another run"
    assert counting == [3, 2]
    assert len((tmp_path / "out" / SEEDS).read_text().splitlines()) == 7


def test_a_line_that_was_cut_short_is_run_again(tmp_path: Path, counting: list[int]) -> None:
    runs = SeedRuns(loaded=scenario_in(tmp_path), seeds=(1, 2), out=tmp_path / "out")
    assert [row["seed"] for row in runs.run()] == [2, 1]
    file = tmp_path / "out" / SEEDS
    file.write_bytes(file.read_bytes()[:-20])
    counting.clear()
    assert [row["seed"] for row in runs.run()] == [2, 1]
    assert counting == [1]
    with locked(tmp_path / "out"), pytest.raises(RunError):
        list(runs.run())


@pytest.mark.parametrize("more", [["--seed", "1"], ["--like", "nowhere"]])
def test_seeds_and_a_seed_are_a_mistake(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "x.toml", "--seeds", "1-2", *more]) == 2
    assert "--seeds goes with neither" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--jobs", "2"], ["--executor", "processes"]])
def test_how_seeds_are_run_is_a_mistake_without_them(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "whatever.toml", *words]) == 2
    assert "say how --seeds are run" in capsys.readouterr().err


def test_there_need_be_no_affinity_of_processes(
    tmp_path: Path, counting: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr("node.cli.simulate_cmd._again_with_fixed_hashes", lambda *given, **named: None)
    assert main(["simulate", str(scenario_in(tmp_path).path), "--seeds", "1-2"]) == 0, capsys.readouterr().err
    assert sorted(counting) == [1, 2]


@pytest.mark.parametrize("debug", [True, False])
def test_the_process_that_takes_over_shows_tracebacks_too(debug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def execve(path: str, words: list[str], environment: dict[str, str]) -> None:
        started.append(words)
        raise SystemExit(0)

    words = ["simulate", "x.toml", *(["--debug"] if debug else [])]
    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr("sys.argv", ["p2ptrain", *words])
    monkeypatch.setattr("node.simulation.sealed.hashes_are_fixed", lambda: False)
    assert main() == 0
    assert started[0][1:] == ["-m", "p2ptrain", *words]


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_is_done_and_ends_the_rest(tmp_path: Path, number: signal.Signals) -> None:
    """It comes when the first seed is done; the processes that run seeds take none."""
    folders = tmp_path / "folders"
    folders.mkdir()
    path, out = str(scenario_in(tmp_path).path), tmp_path / "out"
    words = [sys.executable, "-m", "p2ptrain", "simulate", path, "--seeds", "1-40", "--jobs", "1", "--out", str(out)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it
    try:
        environment = os.environ | {"TMPDIR": str(folders)}
        started = subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with started as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("seed 1:")
        process.send_signal(number)
        said = process.stderr.read()
        assert process.wait(timeout=60) == 128 + number
    assert list(folders.iterdir()) == []
    assert "Interrupted: 1 of 40 seeds were done" in said or "Interrupted: 2 of 40" in said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    rows = [json.loads(line) for line in (out / SEEDS).read_text().splitlines()]
    assert [row["seed"] for row in rows][:1] == [1]
