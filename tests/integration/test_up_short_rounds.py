"""Real swarms whose phases are over before an exchange is: issue 13's `up --task digits`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes_harness import DIGITS, Program, up

ROUNDS = 20


def summary(folder: Path) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return whole


def taken(program: Program, name: str) -> float:
    """The share of its neighbours' updates that a node has accepted."""
    rounds = program.heard("round", node=name)
    return float(rounds[-1]["accepted"] / sum(fields["neighbours"] for fields in rounds))


@pytest.mark.thorough
@pytest.mark.paired
def test_updates_of_very_short_rounds_arrive_and_the_swarm_says_so(tmp_path: Path) -> None:
    """Phases of a step: an exchange outlasts them on any machine."""
    names = [f"node-{number}" for number in range(4)]
    with up(tmp_path, *DIGITS, "--nodes", 4, "--rounds", ROUNDS, "--inner-steps", 1) as program:
        assert program.end() == 0, program.stderr
        whole = summary(tmp_path)
        for name, node in zip(names, whole["nodes"], strict=True):
            assert taken(program, name) > 0.8
            assert node["updates_in_time"] > 0.5, "of a machine that others use as well"
            assert node["steps"] > 2 * ROUNDS, "its rounds are longer than planned"
            told = program.heard("round", node=name)[-1]
            assert 0 < told["exchange_s"] < 30.0
            assert told["updates_in_time"] == pytest.approx(node["updates_in_time"], abs=0.5)
        assert whole["swarm"]["updates_in_time"] > 0.5


@pytest.mark.soak
@pytest.mark.parametrize("nodes", [2, 4, 6, 8])
def test_the_issues_swarm_beside_one_that_computes(tmp_path: Path, nodes: int) -> None:
    """`up --task digits --nodes N` with one other process computing; scripts/short_rounds.py shows the figures."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with up(tmp_path, "--task", "digits", "--nodes", nodes) as program:
            assert program.end(600.0) == 0, program.stderr
            whole = summary(tmp_path)
            for number in range(nodes):
                assert taken(program, f"node-{number}") >= 0.8
            assert whole["swarm"]["updates_in_time"] >= 0.8
            assert min(node["utilization"] for node in whole["nodes"]) >= 0.9
            assert whole["swarm"]["consensus_distance"] < 0.3
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.soak
def test_a_swarm_that_loses_half_of_its_updates_says_so_once_and_when_it_is_well_again(tmp_path: Path) -> None:
    """Two of four are stopped for a while, so that more than twenty of each one's updates are lost in a row."""
    words = (*DIGITS, "--nodes", 4, "--rounds", 400, "--inner-steps", 10, "--set", "node.linger_s=0.1")
    with up(tmp_path, *words) as program:
        pids = {name: int(program.hear("started", node=name)["pid"]) for name in ("node-2", "node-3")}
        program.hear_round(25, node="node-0")
        stopped = [psutil.Process(pid) for pid in pids.values()]
        for process in stopped:
            process.suspend()
        try:
            fell = program.hear("warning", node="node-0", about="updates_in_time")
        finally:
            for process in stopped:
                process.resume()
        assert "of the neighbours' updates arrived in time over the last 20 rounds" in fell["message"]
        well = program.hear("warning", node="node-0", about="updates_in_time", count=2)
        assert well["recovered"]
        assert "arrive in time again" in well["message"]
        program.interrupt()
        program.end()
