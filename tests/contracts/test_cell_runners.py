"""What every kind of run that a sweep's cell may be promises, and every executor of cells."""

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from node.cli.app import app
from node.sweep import cell_processes
from node.sweep.base import PROMISED, Cell, CellExecutor, CellFailure, CellRunner
from node.sweep.executors import EXECUTORS
from node.sweep.runners import RUNNERS
from node.system.errors import UsageError

SCENARIO = Path(__file__).parents[1] / "reporting" / "small_scenario.toml"
HAS_SIMULATE = any(each.name == "simulate" for each in app.registered_commands)
SMALL: dict[str, dict[str, Any]] = {
    "scenario": {"scenario.file": str(SCENARIO), "train.rounds": 2},
    "swarm": {"task.name": "digits", "train.rounds": 2, "train.inner_steps": 2, "swarm.nodes": 3, "swarm.degree": 2},
}
"""The smallest run of each."""
REFUSED: dict[str, dict[str, Any]] = {
    "scenario": {"scenario.file": "nowhere.toml"},
    "swarm": {"swarm.nodes": 0, "nowhere.key": 1},
}


@pytest.fixture(params=sorted(SMALL))
def runner(request: pytest.FixtureRequest) -> CellRunner:
    return RUNNERS.get(request.param)


def test_every_runner_is_tried() -> None:
    assert sorted(SMALL) == RUNNERS.names()


@pytest.mark.slow
def test_a_row_has_what_is_promised_and_is_the_same_again(runner: CellRunner) -> None:
    assert isinstance(runner, CellRunner)
    if runner.name == "scenario" and not HAS_SIMULATE:
        pytest.skip("this release has no `p2ptrain simulate`")
    row = runner.run(SMALL[runner.name], 1)
    assert set(PROMISED) <= row.keys()
    assert json.loads(json.dumps(row, allow_nan=False))
    assert row["sent_bytes"] >= row["published_bytes"] > 0
    step, sent, loss = row["curve"][-1]
    assert step == row["steps"]
    assert sent == pytest.approx(row["sent_bytes"], rel=0.2), "nodes also send while they leave"
    assert loss == pytest.approx(row["loss"], rel=1e-4)
    again = runner.run(SMALL[runner.name], 1)
    assert {key: again[key] for key in PROMISED} == {key: row[key] for key in PROMISED}
    other = runner.run(SMALL[runner.name], 2)
    assert other["loss"] != row["loss"]


def test_a_document_tells_runs_apart(runner: CellRunner) -> None:
    settings = SMALL[runner.name]
    documents = [runner.document(settings, 1), runner.document(settings, 2)]
    assert documents[0] != documents[1]
    assert documents[0] == runner.document(dict(reversed(settings.items())), 1)
    assert json.loads(json.dumps(documents[0])) == documents[0]


def test_what_cannot_be_is_refused_before_it_is_run(runner: CellRunner) -> None:
    with pytest.raises((ValueError, UsageError)):
        runner.document({**SMALL[runner.name], **REFUSED[runner.name]}, 0)


# -- executors


def test_every_executor_is_tried() -> None:
    assert EXECUTORS.names() == ["here", "processes", "ray"]


@pytest.fixture(params=["here", *(pytest.param(name, marks=pytest.mark.slow) for name in ("processes", "ray"))])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CellExecutor:
    if request.param == "ray":
        pytest.importorskip("ray", reason="needs Ray (pip install ray)")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # its processes know no path of pytest's
    return EXECUTORS.get(request.param)


def cell(name: str, **settings: Any) -> Cell:
    return Cell(id=name, runner="swarm", settings={**SMALL["swarm"], **settings}, varied={}, seed=0)


def test_every_cell_comes_once_with_its_row_or_its_failure(executor: CellExecutor) -> None:
    assert isinstance(executor, CellExecutor)
    broken = cell("broken", **{"task.name": "cell_runner_faults:raising"})
    cells = [cell("one"), cell("refused", **{"swarm.nodes": 0}), broken, cell("two")]
    found = {each.id: outcome for each, outcome in executor.run(cells, 1)}
    assert list(found) == ["one", "refused", "broken", "two"]
    assert isinstance(found["one"], dict)
    assert {**found["one"], "wall_s": 0, "cpu_s": 0} == {**found["two"], "wall_s": 0, "cpu_s": 0}  # type: ignore[dict-item]
    assert found["refused"] == CellFailure("nodes must be between 1 and 64, not 0", refused=True)
    failure = found["broken"]
    assert isinstance(failure, CellFailure)
    assert "RuntimeError: no such luck" in failure.error
    assert list(executor.run([], 2)) == []


@pytest.mark.thorough
def test_a_process_that_is_killed_takes_its_cell_along_and_no_other() -> None:
    dying = cell("dying", **{"task.name": "cell_runner_faults:dying"})
    found = {each.id: outcome for each, outcome in EXECUTORS.get("processes").run([dying, cell("other")], 1)}
    assert found["dying"] == CellFailure("its process died: killed by SIGKILL")
    assert isinstance(found["other"], dict)


class Ended:
    """A process that ends: before anybody asks, or while it is given a cell."""

    exitcode = -9

    def __init__(self, *, noticed: bool) -> None:
        self._alive = not noticed
        self.sentinel = 0

    def is_alive(self) -> bool:
        return self._alive

    def terminate(self) -> None:
        self._alive = False

    def join(self, timeout: float | None = None) -> None:
        pass


@pytest.mark.parametrize("noticed", [True, False])
def test_a_process_that_dies_between_two_cells_costs_no_cell(noticed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = multiprocessing.Pipe()
    there.close()
    dead = cell_processes._Worker(Ended(noticed=noticed), here)  # type: ignore[arg-type]
    mine, its = multiprocessing.Pipe()
    new = cell_processes._Worker(Ended(noticed=False), mine)  # type: ignore[arg-type]
    monkeypatch.setattr(cell_processes, "_started", lambda folder: new)
    assert cell_processes._given(dead, cell("next"), "folder") is new
    assert (new.cell, its.recv()) == (cell("next"), cell("next"))
    assert here.closed
