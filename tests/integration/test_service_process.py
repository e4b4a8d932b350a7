"""What a unit starts, run as a process: it trains, ends on SIGTERM with its model on disk, and goes on where it was.

`p2ptrain service install` writes the unit, in a home of its own. Its command line is read by the rules of systemd.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import systemd_syntax
from fake_systemd import unit_file

pytestmark = pytest.mark.paired

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
OPTIONS = ("--task", "digits", "--rounds", "100000", "--inner-steps", "2", "--listen", "/ip4/127.0.0.1/tcp/0")
OURS = ("--set", "train.threads=1", "--set", "node.checkpoint_every=0", "--set", "network.swarm=100% of $HOME \"'\\")


def home_of(tmp_path: Path) -> dict[str, str]:
    """A user's environment without a manager."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "P2PTRAIN_", "SUDO_"))}
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def events(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def heard(log: Path, kind: str, count: int = 1, least_round: int = 0) -> dict[str, object]:
    """The `count`th event of a kind, at this round or later."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = [it for it in events(log) if it["event"] == kind and int(str(it.get("round", 0))) >= least_round]
        if len(found) >= count:
            return found[count - 1]
        time.sleep(0.05)
    raise AssertionError(f"no {kind}: {events(log)[-3:]}")


@contextmanager
def started(unit: str) -> Iterator[subprocess.Popen[bytes]]:
    """What systemd would start: with the unit's words, folder and variables, and nothing of this shell's."""
    variable = systemd_syntax.words(":" + systemd_syntax.setting(unit, "Environment"))[0].partition("=")
    bare = {"PATH": os.defpath, "HOME": os.environ["HOME"], variable[0]: variable[2], "OMP_NUM_THREADS": "1"}
    words = systemd_syntax.words(systemd_syntax.setting(unit, "ExecStart"))
    folder = systemd_syntax.setting(unit, "WorkingDirectory")
    process = subprocess.Popen(words, cwd=folder, env=bare, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


@pytest.mark.thorough
def test_the_command_of_a_unit_trains_ends_in_order_and_goes_on(tmp_path: Path) -> None:
    (folder := tmp_path / "a folder").mkdir()
    environment = {key: value for key, value in home_of(tmp_path).items() if key != "OMP_NUM_THREADS"}
    install = [sys.executable, "-m", "p2ptrain", "service", "install", "--", "--run-dir", "my run", *OPTIONS, *OURS]
    done = subprocess.run(install, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"installed {unit_file(tmp_path)}\nnot started: " in done.stdout
    unit = unit_file(tmp_path).read_text()
    log = folder / "my run" / "node" / "events.jsonl"
    with started(unit) as first:
        closed = heard(log, "round", least_round=3)
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == 130  # the unit's SuccessExitStatus
    assert events(log)[-1]["event"] == "interrupted"
    with started(unit) as again:
        resumed = heard(log, "resumed")
        assert int(str(resumed["round"])) >= int(str(closed["round"]))
        heard(log, "round", least_round=int(str(resumed["round"])) + 2)
        status = [sys.executable, "-m", "p2ptrain", "service", "status", "--json"]
        (told,) = json.loads(subprocess.run(status, env=environment, capture_output=True, check=True).stdout)
        assert (told["node"]["state"], told["answers"]) == ("running", True)
        again.send_signal(signal.SIGTERM)
        assert again.wait(PATIENCE_S) == 130
    assert 'swarm = "100% of $HOME' in (log.parent / "config.toml").read_text()
