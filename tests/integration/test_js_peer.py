"""A stock js-libp2p peer in an open swarm of real nodes: it hears, is heard, and is charged for what it signs badly.

tests/interop/ is written by docs/protocol.md alone. Skipped where Node.js or its packages are missing: `make interop`
fetches those.
"""

import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
from js_harness import FOLDER, Peer, missing
from processes_harness import PACED, Program, node

pytestmark = [pytest.mark.paired, pytest.mark.skipif(bool(missing()), reason=missing())]


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
