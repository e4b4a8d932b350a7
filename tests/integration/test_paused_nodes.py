"""Real nodes that are paused by a policy, and by the system: they are back by themselves, and the others do not wait.

The policy is a plug-in of an installed package, and looks for a file: the user's own word that the machine is needed.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from processes_harness import PACED, Program, node

pytestmark = [pytest.mark.thorough, pytest.mark.alone]

POLICY = '''
from pathlib import Path


class BusyFile:
    """Pauses while a file is there."""

    reads = ()
    at_once = True

    def __init__(self, path: str = "") -> None:
        self._path = Path(path)

    def forbids(self, state, *, paused):
        return "its user is here" if self._path.exists() else None
'''

REACTION_S = 1.0
AWAY_S = 5.0
PHASE = 20
"""Steps of a round (PACED)."""


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file; the policy `busy_file` is installed for the processes of this test."""
    site = tmp_path / "site"
    named = site / "busy_file-1.dist-info"
    named.mkdir(parents=True)
    (site / "busy_file.py").write_text(POLICY)
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: busy-file\nVersion: 1\n")
    (named / "entry_points.txt").write_text("[p2ptrain.participation]\nbusy_file = busy_file:BusyFile\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    return tmp_path / "busy"


def started(folder: Path, name: str, *words: object) -> Program:
    return node(folder / name, *PACED, "--rounds", 100_000, "--set", "node.wait_timeout_s=60", *words, real=True)


def two(folder: Path, busy: Path) -> tuple[Program, Program]:
    """One that always trains, and one that the file pauses."""
    lent = ('participation.policy=["busy_file"]', f"participation.busy_file.path={busy}", "participation.calm_s=1")
    first = started(folder, "always", "--set", "node.wait_for=0")
    address = first.hear("started")["addresses"][0]
    settings = [word for value in lent for word in ("--set", value)]
    return first, started(folder, "lent", "--peer", address, "--set", "node.wait_for=1", *settings)


def after(program: Program, ts: float) -> list[dict[str, Any]]:
    return [event for event in program.heard("round") if event["ts"] > ts]


def steps_not_published(program: Program) -> int:
    """Steps that it has taken and no update has, when it was stopped."""
    program.interrupt()
    program.end()
    (ended,) = program.heard("interrupted")
    return int(ended["summary"]["steps"]) - sum(event["steps"] for event in program.heard("round"))


def test_a_file_pauses_a_node_within_a_second_and_its_end_lets_it_go_on(tmp_path: Path, busy: Path) -> None:
    always, lent = two(tmp_path, busy)
    with always, lent:
        lent.hear("round", count=5)
        busy.touch()
        wanted_at = time.time()
        paused = lent.hear("paused")
        assert paused["reason"] == "busy_file"
        assert paused["why"] == "its user is here"
        assert paused["ts"] - wanted_at <= REACTION_S
        time.sleep(AWAY_S)
        assert len(after(lent, paused["ts"])) <= 2, "the open round, and the one that was being closed"
        known = paused["ts"] + 2.0
        theirs = always.until(lambda: after(always, known), 3, "rounds of the other", 60.0)
        assert {event["closed_by"] for event in theirs} == {"alone"}, "its only neighbour has said that it is paused"
        busy.unlink()
        back = lent.hear("unpaused")
        assert back["seconds"] >= AWAY_S
        lent.until(lambda: after(lent, back["ts"]), 5, "rounds after the pause", 60.0)
        always.until(lambda: [e for e in after(always, back["ts"]) if e["members"] == 2], 1, "it is averaged", 60.0)
        joins = len(lent.heard("joined"))
        assert steps_not_published(lent) <= 3 * PHASE + joins, "the rounds that were open when it was stopped"


def test_a_node_that_the_system_stopped_goes_on(tmp_path: Path, busy: Path) -> None:
    always, lent = two(tmp_path, busy)
    with always, lent:
        lent.hear("round", count=5)
        os.kill(lent.pid, signal.SIGSTOP)
        try:
            stopped_at = time.time()
            time.sleep(AWAY_S)
            always.until(lambda: after(always, stopped_at + 1.0), 3, "rounds of the other", 60.0)
        finally:
            os.kill(lent.pid, signal.SIGCONT)
        continued_at = time.time()
        lent.until(lambda: after(lent, continued_at), 5, "rounds after the stop", 60.0)
        always.until(lambda: [e for e in after(always, continued_at) if e["members"] == 2], 1, "it is averaged", 60.0)
        joins = len(lent.heard("joined"))
        assert steps_not_published(lent) <= 3 * PHASE + joins
        assert not lent.heard("paused"), "no policy did this"
