"""`p2ptrain up`: a whole swarm of real processes, from the first line to the files it leaves."""

import json
import shlex
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes_harness import DIGITS, PACED, Program, living, read_log, up
from prometheus_client.parser import text_string_to_metric_families

NODES = [f"node-{index}" for index in range(4)]
ROUNDS = 10

NODE_KEYS = {
    *("peer_id", "rounds", "steps", "tokens", "wall_s", "compute_s", "utilization"),
    *("train_loss_first", "train_loss_last", "eval_loss_first", "eval_loss_last", "consensus_distance"),
    *("payload_bytes_sent", "payload_bytes_received", "dense_bytes_equivalent", "compression_ratio"),
    *("updates_accepted", "updates_rejected", "updates_in_time", "neighbours", "aggregator", "compressor"),
    *("resumed_from", "eval_round", "own"),
    *("bytes_sent", "bytes_received", "parameters", "sent_bits", "published_bits"),
}
SWARM_KEYS = {
    *("eval_loss_first", "eval_loss_last", "eval_loss_mean_model", "consensus_distance"),
    *("honest", "updates_in_time", "byzantine", "wall_s", "own"),
    *("bytes_sent", "sent_bits", "published_bits", "all_reduce_bits"),
}
METRICS = {
    *("round", "steps_total", "tokens_total", "train_loss", "eval_loss", "step_seconds_count", "round_seconds_count"),
    *("compute_seconds_total", "utilization", "consensus_distance", "robust_margin", "neighbours"),
    *("network_bytes_total", "parameter_sent_bytes", "parameter_published_bytes"),
    *("update_bytes_total", "compression_ratio", "updates_total", "staleness_rounds"),
    *("event_loop_lag_seconds_count", "checkpoint_age_seconds"),
}


@dataclass
class Told:
    """A swarm of four that ran to its end, and what was seen of it on the way."""

    folder: Path
    program: Program
    code: int
    scraped: dict[str, float]
    status: dict[str, Any]
    targets: list[dict[str, Any]]
    """What `targets.json` held while all of them ran."""

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("up")
    words = ("--rounds", ROUNDS, "--inner-steps", 40, *DIGITS, "--set", "train.batch_size=256")
    with up(folder, *words, real=True) as program:
        program.hear_round(3, node="node-0")
        url = program.hear("started", node="node-0")["metrics_url"]
        scraped, status = scrape(url), json.loads(fetch(f"{url}/status"))
        targets = json.loads((folder / "run" / "targets.json").read_text())
        yield Told(folder / "run", program, program.end(), scraped, status, targets)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def scrape(url: str) -> dict[str, float]:
    families = text_string_to_metric_families(fetch(f"{url}/metrics"))
    return {sample.name.removeprefix("p2ptrain_"): sample.value for family in families for sample in family.samples}


def test_every_node_trains_every_round_in_touch_with_the_others(told: Told) -> None:
    assert told.code == 0
    for name in NODES:
        rounds = told.program.heard("round", node=name)
        assert [event["round"] for event in rounds] == list(range(1, ROUNDS + 1))
        assert rounds[-1]["members"] == 4
    assert not told.program.heard("died")


def test_the_last_line_is_the_swarms_summary_and_the_loss_has_fallen(told: Told) -> None:
    last = json.loads(told.program.lines[-1])
    assert last == told.summary
    assert last.keys() == {"nodes", "swarm"}
    swarm = last["swarm"]
    assert swarm.keys() == SWARM_KEYS
    assert (swarm["honest"], swarm["byzantine"]) == (4, 0)
    assert swarm["eval_loss_mean_model"] < 0.3 * swarm["eval_loss_first"]
    assert swarm["eval_loss_last"] < 0.3 * swarm["eval_loss_first"]


def test_summaries_have_the_keys_that_other_programs_read(told: Told) -> None:
    for name, within in zip(NODES, told.summary["nodes"], strict=True):
        summary = json.loads((told.folder / name / "summary.json").read_text())
        assert summary.keys() == NODE_KEYS
        assert summary == within
        assert summary["rounds"] == ROUNDS
        assert summary["steps"] == sum(event["steps"] for event in told.program.heard("round", node=name))
        assert summary["neighbours"] == 3
        assert summary["updates_rejected"] == {}
        assert summary["resumed_from"] is None
        assert 12 < summary["compression_ratio"] < 17
        assert summary["bytes_sent"] > summary["payload_bytes_sent"]
        assert summary["sent_bits"] == pytest.approx(
            8 * summary["bytes_sent"] / summary["parameters"] / summary["steps"], rel=0.01
        )
        assert 0 < summary["published_bits"] < summary["sent_bits"]
        assert summary["dense_bytes_equivalent"] >= 12 * summary["payload_bytes_sent"] > 0
        assert 0 < summary["compute_s"] < summary["wall_s"]
        assert summary["utilization"] == pytest.approx(summary["compute_s"] / summary["wall_s"])
        assert summary["eval_loss_last"] < summary["eval_loss_first"]


def test_each_node_leaves_its_log_its_checkpoint_and_no_noise(told: Told) -> None:
    for name in NODES:
        folder = told.folder / name
        events = read_log(folder)
        printed = [event for event in told.program.events if event["node"] == name]
        assert printed == [{**event, "node": name} for event in events]
        assert (events[0]["event"], events[-1]["event"]) == ("started", "finished")
        assert [event["round"] for event in events if event["event"] == "evaluated"] == [0, ROUNDS]
        assert [path.name for path in (folder / "checkpoint").iterdir()] == [f"round-{ROUNDS:08d}"]
        assert (folder / "stderr.log").read_text() == ""
        assert not (folder / "node.log").exists(), (folder / "node.log").read_text()
    assert told.program.stderr == ""


def test_a_living_node_serves_its_metrics_and_its_status(told: Told) -> None:
    assert told.scraped.keys() >= METRICS
    assert told.scraped["round"] >= 3
    assert told.scraped["neighbours"] == 3
    assert told.scraped["robust_margin"] == 1
    assert told.status["name"] == "node-0"
    assert told.status["rounds_done"] >= 3
    assert told.status["state"] == "running"


def test_prometheus_is_told_where_the_nodes_are(told: Told) -> None:
    urls = [told.program.heard("started", node=name)[0]["metrics_url"] for name in NODES]
    assert [(each["labels"]["node"], *each["targets"]) for each in told.targets] == [
        (name, url.removeprefix("http://")) for name, url in zip(NODES, urls, strict=True)
    ]
    assert json.loads((told.folder / "targets.json").read_text()) == [], "who has finished is not to be missed"


def test_each_node_is_an_ordinary_node_with_keys_and_ports_of_its_own(told: Told) -> None:
    started = [told.program.heard("started", node=name)[0] for name in NODES]
    assert len({event["peer_id"] for event in started}) == 4
    assert len({event["addresses"][0] for event in started}) == 4
    join = shlex.split(told.program.heard("join", node="node-2")[0]["command"])
    assert join[:4] == ["p2ptrain", "node", "--peer", started[2]["addresses"][0]]
    assert living(told.program.pids()) == []


def test_the_end_is_near_the_last_round(told: Told) -> None:
    """Goodbyes, not timeouts, end a node; what remains is the interpreter's own end and the averaged model."""
    last = max(event["ts"] for event in told.program.heard("round"))
    finished = max(event["ts"] for event in told.program.heard("finished"))
    assert finished - last < 4, "linger_s is 5: nobody waited for somebody who had left"
    assert told.program.ended_at - finished < 15
    assert psutil.pid_exists(told.program.pid) is False


@pytest.mark.thorough
@pytest.mark.paired
def test_two_swarms_on_one_machine_do_not_meet(tmp_path: Path) -> None:
    quick = ("--nodes", 2, "--rounds", 6, *PACED)
    with up(tmp_path / "a", *quick) as one, up(tmp_path / "b", *quick) as other:
        assert (one.end(), other.end()) == (0, 0)
        ids = [{event["peer_id"] for event in swarm.heard("started")} for swarm in (one, other)]
        assert len(ids[0] | ids[1]) == 4
        for swarm, own in zip((one, other), ids, strict=True):
            assert {event["peer"] for event in swarm.heard("neighbour_up")} == own
            assert [event["members"] for event in swarm.heard("round", round=6)] == [2, 2]
            assert not swarm.heard("rejected")
