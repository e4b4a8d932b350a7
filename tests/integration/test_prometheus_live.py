"""A real Prometheus over a live swarm: a volunteer that comes is scraped with no edit, its lies are told of, every
query of every panel and alert has an answer, and one that is killed is missed."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from asked import MONITORING, script
from processes_harness import PACED, PATIENCE_S, Program, node, up

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus (Debian: prometheus)"),
]

TRIER = script("try_expressions")
SETTINGS = (*PACED, "--rounds", 2000, "--set", "train.device=cpu", "--set", "train.eval_every=5")

NEVER_HERE = {"GPU memory that is left", "GPU memory in tensors", "Rung of the compressor `adaptive` (nodes)"}
NOT_PROVOKED = {"Relayed for others, of what may be", "Refused by relays a minute, by status", "Alerts that fire"}
AT_TIMES = {
    "Dropped by the transport a minute, by kind",
    "Queues (highest of 5 minutes)",
    "Age of the newest checkpoint",
}


def eventually(found: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Ask again and again: neither the nodes nor Prometheus tell us when they have got there."""
    deadline = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """Its address. By the configuration that we ship it scrapes what the files in `folder`/targets name."""
    config = (MONITORING / "prometheus.yml").read_text()
    folder.mkdir()
    (folder / "prometheus.yml").write_text(
        re.sub(r"(scrape|evaluation|refresh)_interval: \w+", r"\1_interval: 1s", config)
    )
    shutil.copy(MONITORING / "alerts.yml", folder)
    (folder / "targets").mkdir()
    where = ("--web.listen-address=127.0.0.1:0", f"--storage.tsdb.path={folder / 'data'}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder / 'prometheus.yml'}", *where], stderr=log, stdout=log
        )
    try:
        log_text = (folder / "log").read_text
        pattern = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:[1-9]\d*)')
        eventually(lambda: pattern.search(log_text()) is not None, "Prometheus does not listen")
        yield f"http://{pattern.search(log_text())[1]}"
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def labels(base: str, expression: str) -> list[str]:
    """The label `node` of each series that the expression gives; none while Prometheus starts."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{base}/api/v1/query?{query}", timeout=10) as answer:
            return sorted(each["metric"].get("node", "") for each in json.load(answer)["data"]["result"])
    except urllib.error.URLError:
        return []


def alert(name: str) -> str:
    return next(expr for alerted, expr, _ in TRIER.alerts() if alerted == name)


def empty_panels(base: str) -> set[str]:
    """Titles of panels of which a query gives no series."""
    return {each.name.partition(", ")[2] for each in TRIER.answers(base) if each.kind == "panel" and not each.series}


def test_every_question_has_an_answer_and_whoever_comes_or_falls_is_seen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with prometheus(tmp_path / "prometheus") as base:
        found = ("monitor", "targets", "--run-dir", run, "--watch", "--every", "0.5")
        file = tmp_path / "prometheus" / "targets" / "run.json"
        knows = ("--set", f"network.peers_file={run / 'peers.txt'}")
        with Program(tmp_path / "targets", *found, "--out", file), up(tmp_path, "--nodes", 4, *SETTINGS) as swarm:
            names = [f"node-{index}" for index in range(4)]
            eventually(lambda: labels(base, "up == 1") == names, "not all are scraped")
            with node(tmp_path, *SETTINGS, *knows, "--name", "late", "--set", "attack.name=nan") as late:
                eventually(lambda: labels(base, "up == 1") == ["late", *names], "the volunteer is not scraped")
                swarm.hear("banned")
                eventually(lambda: all(each.good for each in TRIER.answers(base)), "no answer to some question")
                eventually(lambda: bool(labels(base, alert("PeerBanned"))), "nobody is told of the liar")
                assert empty_panels(base) - AT_TIMES <= NEVER_HERE | NOT_PROVOKED
                assert not labels(base, alert("NodeDown"))
                os.kill(late.process.pid, signal.SIGKILL)
                eventually(lambda: labels(base, alert("NodeDown")) == ["late"], "the one that was killed is not missed")
            swarm.interrupt()
            swarm.end()
            eventually(lambda: file.read_text() == "[]\n", "those that were stopped are still listed")
