"""The twin of a run that was: what its nodes' logs tell of it comes back."""

import json
import math
from pathlib import Path

import pytest
from simulated import ran

from node.cli.app import main
from node.simulation.like_run import FEWEST_ROUNDS, compared, real_nodes, scenario_like
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play
from node.system.errors import UsageError

ROUNDS = (
    "train.rounds=8",
    "train.eval_every=8",
    *(f"devices.desktop.{key}_s=0.02" for key in ("encode", "decode", "aggregate", "other")),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder, of a simulation: every node's as of a process."""
    made = tmp_path_factory.mktemp("run")
    folder = made / "nodes"
    folder.mkdir()
    from simulated import scenario_in

    play(scenario_in(made, "", *ROUNDS), folder=folder)
    return folder


def test_speeds_and_settings_are_those_of_the_logs(run, tmp_path):
    nodes = real_nodes(run)
    assert [node.name for node in nodes] == [f"home-{number}" for number in range(4)]
    for node in nodes:
        assert node.rounds == 8
        assert node.step_s == pytest.approx(0.1, rel=0.25)
        assert node.round_sigma == pytest.approx(0.2 / 3**0.5, abs=0.08), "of a round's three steps"
        assert node.mean_exchange_s > node.mean_work_s > 0
        assert node.work_s == pytest.approx(0.02, rel=0.6)
    path = tmp_path / "like.toml"
    path.write_text(scenario_like(run))
    loaded = load_scenario(path)
    assert {config.train.rounds for config in loaded.configs.values()} == {8}
    assert sorted(config.node.shard_index for config in loaded.configs.values()) == [0, 1, 2, 3]
    assert "device =" not in path.read_text().partition("[devices")[0], "of the host"


@pytest.mark.slow
def test_a_twin_comes_to_what_the_run_came_to(run, tmp_path):
    path = tmp_path / "like.toml"
    path.write_text(scenario_like(run))
    figures = {each.what: each for each in compared(real_nodes(run), play(load_scenario(path)))}
    assert abs(figures["first round's end to the last's"].off) < 0.1
    assert abs(figures["round (median)"].off) < 0.2, "of eight rounds of three steps that vary by a fifth"
    assert abs(figures["bytes sent by a node"].off) < 0.15
    assert abs(figures["held-out loss"].off) < 0.03


def test_what_is_no_event_is_passed_over_and_the_newest_process_counts(tmp_path):
    folder = tmp_path / "node-0"
    folder.mkdir()
    lines = ["no json", "[]", '{"event": "round"}', json.dumps({"ts": 1.0, "event": "started"})]
    for number, step_s in enumerate([9.0, 9.0, 0.1, 0.1, 0.1, 0.1]):
        round_ = number + 1 if number < 2 else number
        lines.append(json.dumps({"ts": 2.0 + number, "event": "round", "round": round_, "step_s": step_s, "steps": 5}))
    lines.append('{"ts": 99.0, "event": "rou')
    (folder / "events.jsonl").write_text("\n".join(lines))
    (node,) = real_nodes(tmp_path)
    assert (node.rounds, node.step_s, node.round_sigma) == (4, 0.2, 0.0), "five steps a second"
    assert node.round_s == 1.0
    assert node.bytes_sent is None


@pytest.mark.parametrize(
    "odd", [{"ts": math.nan}, {"ts": 1e308}, {"ts": -5.0}, {"exchange_s": "fast"}, {"steps": "many"}, {"publish_s": []}]
)
def test_odd_figures_are_passed_over(tmp_path, odd):
    for name in ("node_1!", "node_1?"):
        folder = tmp_path / name
        folder.mkdir()
        rounds = [{"ts": float(n), "event": "round", "round": n, "step_s": 0.1, "steps": 5} for n in range(1, 7)]
        lines = [{"ts": 3.5, "event": "round"}, *rounds[:3], rounds[3] | odd, *rounds[4:]]
        (folder / "events.jsonl").write_text("\n".join(map(json.dumps, lines)))
    path = tmp_path / "like.toml"
    path.write_text(scenario_like(tmp_path))
    assert len(load_scenario(path).scenario.nodes) == 2


def test_a_twin_that_comes_nowhere_has_figures_that_are_not_known(run, tmp_path):
    path = tmp_path / "like.toml"
    path.write_text(scenario_like(run))
    figures = compared(real_nodes(run), play(load_scenario(path, until_s=0.2)))
    assert figures[0].simulated is figures[1].simulated is None


def test_a_run_of_too_few_rounds_is_no_measure(tmp_path):
    folder = tmp_path / "node-0"
    folder.mkdir()
    rounds = [{"ts": float(n), "event": "round", "round": n, "step_s": 0.1} for n in range(1, FEWEST_ROUNDS)]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, rounds)))
    with pytest.raises(UsageError, match="has closed 3 rounds"):
        real_nodes(tmp_path)
    with pytest.raises(UsageError, match="no run folder"):
        real_nodes(tmp_path / "nothing")


@pytest.mark.thorough
def test_the_command_writes_the_scenario_and_holds_the_two_together(run, tmp_path, capsys):
    path = tmp_path / "twin.toml"
    done = ran(str(path), "--like", str(run), "--json", "--set", "train.rounds=3", "--set", "train.eval_every=3")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {each["what"] for each in told["compared"]} >= {"round (median)", "held-out loss"}
    path.write_text("# something else\n")
    assert main(["simulate", str(path), "--like", str(run)]) == 2
    assert "is not like" in capsys.readouterr().err


def test_means_are_without_the_first_round_which_waits_for_others_to_come(tmp_path):
    folder = tmp_path / "node-0"
    folder.mkdir()
    slow = {"step_s": 0.1, "steps": 5, "publish_s": 9.0, "aggregate_s": 9.0, "exchange_s": 9.0}
    usual = {"step_s": 0.1, "steps": 5, "publish_s": 0.01, "aggregate_s": 0.03, "exchange_s": 0.2}
    rounds = [{"ts": float(n), "event": "round", "round": n, **(slow if n == 1 else usual)} for n in range(1, 5)]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, rounds)) + "\n")
    (node,) = real_nodes(tmp_path)
    assert (node.mean_work_s, node.mean_exchange_s) == (pytest.approx(0.02), pytest.approx(0.2))
