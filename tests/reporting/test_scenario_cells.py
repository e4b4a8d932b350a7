"""Cells that are scenarios, without a simulation: what is asked of it, and what is read off its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from swarm_folders import member_events, member_round

from node.config.toml_source import parse_value
from node.events.log import to_line
from node.sweep import scenario_cells
from node.sweep.scenario_cells import ScenarioCells
from node.system.errors import RunError, UsageError
from node.system.run_dir import EVENTS

RESULT = {
    "events_digest": "d1",
    "loss_mean": 2.5,
    "bytes_sent_mean": 800_000.0,
    "virtual_s": 12.5,
    "broken": ["loss_max: too high"],
    "groups": [{"group": "home", "byzantine": False}, {"group": "bad", "byzantine": True}],
}


def node_folder(out: Path, name: str, *, loss: float) -> None:
    (out / name).mkdir(parents=True)
    start, *_ = member_events(0, rounds=0)
    lines = [
        {**start, "metric": "nats"},
        {"ts": 0.0, "event": "evaluated", "round": 0, "eval_loss": 5.0},
        {**member_round(1), "payload_bytes": 100},
        start,
        {**member_round(2), "payload_bytes": 50, "bytes_sent": 1000},
        {"ts": 3.0, "event": "evaluated", "round": 2, "eval_loss": loss},
    ]
    (out / name / EVENTS).write_text("".join(map(to_line, lines)))


def test_a_row_is_of_the_result_and_of_the_honest_nodes_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def simulated(words: Sequence[str]) -> dict[str, Any]:
        asked.extend(words)
        out = Path(words[words.index("--out") + 1])
        for name, loss in (("home-0", 2.0), ("home-1", 3.0), ("bad-0", 99.0)):
            node_folder(out, name, loss=loss)
        return RESULT

    monkeypatch.setattr(scenario_cells, "_simulated", simulated)
    monkeypatch.setattr(scenario_cells, "hashes_are_fixed", lambda: False)
    texts = {"sync.compressor": 'q"2', "nodes.home.count": 3, "train.rates": [1e-3, 2.0], "x.yes": True}
    settings = {"scenario.file": "a.toml", "scenario.until_s": 60.0, "scenario.day_s": 30, **texts}
    row = ScenarioCells().run(settings, 7)
    assert asked[:7] == ["simulate", "a.toml", "--seed", "7", "--json", "--until", "60.0"]
    sets = dict(word.split("=", 1) for word in asked if "=" in word)
    assert {key: parse_value(value) for key, value in sets.items()} == {"train.seed": 7, "day_s": 30, **texts}
    assert row["curve"] == [[0, 0, 5.0], [40, 126_000, 2.5]]
    assert row["steps"] == 40
    assert row["published_bytes"] == 150
    assert row["metric"] == "nats"
    assert (row["loss"], row["sent_bytes"], row["seconds"]) == (2.5, 800_000.0, 12.5)
    assert row["broken"] == ["loss_max: too high"]
    assert row["events_digest"] == "d1"


def test_a_scenario_without_its_file_is_refused(tmp_path: Path) -> None:
    for settings in ({}, {"scenario.file": str(tmp_path / "nowhere.toml")}, {"scenario.file": 3}):
        with pytest.raises(UsageError):
            ScenarioCells().document(settings, 0)


def test_a_changed_file_is_another_run(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("until_s = 1.0")
    before = ScenarioCells().document({"scenario.file": str(path)}, 0)
    path.write_text("until_s = 2.0")
    assert ScenarioCells().document({"scenario.file": str(path)}, 0) != before


@pytest.mark.parametrize(
    ("program", "error", "why"),
    [
        ("import sys; print('error: no such thing', file=sys.stderr); sys.exit(2)", UsageError, "no such thing"),
        ("import os; os.abort()", RunError, "ended with code -6"),
        ("print('no json')", RunError, "ended with code 0"),
    ],
)
def test_what_a_simulation_ends_with_is_told(
    monkeypatch: pytest.MonkeyPatch, program: str, error: type[Exception], why: str
) -> None:
    monkeypatch.setattr(scenario_cells, "PROGRAM", program)
    with pytest.raises(error, match=why):
        scenario_cells._simulated(["simulate", "x.toml"])


def test_a_broken_invariant_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario_cells, "PROGRAM", "import sys; print('{\"broken\": [1]}'); sys.exit(1)")
    assert scenario_cells._simulated([]) == {"broken": [1]}
