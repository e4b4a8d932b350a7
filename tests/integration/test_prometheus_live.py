"""A real Prometheus over a live swarm: a volunteer that comes is scraped with no edit, its lies are told of, every
query of every panel and alert has an answer, and one that is killed is missed."""

import os
import signal
from pathlib import Path

import pytest
from asked import script
from processes_harness import PACED, Program, node, up
from prometheus_harness import eventually, labels, needs_prometheus, prometheus

pytestmark = [pytest.mark.alone, needs_prometheus]

TRIER = script("try_expressions")
SETTINGS = (*PACED, "--rounds", 2000, "--set", "train.device=cpu", "--set", "train.eval_every=5")

NEVER_HERE = {"GPU memory that is left", "GPU memory in tensors", "Rung of the compressor `adaptive` (nodes)"}
NOT_PROVOKED = {
    "Relayed for others, of what may be",
    "Refused by relays a minute, by status",
    "Alerts that fire",
    "Share of time paused, by reason",
    "Share of the budget that is taken",
    "Privacy spent, over its budget",
    "Shift of own data",
    "Visitors' differences, by result",
    "Clipped since the start, by peer (the first ten)",
}
AT_TIMES = {
    "Dropped by the transport a minute, by kind",
    "Queues (highest of 5 minutes)",
    "Age of the newest checkpoint",
    "Time to loss",
}


def alert(name: str) -> str:
    return next(expr for alerted, expr, _ in TRIER.alerts() if alerted == name)


def empty_panels(base: str) -> set[str]:
    """Titles of panels of which a query gives no series."""
    return {each.name.partition(", ")[2] for each in TRIER.answers(base) if each.kind == "panel" and not each.series}


@pytest.mark.thorough
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
