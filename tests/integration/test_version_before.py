"""What the version before left on a disk still works: a run of two nodes, and a private swarm of two members.

tests/data/ has both as that version made them (commit e9f21a8), with the commands:

    p2ptrain up --task digits --nodes 2 --rounds 6 --inner-steps 5 --run-dir run
    p2ptrain swarm create lab --out lab --no-passphrase --task digits --rounds 6 --inner-steps 5 --at 127.0.0.1:47011
    p2ptrain node --swarm lab --set node.wait_for=1 & p2ptrain node --invite lab/invite.txt --run-dir member
"""

import json
import tarfile
from pathlib import Path

import pytest
from processes_harness import ran

import p2ptrain

pytestmark = pytest.mark.paired

DATA = Path(__file__).parents[1] / "data"
ROUNDS, MORE = 6, 8
LISTEN = ("--listen", "/ip4/127.0.0.1/tcp/0", "--set", "node.wait_for=0", "--set", "train.threads=1")


def left(name: str, folder: Path) -> None:
    """The files, with the modes that they had: keys are private."""
    with tarfile.open(DATA / f"{name}-of-0.1.0.tar.gz") as archive:
        archive.extractall(folder, filter="data")


def rounds_of(folder: Path) -> int:
    return int(json.loads((folder / "summary.json").read_text())["rounds"])


def test_a_run_is_read_taken_home_and_gone_on_with(tmp_path: Path) -> None:
    left("run", tmp_path)
    told = ran(tmp_path, "status", "run")
    assert told.code == 0, told.err
    assert "finished" in told.out
    before = p2ptrain.load(tmp_path / "run")
    assert ran(tmp_path, "export", "run", "--out", "model.safetensors").code == 0
    judged = ran(tmp_path, "evaluate", "run")
    assert judged.code == 0, judged.err
    on = ran(tmp_path, "up", "--run-dir", "run", "--rounds", MORE, "--json")
    assert on.code == 0, on.err
    assert [rounds_of(tmp_path / "run" / f"node-{n}") for n in (0, 1)] == [MORE, MORE]
    after = p2ptrain.load(tmp_path / "run")
    assert after.keys() == before.keys()
    assert any((after[name] != before[name]).any() for name in before)


@pytest.mark.thorough
def test_a_private_swarm_is_shown_changed_and_gone_on_with(tmp_path: Path) -> None:
    left("swarm", tmp_path)
    shown = ran(tmp_path, "swarm", "show", "lab/invite.txt")
    assert shown.code == 0, shown.err
    assert "lab" in shown.out
    members = ran(tmp_path, "swarm", "members", "lab", "--json")
    assert members.code == 0, members.err
    changed = ran(tmp_path, "swarm", "rotate", "lab", "--set", f"train.rounds={MORE}")
    assert changed.code == 0, changed.err
    on = ran(tmp_path, "node", "--swarm", "lab", *LISTEN, "--json")
    assert on.code == 0, on.err
    assert rounds_of(tmp_path / "lab" / "node") == MORE
    again = ran(tmp_path, "node", "--run-dir", "member", *LISTEN, "--json")
    assert again.code == 0, again.err + again.out
    assert rounds_of(tmp_path / "member" / "node") == ROUNDS
