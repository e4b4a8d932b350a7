"""`p2ptrain node --invite` with an observer's line: a process that shows the swarm's model and gives nothing."""

import json
import urllib.request
from pathlib import Path

import pytest
from processes_harness import Program

from gossip.membership import Role
from node.cli import main
from node.swarm.create import CreateRequest, create
from node.swarm.folder import SwarmFolder
from node.swarm.inviting import Wish, give

pytestmark = pytest.mark.paired

TASK = "paced_digits:create"
RAW = {"task": {"name": TASK}, "train": {"rounds": 400, "inner_steps": 20, "eval_every": 4}}


@pytest.mark.thorough
def test_an_observer_by_its_invite_then_its_folder_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(tmp_path / "lab", RAW, CreateRequest(name="lab", psk=True, first=Wish()), None)
    folder, line = SwarmFolder(tmp_path / "lab"), tmp_path / "watch.txt"
    line.write_text(give(folder, folder.authority(None), Wish(role=Role.OBSERVER)))
    own = ("--json", "--set", "train.threads=1")
    here = ("--listen", "/ip4/127.0.0.1/tcp/0", "--run-dir", tmp_path / "watch")
    with Program(tmp_path / "0", "node", *own, "--swarm", folder.path) as first:
        first.hear("started", role="trainer")
        with Program(tmp_path / "1", "node", *own, "--invite", line, "--task", TASK, *here) as watcher:
            started = watcher.hear("started", role="observer")
            watcher.hear("joined", donors=1)
            seen = watcher.hear_round(2)
            measured = watcher.hear("evaluated", round=seen["round"])
            watcher.hear("checkpoint")
            with urllib.request.urlopen(started["metrics_url"] + "/status") as answer:
                status = json.load(answer)
            with urllib.request.urlopen(started["metrics_url"] + "/metrics") as answer:
                metrics = answer.read().decode()
            # What it keeps at the end it has measured: the next round that it takes is 1.6 s away.
            measured = watcher.hear("evaluated", count=len(watcher.heard("evaluated")) + 1)
            watcher.interrupt()
            assert watcher.end() == 130
        assert (status["role"], status["neighbours"], status["steps"]) == ("observer", 1, 0)
        assert status["rounds_done"] >= seen["round"]
        assert "p2ptrain_members 1.0" in metrics
        assert not watcher.heard("join")
        assert seen["payload_bytes_sent"] == seen["snapshot_bytes_sent"] == 0
        assert "steps" not in seen

        kept = watcher.heard("checkpoint")[-1]["round"]
        capsys.readouterr()
        assert main(["evaluate", str(tmp_path / "watch"), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["round"] == kept
        assert told["eval_loss"] == pytest.approx(watcher.heard("evaluated", round=kept)[-1]["eval_loss"], rel=1e-5)
        assert measured["eval_loss"] > 0
        with Program(tmp_path / "2", "node", *own, "--run-dir", tmp_path / "watch") as again:
            again.hear("resumed", round=kept)
            again.hear("started", role="observer")
            again.hear_round(kept + 2)
            again.interrupt()
            assert again.end() == 130
        assert not first.heard("neighbour_up"), "it takes nobody's place"
        assert not first.heard("rejected")
