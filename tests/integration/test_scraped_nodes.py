"""Two real nodes over TCP, scraped as Prometheus does it: what the wire knows of who dialled whom."""

import urllib.request
from pathlib import Path

import pytest
from processes_harness import PACED, Program, node
from scraped import Scraped, parsed, reachability_in

from node.metrics.live_metrics import QUEUES

pytestmark = pytest.mark.paired

ROUNDS = 8
ON_CPU = (*PACED, "--rounds", 400, "--set", "train.device=cpu")


def scrape(program: Program) -> Scraped:
    with urllib.request.urlopen(f"{program.hear('started')['metrics_url']}/metrics", timeout=30) as answer:
        return parsed(answer.read().decode())


def reachability(program: Program) -> str:
    return reachability_in(scrape(program))


def test_the_one_that_was_dialled_is_reachable_and_pulls_are_timed(tmp_path: Path) -> None:
    with node(tmp_path / "1", *ON_CPU) as dialled:
        address = dialled.hear("started")["addresses"][0]
        dialled.hear("evaluated")
        assert reachability(dialled) == "unknown"
        with node(tmp_path / "2", *ON_CPU, "--peer", address) as dialling:
            for each in (dialled, dialling):
                each.hear("round", members=2, count=ROUNDS)
            assert reachability(dialled) == "reached"
            # Nobody had to dial it. But its address is probed before others hear of it, and a hello may fall on that.
            assert reachability(dialling) in {"outbound", "reached"}
            for each in (dialled, dialling):
                seen = scrape(each)
                assert seen["blob_seconds_count"][""] >= ROUNDS
                assert 0 < seen["blob_seconds_sum"][""] < 10 * seen["blob_seconds_count"][""]
                assert tuple(seen["queue_depth"]) == QUEUES
                assert not any(name.startswith("gpu_") for name in seen), "it trains on the CPU"
                each.interrupt()
                assert each.end() == 130
