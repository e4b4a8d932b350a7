"""A stock js-libp2p peer in an open swarm of real nodes: it hears, is heard, and is charged for what it signs badly.

tests/interop/ is written by docs/protocol.md alone. Skipped where Node.js or its packages are missing: `make interop`
fetches those.
"""

import json
import re
import shutil
import subprocess
import threading
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from processes_harness import PACED, PATIENCE_S, Program, node

FOLDER = Path(__file__).parents[1] / "interop"
OLDEST_NODE_JS = 20


def missing() -> str:
    """What keeps the peer from running here; empty when nothing does."""
    program = shutil.which("node")
    if program is None:
        return "there is no Node.js"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    major = re.match(r"v(\d+)", version)
    if major is None or int(major[1]) < OLDEST_NODE_JS:
        return f"Node.js is {version}, and js-libp2p needs {OLDEST_NODE_JS} or later"
    return "" if (FOLDER / "node_modules").is_dir() else "its packages are missing: make interop"


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class Peer:
    """A script of tests/interop/ that runs, and the JSON lines that it prints. Killed when the block ends."""

    def __init__(self, script: str, *words: str) -> None:
        command = ["node", str(FOLDER / script), *words]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._patience = threading.Timer(PATIENCE_S, self._process.kill)
        self.lines: list[dict[str, Any]] = []

    def __enter__(self) -> "Peer":
        self._patience.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patience.cancel()
        self._process.kill()
        self._process.communicate()

    def hear(self, event: str, **fields: object) -> dict[str, Any]:
        """Wait for the next such line."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))
            if {**self.lines[-1], "event": event, **fields} == self.lines[-1]:
                return self.lines[-1]
        raise AssertionError(f"no {event} {fields}: {self.lines[-5:]}")

    def say(self, word: str) -> dict[str, Any]:
        """Have it broadcast something."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self.hear("said", what=word)


def rejected(program: Program, peer: str) -> dict[str, float]:
    """How much of a peer's was refused, by reason, as Prometheus reads it."""
    with urllib.request.urlopen(f"{program.hear('started')['metrics_url']}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    pattern = rf'^p2ptrain_peer_rejected_total{{peer="{peer}",reason="(\w+)"}} (\S+)$'
    return {reason: float(count) for reason, count in re.findall(pattern, text, re.MULTILINE)}


def test_it_reads_and_writes_the_test_vectors() -> None:
    ran = subprocess.run(["node", str(FOLDER / "check_vectors.mjs")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["bad"] > 40


def test_it_hears_is_heard_and_is_charged(tmp_path: Path) -> None:
    with node(tmp_path / "1", *PACED, "--rounds", 400) as first:
        near = first.hear("started")["addresses"][0]
        with node(tmp_path / "2", *PACED, "--rounds", 400, "--peer", near) as second:
            far = second.hear("started")["addresses"][0]
            second.hear("round", members=2)
            with Peer("observer.mjs", far) as observer, Peer("speaker.mjs", near) as speaker:
                for member in (first, second):
                    link = observer.hear("link", peer=member.hear("started")["peer_id"], chained=True)
                    assert (link["update"], link["codec"]) == ("delta", "q2")
                me = speaker.hear("connected")["me"]
                speaker.hear("ready")
                it_is_heard(speaker, observer, me)
                assert not first.heard("rejected")
                it_is_charged(speaker, first, me)
                observer.hear("link", peer=first.hear("started")["peer_id"])  # and who only listens goes on to
                assert not [line for line in observer.lines if line["event"] in {"refused", "disconnected"}]
                assert not second.heard("rejected"), "nobody passed on what it signed badly"


def it_is_heard(speaker: Peer, observer: Peer, me: str) -> None:
    """By the first node, which passes it on to the second, which passes it on to the observer."""
    digest = speaker.say("link")["digest"]
    assert observer.hear("link", peer=me)["digest"] == digest


def it_is_charged(speaker: Peer, first: Program, me: str) -> None:
    speaker.say("forged")
    first.hear("rejected", peer=me, reason="forged")
    speaker.say("garbage")
    first.hear("rejected", peer=me, reason="malformed")
    speaker.say("forged")
    first.hear("banned", peer=me)
    speaker.hear("disconnected")
    assert rejected(first, me) == {"forged": 2, "malformed": 1}
