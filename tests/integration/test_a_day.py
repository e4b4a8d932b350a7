"""A user's whole day in one private swarm of real processes: found it, invite, join, a crash, go on from the folder,
finish, train longer, take the model home, put a member out, and the ways in which a day can end badly.

One test, in the order of the day: each step stands on what the step before has left on the disk.
"""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from processes_harness import Program, Ran, ran

import p2ptrain
from node.swarm.folder import SwarmFolder
from node.swarm.inviting import Wish, give
from p2ptrain.tasks.digits import Digits

pytestmark = [pytest.mark.paired, pytest.mark.soak]

ROUNDS = 12
DAY_S = 86_400
MORE = 18
RECIPE = """
[train]
warmup_steps = 10
learning_rate = 3e-3
inner_steps = 20
eval_every = 6
"""
OWN = ("--set", "train.threads=1")
"""What is each member's own."""


def asked(folder: Path, *words: object) -> Ran:
    """A command that succeeds."""
    told = ran(folder, *words)
    assert told.code == 0, (words, told.out, told.err)
    return told


def facts(folder: Path, *words: object) -> dict[str, Any]:
    return json.loads(asked(folder, *words, "--json").out)  # type: ignore[no-any-return]


def member(folder: Path, *words: object) -> Program:
    return Program(folder, "node", "--json", *words)


def logits(state: dict[str, torch.Tensor]) -> torch.Tensor:
    """What plain torch makes of a model that was taken home."""
    model = Digits().build_model()
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        return torch.as_tensor(model(torch.linspace(0, 1, 64).reshape(1, 64)))


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes; skips where nobody may mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"the day but for its full disk: no file system can be mounted ({mounted.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_the_day(tmp_path: Path) -> None:
    lab, guest = tmp_path / "lab", tmp_path / "guest"
    (tmp_path / "recipe.toml").write_text(RECIPE)
    found_it(tmp_path)
    crash_and_go_on(tmp_path)
    train_longer(tmp_path)
    take_it_home(tmp_path, lab, guest)
    put_out(tmp_path)
    come_too_late(tmp_path)
    diverge(tmp_path)
    with small_disk(tmp_path / "small", "8m") as disk:
        run_out_of_disk(tmp_path, disk)


def found_it(folder: Path) -> None:
    """Create, and invite a colleague."""
    recipe = ("--config", folder / "recipe.toml", "--task", "paced_digits:create", "--rounds", ROUNDS)
    asked(folder, "swarm", "create", "lab", "--out", "lab", *recipe, "--no-passphrase")


def crash_and_go_on(folder: Path) -> None:
    """Join by the short line, whose rest is fetched; kill -9; the folder alone goes on; both finish."""
    often = ("--set", "node.checkpoint_every=2")
    assert (folder / "lab" / "invite.txt").read_text().startswith("p2p2")
    with member(folder / "1", "--swarm", folder / "lab", "--set", "node.wait_for=1", *often, *OWN) as first:
        invite = ("--invite", folder / "lab" / "invite.txt", "--run-dir", folder / "guest")
        with member(folder / "2", *invite, "--task", "paced_digits:create", *often, *OWN) as second:
            second.hear("round", members=2)
            second.hear("checkpoint")
            second.process.kill()
            assert second.end() == -signal.SIGKILL
        dead = ran(folder, "status", "guest")
        assert "node --run-dir guest" in dead.out + dead.err, dead.out + dead.err
        with member(folder / "3", "--run-dir", folder / "guest") as back:
            assert back.hear("resumed")["round"] >= 2
            assert back.end() == 0, back.stderr
            assert back.heard("round")[-1]["round"] == ROUNDS
        assert first.end() == 0, first.stderr


def train_longer(folder: Path) -> None:
    """The run is over for both; the admin signs for more."""
    over = ran(folder, "node", "--run-dir", "guest", "--rounds", MORE)
    assert over.code == 2
    assert "swarm rotate" in over.err
    facts(folder, "swarm", "rotate", "lab", "--set", f"train.rounds={MORE}")
    with member(folder / "4", "--run-dir", folder / "lab") as first:
        first.hear("started")  # a dial in vain is tried again only after a while
        with member(folder / "5", "--run-dir", folder / "guest") as second:
            for each in (first, second):
                assert each.end() == 0, each.stderr
                assert each.heard("round")[-1]["round"] == MORE


def take_it_home(folder: Path, *runs: Path) -> None:
    """Export, and load in plain torch; the file and the run are one model to the last bit."""
    for run in runs:
        asked(folder, "export", run.name, "--out", f"{run.name}.safetensors")
        state = safetensors.torch.load_file(folder / f"{run.name}.safetensors")
        assert torch.equal(logits(state), logits(p2ptrain.load(run)))
        assert torch.isfinite(logits(state)).all()


def put_out(folder: Path) -> None:
    """A colleague leaves: it is told by whom, and does not train on."""
    rows = facts(folder, "swarm", "members", "lab")["members"]
    (peer,) = {row["peer"] for row in rows} - {own_peer(folder)}
    facts(folder, "swarm", "revoke", "lab", peer, "--reason", "left the lab")
    facts(folder, "swarm", "rotate", "lab", "--set", f"train.rounds={MORE + 100}")
    with member(folder / "6", "--run-dir", folder / "lab") as first:
        first.hear("started")
        with member(folder / "7", "--run-dir", folder / "guest") as gone:
            assert gone.end() == 1
            assert "your membership was revoked by admin" in gone.stderr
            assert "left the lab" in gone.stderr
        first.interrupt()
        assert first.end() == 130
    again = ran(folder, "node", "--run-dir", "guest")
    assert again.code == 1
    assert "your membership was revoked by admin" in again.err
    assert logits(p2ptrain.load(folder / "guest")) is not None, "what it learned is its own"


def own_peer(folder: Path) -> str:
    return str(facts(folder, "id", "show", "lab/node/identity.key")["peer_id"])


def come_too_late(folder: Path) -> None:
    """An invite that has ended lets nobody in, and none is given that would have ended already."""
    now = int(time.time())
    before = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(now - 3600))
    told = ran(folder, "swarm", "invite", "lab", "--expires", before)
    assert told.code == 2
    assert told.err.startswith("error: ")
    lab = SwarmFolder(folder / "lab")
    # Signed two days ago by the admin's own key, as far as anybody can tell: a test does not wait for so long.
    line = give(lab, lab.authority(None), Wish(expires=now - DAY_S), now=now - 2 * DAY_S)
    (folder / "late.txt").write_text(f"{line}\n")
    late = ran(folder, "node", "--invite", "late.txt", "--run-dir", "latecomer")
    assert late.code == 2
    assert "the invite has ended" in late.err
    assert not list(folder.glob("latecomer/node/checkpoint/*"))


def diverge(folder: Path) -> None:
    """A learning rate that ruins the model is a failure that names the last good checkpoint."""
    quick = ("--inner-steps", 2, "--set", "train.warmup_steps=0", "--listen", "/ip4/127.0.0.1/tcp/0", *OWN)
    good = ran(folder, "node", "--task", "digits", "--rounds", 3, *quick, "--run-dir", "nan", "--json")
    assert good.code == 0, good.err
    words = ("--rounds", 60, "--set", "train.learning_rate=1e12", "--set", "node.checkpoint_every=1", "--json")
    bad = ran(folder, "node", "--run-dir", "nan", *words)
    assert bad.code == 1, bad.out[-500:]
    assert "training has diverged in round 4" in bad.err
    assert "round-00000003" in bad.err
    assert torch.isfinite(logits(p2ptrain.load(folder / "nan"))).all()


def run_out_of_disk(folder: Path, disk: Path) -> None:
    """No room for a model is said before a step is trained. A disk that fills up costs what came since the last
    checkpoint, and the exit code says so."""
    loopback = ("--listen", "/ip4/127.0.0.1/tcp/0", "--task", "paced_digits:create", *OWN)
    quick = ("--rounds", ROUNDS, "--inner-steps", 20, "--set", "train.warmup_steps=0", *loopback)
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(7_000_000))
    told = ran(folder, "node", *quick, "--run-dir", disk / "run")
    assert told.code == 1
    assert told.err.startswith("error: there is no room for a checkpoint")
    ballast.unlink()
    often = ("--set", "node.checkpoint_every=1")
    with Program(folder / "8", "node", "--json", *quick, *often, "--run-dir", disk / "run") as node:
        node.hear("checkpoint")
        fill(ballast)
        node.hear("checkpoint_failed")
        node.interrupt()
        assert node.end() == 1
        assert "the model was not saved" in node.stderr
    ballast.unlink()
    back = ran(folder, "node", "--run-dir", disk / "run", "--json")
    assert back.code == 0, back.err
    assert '"event": "resumed"' in back.out


def fill(ballast: Path) -> None:
    """Until there is no room for another byte."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return
