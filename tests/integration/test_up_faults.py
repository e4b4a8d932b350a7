"""Nodes of a real swarm that die, come back, or stand still: the others go on, and who returns catches up."""

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
from processes_harness import PACED, STEP_S, Event, Program, up

ROUND_S = 20 * STEP_S
ROUNDS = 60
NODES = [f"node-{index}" for index in range(4)]
GROWTH = 1.10


@dataclass
class Killed:
    """A swarm of four whose last node was killed at mid-run and started again by hand."""

    folder: Path
    swarm: Program
    back: Program

    def rounds(self, name: str) -> list[Event]:
        return self.swarm.heard("round", node=name)

    def loss(self, name: str) -> float:
        loss: float = self.swarm.heard("finished", node=name)[0]["summary"]["eval_loss_last"]
        return loss


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("killed")
    with up(folder, "--rounds", ROUNDS, "--set", "node.checkpoint_every=4", *PACED) as swarm:
        swarm.hear_round(10, node="node-3")
        os.kill(swarm.hear("started", node="node-3")["pid"], signal.SIGKILL)
        swarm.hear("died")
        again = ("--run-dir", folder / "run", "--config", folder / "run/node-3/config.toml")
        with Program(folder, "node", "--json", *again) as back:
            assert back.end() == 0
            assert swarm.end() == 1, "a node that was killed is no success, whoever brings it back"
            yield Killed(folder / "run", swarm, back)


@pytest.mark.thorough
@pytest.mark.paired
def test_the_death_is_told_and_three_end_normally(killed: Killed) -> None:
    (died,) = killed.swarm.heard("died")
    assert (died["node"], died["code"], died["why"]) == ("node-3", -9, "killed by SIGKILL")
    for name in NODES[:3]:
        assert [event["round"] for event in killed.rounds(name)] == list(range(1, ROUNDS + 1))
        assert killed.rounds(name)[-1]["members"] >= 3
    summary = json.loads((killed.folder / "summary.json").read_text())
    assert len(summary["nodes"]) == 3
    assert summary["swarm"]["honest"] == 4
    assert killed.swarm.stderr == ""


@pytest.mark.thorough
@pytest.mark.paired
def test_the_killed_one_goes_on_from_its_checkpoint_and_ends_level(killed: Killed) -> None:
    resumed = killed.back.heard("resumed")[0]["round"]
    assert resumed in {8, 12}
    rounds = killed.back.heard("round")
    assert rounds[-1]["round"] == ROUNDS
    assert rounds[-1]["members"] == 4, "its last round has all of them as members"
    (finished,) = killed.back.heard("finished")
    assert finished["summary"]["resumed_from"] == f"round {resumed}"
    assert finished["summary"]["eval_loss_last"] < 1.05 * sum(map(killed.loss, NODES[:3])) / 3
    assert killed.back.stderr == ""


@pytest.mark.thorough
@pytest.mark.paired
def test_a_new_incarnation_is_no_liar(killed: Killed) -> None:
    for kind in ("equivocation", "banned"):
        assert not killed.swarm.heard(kind)
        assert not killed.back.heard(kind)


@pytest.mark.thorough
@pytest.mark.paired
def test_memory_stays_level_from_round_20_to_round_60(killed: Killed) -> None:
    for name in NODES[:3]:
        bytes_at = {event["round"]: event["rss_bytes"] for event in killed.rounds(name)}
        assert bytes_at[60] < GROWTH * bytes_at[20]


def stand_still(tmp_path: Path, *, still_s: float, rounds: int) -> None:
    with up(tmp_path, "--rounds", rounds, *PACED) as swarm:
        swarm.hear_round(8, node="node-3")
        pid = swarm.hear("started", node="node-3")["pid"]
        stopped_at = time.time()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(still_s)  # real processes on the real clock: this is how long one stands still
        os.kill(pid, signal.SIGCONT)
        went_on_at = time.time()
        for name in NODES[:3]:
            closed = swarm.heard("round", node=name)
            during = [event for event in closed if stopped_at < event["ts"] < went_on_at]
            before_s = median(event["round_s"] for event in closed if event["ts"] < stopped_at)
            usual_s = max(ROUND_S, before_s)  # also of a busy machine
            assert len(during) > 0.5 * still_s / usual_s, "the others go on"
            # tau is one phase, so that no closing outlasts one; the rest is for a busy machine.
            assert median(event["close_s"] for event in during) < 2 * usual_s
            assert max(event["round_s"] for event in during) < still_s / 2
        assert swarm.end() == 0
        assert not swarm.heard("died")
        assert not swarm.heard("banned")
        (joined,) = swarm.heard("joined")
        assert joined["node"] == "node-3"
        assert joined["donors"] > 1, "no single donor is trusted: the others are three, or those that it hears by then"
        mine = swarm.heard("round", node="node-3")
        assert mine[-1]["round"] == rounds
        assert mine[-1]["members"] == 4, "its last round has all of them as members"
        losses = [swarm.heard("finished", node=name)[0]["summary"]["eval_loss_last"] for name in NODES]
        assert losses[3] < 1.05 * sum(losses[:3]) / 3
        ends = [swarm.heard("finished", node=name)[0]["ts"] for name in NODES]
        assert ends[3] - min(ends) < 8 * usual_s, "it was level with the others at the end"


@pytest.mark.thorough
def test_a_stopped_node_holds_nobody_up_and_catches_up(tmp_path: Path) -> None:
    stand_still(tmp_path, still_s=8, rounds=42)


@pytest.mark.soak
def test_a_node_stopped_for_twenty_seconds_catches_up(tmp_path: Path) -> None:
    stand_still(tmp_path, still_s=20, rounds=100)


@pytest.mark.soak
def test_the_memory_of_a_language_model_stays_level(tmp_path: Path) -> None:
    small = ("--nodes", 2, "--rounds", ROUNDS, "--inner-steps", 5, "--set", "train.threads=1")
    with up(tmp_path, *small) as swarm:
        assert swarm.end(600) == 0
        for name in NODES[:2]:
            bytes_at = {event["round"]: event["rss_bytes"] for event in swarm.heard("round", node=name)}
            assert bytes_at[60] < GROWTH * bytes_at[20]
