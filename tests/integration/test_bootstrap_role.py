"""`p2ptrain node --role bootstrap`: real nodes that know nothing else find each other, and outlive it."""

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest
from processes_harness import PACED, node, ran, read_log

pytestmark = pytest.mark.paired

BUDGET_BYTES = 160 << 20
"""Resident, of a bootstrap node: half of what importing torch alone takes."""


@pytest.mark.thorough
def test_trainers_that_know_only_the_bootstrap_node_train_together_and_go_on_without_it(tmp_path: Path) -> None:
    with node(tmp_path / "0", "--role", "bootstrap", real=True) as post:
        address = post.hear("started", role="bootstrap")["addresses"][0]
        assert post.hear("join")["command"] == f"p2ptrain node --peer {address}"
        words = (*PACED, "--rounds", 400, "--seed", 5, "--peer", address)
        with node(tmp_path / "1", *words) as first, node(tmp_path / "2", *words) as second:
            first.hear("round", members=2)
            second.hear("round", members=2)
            post.hear("members", members_known=2, runs=1)
            url = post.heard("started")[0]["metrics_url"]
            with urllib.request.urlopen(f"{url}/status") as page:
                assert json.load(page)["state"] == "running"
            with urllib.request.urlopen(f"{url}/metrics") as page:
                assert b"\np2ptrain_peers_known 2.0\n" in page.read()
            assert "libtorch" not in Path(f"/proc/{post.pid}/maps").read_text()
            assert post.heard("members")[-1]["rss_bytes"] < BUDGET_BYTES

            os.kill(post.pid, signal.SIGKILL)
            post.process.wait()
            seen = [len(each.heard("round", members=2)) for each in (first, second)]
            for each, count in zip((first, second), seen, strict=True):
                each.hear("round", count=count + 5, members=2)
            peers = {each.heard("started")[0]["peer_id"] for each in (first, second)}
            for each in (first, second):
                assert {event["peer"] for event in each.heard("neighbour_up")} < peers
                each.interrupt()
                assert each.end() == 130
                assert not each.heard("rejected")


@pytest.mark.thorough
def test_the_first_member_begins_alone_and_the_node_stops_on_ctrl_c_and_goes_on_in_its_folder(tmp_path: Path) -> None:
    with node(tmp_path, "--role", "bootstrap") as post:
        me, address = post.hear("started")["peer_id"], post.heard("started")[0]["addresses"][0]
        alone = ("--peer", address, "--rounds", 2, "--set", "node.wait_timeout_s=3")
        with node(tmp_path / "1", *PACED, *alone) as first:  # who begins a swarm finds nobody, and that is no failure
            first.hear("warning", message="going on with 0 of 1 awaited neighbours")
            assert first.end() == 0
        post.hear("members", members_known=1)
        post.interrupt()
        assert post.end(10.0) == 130
        assert post.stderr == ""
    with node(tmp_path, "--config", tmp_path / "run" / "node" / "config.toml") as again:
        assert again.hear("started", role="bootstrap")["peer_id"] == me
        again.interrupt(signal.SIGTERM)
        assert again.end(10.0) == 130
    assert [event["event"] for event in read_log(tmp_path / "run" / "node")].count("interrupted") == 2


def test_a_role_that_there_is_not_is_said_to_be_none(tmp_path: Path) -> None:
    wrong = ran(tmp_path, "node", "--role", "rendezvous")
    assert wrong.code == 2
    assert wrong.err == "error: unknown role 'rendezvous'; there are trainer, observer, bootstrap, relay\n"
    assert not (tmp_path / "runs").exists()
