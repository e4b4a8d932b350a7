"""What a large run leaves for `report`: logs of the evaluated nodes, in the words of real ones."""

import json
from pathlib import Path

import pytest

from node.cli.app import main
from node.events.event_types import Evaluated, Finished, Interrupted, LearnerStarted, RoundTrained
from node.events.log import read_events
from node.simulation.growth import scenario_text
from node.simulation.large.large import play_large
from node.simulation.large.large_swarm import EVALUATED
from node.simulation.member import UNIX_START
from node.simulation.scenario_file import load_scenario
from node.simulation.verdict import judged
from node.system.run_dir import EVENTS

NODES, ROUNDS = 24, 4

LEAVES = """
[[events]]
at_s = 3.0
kind = "leave"
nodes = ["*"]

[[events]]
at_s = 6.0
kind = "restart"
nodes = ["*"]
"""


def logs_of(folder: Path, more: str = "") -> tuple[Path, list[Path]]:
    path, out = folder / "large.toml", folder / "run"
    path.write_text(scenario_text(NODES, ROUNDS, mode="large") + more, encoding="utf-8")
    out.mkdir()
    alone = judged(play_large(load_scenario(path)))
    assert judged(play_large(load_scenario(path), folder=out)).events_digest == alone.events_digest
    return out, sorted(out.glob(f"*/{EVENTS}"))


def test_the_evaluated_nodes_have_logs_of_their_rounds_and_losses(tmp_path: Path) -> None:
    _, logs = logs_of(tmp_path)
    assert len(logs) == EVALUATED
    for log in logs:
        started, *rounds, ended = read_events(log)
        assert isinstance(started, LearnerStarted)
        assert (started.ts, started.task, started.parameters) == (UNIX_START, "quadratic", 64)
        assert isinstance(ended, Finished)
        trained = [event for event in rounds if isinstance(event, RoundTrained)]
        assert [event.round for event in trained] == [1, 2, 3, 4]
        assert [event.ts for event in trained] == sorted({event.ts for event in trained})
        sent = [event.bytes_sent or 0 for event in trained]
        assert sent == sorted(set(sent))
        assert all(event.train_loss is not None and event.neighbours == 8 for event in trained)
        assert sum(event.steps for event in trained) == 4 * ROUNDS
        (evaluated,) = [event for event in rounds if isinstance(event, Evaluated)]
        assert evaluated.round == ROUNDS


def test_who_leaves_and_comes_back_says_so(tmp_path: Path) -> None:
    _, logs = logs_of(tmp_path, LEAVES)
    for log in logs:
        kinds = [type(event) for event in read_events(log)]
        assert kinds.count(LearnerStarted) == 2
        assert kinds.count(Interrupted) == 1


def test_report_makes_a_page_of_a_large_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = logs_of(tmp_path)
    page = tmp_path / "page.html"
    assert main(["report", str(out), "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "home-" in text
    assert "mean of the quadratics" in text
    assert json.dumps("Loss") in text
