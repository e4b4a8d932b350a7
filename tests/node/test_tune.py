"""`p2ptrain tune`, and what `train.learning_rate = "auto"` means to each command."""

import json

import pytest

from node.cli.app import main
from node.config.auto_rate import find_rate, wants_auto, without_auto
from node.config.schema import from_raw
from node.system.errors import UsageError
from node.up.resume import start_in

QUICK = (
    "--task",
    "digits",
    "--set",
    "train.batch_size=4",
    "--set",
    "train.threads=1",
    "--set",
    "train.eval_examples=64",
)
AUTO = {"train": {"learning_rate": "auto", "batch_size": 4}}


def test_it_prints_a_setting_that_other_commands_take(capsys):
    assert main(["tune", *QUICK, "--steps", "10"]) == 0
    *_, setting = capsys.readouterr().out.splitlines()
    word, assignment = setting.split()
    assert word == "--set"
    assert main(["config", "check", "--set", assignment]) == 0


def test_it_tells_programs_every_trial(capsys):
    assert main(["tune", *QUICK, "--steps", "10", "--json"]) == 0
    *trials, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(trials) >= 5
    assert all(trial["rate"] > 0 for trial in trials)
    best = min(trials, key=lambda trial: trial["loss"])
    assert 0 < last["learning_rate"] < best["rate"], "the run is 120 times as long as a trial"
    assert last["trial_steps"] == 10


def test_a_longer_run_is_given_less(capsys):
    rates = []
    for rounds in ("60", "6000"):
        assert main(["tune", *QUICK, "--steps", "10", "--json", "--rounds", rounds]) == 0
        rates.append(json.loads(capsys.readouterr().out.splitlines()[-1])["learning_rate"])
    assert rates[1] < rates[0] / 3


def test_a_file_for_up_is_valid(tmp_path, capsys):
    file = tmp_path / "up.toml"
    file.write_text('[train]\nlearning_rate = "auto"\n')
    assert main(["config", "check", "--config", str(file)]) == 0
    assert main(["config", "check", "--set", "train.learning_rate=automatic"]) == 2
    assert "train.learning_rate" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["node", "doctor"])
def test_a_node_by_itself_finds_no_rate(capsys, tmp_path, command):
    words = [command, "--set", "train.learning_rate=auto", "--task", "digits", "--run-dir", str(tmp_path / "run")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "p2ptrain tune" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_up_starts_its_nodes_with_a_number(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        "node.cli.up_cmd._up", lambda config, folder, **_: started.append(config.train.learning_rate) or 0
    )
    words = [
        "up",
        *QUICK,
        "--set",
        "train.learning_rate=auto",
        "--rounds",
        "4",
        "--run-dir",
        str(tmp_path / "run"),
        "--json",
    ]
    assert main(words) == 0
    (rate,) = started
    assert isinstance(rate, float)
    assert rate != 3e-3


def test_a_swarm_has_a_number_in_its_manifest(tmp_path, capsys):
    out = tmp_path / "swarm"
    words = ["swarm", "create", "club", "--out", str(out), "--no-passphrase", "--at", "127.0.0.1:4001", *QUICK]
    assert main([*words, "--set", "train.learning_rate=auto", "--rounds", "4", "--json"]) == 0
    capsys.readouterr()
    assert main(["swarm", "show", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"]["train"]["learning_rate"] != 3e-3
    assert isinstance(shown["settings"]["train"]["learning_rate"], float)


def test_a_run_that_goes_on_keeps_its_rate(tmp_path):
    folder = tmp_path / "node-0"
    folder.mkdir()
    (folder / "config.toml").write_text(
        '[task]\nname = "digits"\n[train]\nlearning_rate = 0.5\n[node]\nshard_count = 2\n'
    )
    start = start_in(tmp_path, AUTO, nodes=None, byzantine=None)
    assert start.raw["train"] == {"learning_rate": 0.5, "batch_size": 4}
    assert from_raw(start.raw).train.learning_rate == 0.5


def test_only_the_wish_is_left_out():
    assert without_auto(AUTO) == {"train": {"batch_size": 4}}
    assert wants_auto(AUTO), "nothing is changed in place"
    given = {"train": {"learning_rate": 0.1}}
    assert without_auto(given) is given
    assert not wants_auto({"train": 3})


def test_what_never_learns_is_said(monkeypatch):
    monkeypatch.setattr("node.config.auto_rate.run_trial", lambda *_: float("nan"))
    with pytest.raises(UsageError, match="no learning rate"):
        find_rate({"task": {"name": "digits"}}, lambda trial: None, steps=10)


def test_a_loss_that_no_rate_changes_is_said_and_gives_no_rate(monkeypatch):
    monkeypatch.setattr("node.config.auto_rate.run_trial", lambda *_: 2.3026)
    with pytest.raises(UsageError, match=r"held-out loss is 2\.303 after 10 steps at every rate: nothing was learned"):
        find_rate({"task": {"name": "digits"}}, lambda trial: None, steps=10)


def test_a_model_of_a_users_own_program_has_no_task_to_try():
    with pytest.raises(UsageError, match="its own program"):
        find_rate({"task": {"name": "external"}}, lambda trial: None, steps=10)
