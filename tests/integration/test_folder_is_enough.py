"""After kill -9 the run folder alone goes on: with its settings, its swarm, and as many rounds as are asked for."""

import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest
from processes_harness import DIGITS, PACED, Program, gone, node, ran, up
from sizes import thorough_but

pytestmark = pytest.mark.paired

ROUNDS = 150
FIRST = ("--rounds", ROUNDS, "--seed", 3, "--set", "node.checkpoint_every=2", "--set", "sync.compressor=sign1", *PACED)
"""Two checkpoints are two seconds away, and the last round a minute."""


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "config.toml").read_text())


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoint").glob("round-*"))


@pytest.mark.thorough
def test_a_killed_node_goes_on_from_its_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "node"
    with node(tmp_path, *FIRST) as first:
        first.hear("checkpoint", count=2)
        first.process.kill()
        assert first.end() == -signal.SIGKILL
    before, kept = settings(folder), checkpoints(folder)
    with Program(tmp_path, "node", "--json", "--run-dir", tmp_path / "run") as back:
        resumed = back.hear("resumed")
        assert resumed["round"] == int(kept[-1].name.removeprefix("round-"))
        assert back.hear_round(resumed["round"] + 1)["rounds"] == ROUNDS
        assert back.heard("started")[0]["task"] == "paced_digits:create"
        back.interrupt()
        assert back.end() == 130
        assert back.stderr == ""
    assert settings(folder) == before
    more = checkpoint_round(folder) + 2
    with Program(tmp_path, "node", "--json", "--run-dir", tmp_path / "run", "--rounds", more) as longer:
        assert longer.end() == 0
        assert longer.heard("round")[-1]["round"] == more
    assert settings(folder) == {**before, "train": {**before["train"], "rounds": more}}


def checkpoint_round(folder: Path) -> int:
    return int(checkpoints(folder)[-1].name.removeprefix("round-"))


def test_a_killed_swarm_goes_on_from_its_folder_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folders = [run / f"node-{index}" for index in range(3)]
    liars = ("--byzantine", 1, "--attack", "alie", "--set", "attack.z=1.5")
    with up(tmp_path, "--nodes", 3, *liars, *FIRST) as first:
        for folder in folders:
            first.hear("checkpoint", node=folder.name)
        pids = first.pids()
        first.process.kill()
        assert gone(pids)
    before = [settings(folder) for folder in folders]
    assert [each["attack"]["name"] for each in before] == ["none", "none", "alie"]
    with up(tmp_path) as back:
        for folder in folders:
            resumed = back.hear("resumed", node=folder.name)
            assert back.hear_round(resumed["round"] + 1, node=folder.name)["rounds"] == ROUNDS
        assert len(back.pids()) == 3
        back.interrupt()
        assert back.end() == 130
        assert not back.heard("died")
        assert back.stderr == ""
    assert [settings(folder) for folder in folders] == before
    told = ran(tmp_path, "up", "--run-dir", "run", "--nodes", 4)
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith("error: --nodes 4 cannot change in the run in run: there it is 3; ")
    assert [settings(folder) for folder in folders] == before


TASK = """
import torch
from p2ptrain.tasks.digits import Digits

class Mine(Digits):
    def build_model(self):
        return torch.nn.Sequential(super().build_model(), *[torch.nn.Linear(10, 10) for _ in range(LAYERS)])
"""


@pytest.mark.parametrize("verb", thorough_but({"node"}, ["node", "up"]))
def test_a_task_whose_code_makes_another_model_by_now_changes_nothing(tmp_path: Path, verb: str) -> None:
    code = tmp_path / "mine.py"
    code.write_text(f"LAYERS = 1\n{TASK}")
    loopback = ("--listen", "/ip4/127.0.0.1/tcp/0") if verb == "node" else ("--nodes", 1)
    quick = ("--rounds", 2, "--inner-steps", 2, *DIGITS[2:], *loopback)
    first = ran(tmp_path, verb, "--task", "mine:Mine", *quick, "--run-dir", "run", "--json")
    assert first.code == 0, first.err
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "lock"]
    before = {path: path.read_bytes() for path in files if "events" not in path.name}
    code.write_text(f"LAYERS = 2\n{TASK}")
    told = ran(tmp_path, verb, "--run-dir", "run", "--rounds", 9, "--json")
    assert told.code == 1
    assert told.err.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before
    code.write_text(f"LAYERS = 1\n{TASK}")
    again = ran(tmp_path, verb, "--run-dir", "run", "--rounds", 3, "--json")
    assert again.code == 0, again.err
    assert settings(tmp_path / "run" / ("node" if verb == "node" else "node-0"))["train"]["rounds"] == 3
