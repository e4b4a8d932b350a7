"""A private swarm while it trains: changed at one round by all, a member put out for good, and nothing secret told."""

import json
import os
import urllib.request
from pathlib import Path

import pytest
from processes_harness import Program, ran, read_log

from gossip.core.identity import Identity
from gossip.membership import parse_any
from node.system.run_dir import IDENTITY

pytestmark = pytest.mark.paired

ROUNDS = 400
"""More than any test waits for."""
CUT_S = 10.0


def recipe(folder: Path) -> Path:
    file = folder / "recipe.toml"
    file.write_text("[train]\nwarmup_steps = 10\nlearning_rate = 2e-4\ninner_steps = 20\neval_every = 50\n")
    return file


def founded(folder: Path) -> Path:
    """A swarm whose key lies under a passphrase."""
    (folder / "pass").write_text("correct horse\n")
    (folder / "pass").chmod(0o600)
    words = (
        "--out",
        folder / "lab",
        "--config",
        recipe(folder),
        "--task",
        "paced_digits:create",
        "--rounds",
        ROUNDS,
        "--psk",
    )
    with Program(folder, "swarm", "create", "lab", *words, "--passphrase-file", folder / "pass") as made:
        assert made.end() == 0, made.stderr
    return folder / "lab"


def admin(folder: Path, command: str, *words: object) -> dict[str, object]:
    """One of the commands that sign."""
    said = ran(folder, "swarm", command, folder / "lab", *words, "--passphrase-file", folder / "pass", "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)  # type: ignore[no-any-return]


def run(folder: Path, *words: object) -> Program:
    return Program(folder, "node", "--json", "--set", "train.threads=1", *words)


def secrets_of(folder: Path) -> dict[str, str]:
    """What must be nowhere but in its own file."""
    line = (folder / "lab" / "invite.txt").read_text().strip()
    invitation = parse_any(line)
    assert invitation.psk is not None
    keys = {name: Identity.load(folder / name / "node" / IDENTITY).seed.hex() for name in ("lab", "a", "b")}
    own = {"line": line, "psk": invitation.psk.hex(), "invite's secret": invitation.secret.seed.hex()}
    return {**own, "passphrase": "correct horse", **keys}


@pytest.mark.thorough
def test_a_change_a_revocation_and_no_secret_told(tmp_path: Path) -> None:
    lab = founded(tmp_path)
    invite = ("--invite", lab / "invite.txt", "--task", "paced_digits:create")
    with run(tmp_path / "0", "--swarm", lab, "--set", "node.wait_for=2") as first:
        with run(tmp_path / "1", *invite, "--run-dir", tmp_path / "a") as second:
            with run(tmp_path / "2", *invite, "--run-dir", tmp_path / "b") as third:
                everyone = (first, second, third)
                for each in everyone:
                    each.hear("round", members=3)
                words = ("--set", "train.learning_rate=1e-4", "--set", "network.initial_deadline_s=20")
                at = admin(tmp_path, "rotate", *words)["applies_at"]
                for each in everyone:
                    held = each.hear("manifest", version=2)
                    assert (held["round"], held["changes"]) == (at, {"train.learning_rate": 1e-4})

                struck = third.heard("started")[0]["peer_id"]
                admin(tmp_path, "revoke", struck, "--reason", "lost laptop")
                for each in (first, second):
                    each.hear("neighbour_lost", peer=struck, within_s=CUT_S)
                assert third.end() == 1, "it is told, and does not train on alone"
                told = third.heard("failed")[0]["error"]
                assert told.startswith("your membership was revoked by admin ")
                assert told.endswith("(lost laptop)")
                assert "error: your membership was revoked by admin " in third.stderr
                assert "Traceback" not in third.stderr
                check_nothing_told(tmp_path, (first, second))
            revoked_at = len(second.heard("round"))
            with run(tmp_path / "3", "--run-dir", tmp_path / "b") as back:
                assert back.end() == 1, "and knows it when it starts again"
                assert "your membership was revoked by admin " in back.stderr
            second.hear("round", count=revoked_at + 1, members=2)
            for each in (first, second):
                assert len(each.heard("neighbour_up", peer=struck)) == 1
        with run(tmp_path / "4", "--run-dir", tmp_path / "a") as restarted:  # needs no line, and knows what it was told
            restarted.hear("round", members=2)
    rows = json.loads(ran(tmp_path, "swarm", "members", lab, "--json").out)["members"]
    assert {row["peer"]: row["revoked"] for row in rows}[struck] == "lost laptop"


def check_nothing_told(folder: Path, programs: tuple[Program, ...]) -> None:
    hidden = secrets_of(folder)
    told = {f"stdout {number}": "".join(each.lines) for number, each in enumerate(programs)}
    told |= {f"stderr {number}": each.stderr for number, each in enumerate(programs)}
    for each in programs:
        started = each.heard("started")[0]
        for page in ("status", "metrics"):
            with urllib.request.urlopen(f"{started['metrics_url']}/{page}") as answer:
                told[f"{page} of {started['peer_id']}"] = answer.read().decode()
        told[f"ps {each.pid}"] = Path(f"/proc/{each.pid}/cmdline").read_text()
    for name in ("lab", "a", "b"):
        for kept in ("events.jsonl", "config.toml", "local.toml", "node.log"):
            path = folder / name / "node" / kept
            told[str(path)] = path.read_text() if path.exists() else ""
        assert read_log(folder / name / "node")
    for words in (("show", folder / "lab"), ("members", folder / "lab"), ("show", folder / "lab" / "invite.txt")):
        for form in ((), ("--json",)):
            told[f"{words} {form}"] = ran(folder, "swarm", *words, *form).out
    leaks = [(where, what) for where, text in told.items() for what, secret in hidden.items() if secret in text]
    assert not leaks
    for kept in ("lab/invite.txt", "lab/authority.key", "a/node/identity.key", "a/node/membership/swarm.key"):
        assert os.stat(folder / kept).st_mode & 0o077 == 0  # noqa: PTH116
