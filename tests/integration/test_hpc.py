"""Jobs on a cluster whose compute nodes reach nothing but their login node train with the others.

Real processes in network namespaces (cluster_lab.py).
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cluster_lab import Cluster
from lab_harness import possible
from processes_harness import PACED, Program

pytestmark = [
    pytest.mark.alone,
    pytest.mark.thorough,
    pytest.mark.skipif(not possible(), reason="needs root, iproute2 and network namespaces"),
]

WORDS = (*PACED, "--rounds", 4000, "--seed", 5)
RELAY_BYTES = 160 << 20
"""Resident, of a relay: as of a bootstrap node."""


@contextmanager
def training(cluster: Cluster, folder: Path) -> Iterator[tuple[Program, Program]]:
    """Two members outside that train together."""
    with ExitStack() as stack:
        first = stack.enter_context(cluster.lab.node(0, folder / "first", *WORDS))
        peer = ("--peer", first.hear("started")["addresses"][0])
        second = stack.enter_context(cluster.lab.node(1, folder / "second", *WORDS, *peer))
        second.hear("round", members=2)
        yield first, second


def knowing(first: Program) -> tuple[object, ...]:
    """What a relay is told: one member, and where others may be."""
    return "--peer", first.heard("started")[0]["addresses"][0], "--set", 'network.allow_to=["10.77.0.0/24"]'


def test_jobs_that_reach_only_their_login_node_train_with_the_others_and_outlive_the_relay(tmp_path: Path) -> None:
    with Cluster(members=2, compute=2) as cluster, training(cluster, tmp_path) as (first, second):
        words = (*knowing(first), "--allow", Cluster.PREFIX)
        with cluster.relay(tmp_path / "relay", *words) as relay:
            *_, via = relay.hear("join")["command"].split()
            assert via == f"/ip4/{cluster.login_inside}/tcp/4001/p2p/{relay.heard('started')[0]['peer_id']}"
            assert cluster.reaches(0, cluster.login_inside)
            assert not cluster.reaches(0, cluster.lab.address(0))
            with ExitStack() as stack:
                jobs = [
                    stack.enter_context(cluster.node(job, tmp_path / f"job-{job}", *WORDS, "--via", via))
                    for job in (0, 1)
                ]
                everybody = [*jobs, first, second]
                for each in everybody:
                    each.hear("round", members=4)
                relay.hear("members", clients=2)
                assert relay.heard("members")[-1]["rss_bytes"] < RELAY_BYTES
                assert "libtorch" not in Path(f"/proc/{relay.pid}/maps").read_text()
                assert jobs[0].heard("started")[0]["addresses"] == []

                os.kill(relay.pid, signal.SIGKILL)
                relay.process.wait()
                for job in jobs:
                    job.hear("reachability", count=2)
                    assert "is gone, and with it all others" in job.heard("reachability")[1]["detail"]
                seen = [len(job.heard("round", members=4)) for job in jobs]
                with cluster.relay(tmp_path / "relay", "--config", tmp_path / "relay" / "run" / "node" / "config.toml"):
                    for job, count in zip(jobs, seen, strict=True):
                        job.hear("round", count=count + 3, members=4)
                for each in everybody:  # what the lost relay held up comes late: counted, and nobody is charged with it
                    assert {event["reason"] for event in each.heard("rejected")} <= {"replayed"}
                    assert not each.heard("banned")


def test_jobs_without_any_network_train_with_the_others_over_a_shared_folder(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with Cluster(members=2, compute=2, linked=False) as cluster, training(cluster, tmp_path) as (first, second):
        with cluster.relay(tmp_path / "relay", *knowing(first), "--spool", shared) as relay:
            assert relay.hear("join")["command"] == f"p2ptrain node --spool {shared}"
            assert relay.heard("started")[0]["addresses"] == []
            assert not cluster.reaches(0, cluster.login_inside)
            with ExitStack() as stack:
                jobs = [
                    stack.enter_context(cluster.node(job, tmp_path / f"job-{job}", *WORDS, "--spool", shared))
                    for job in (0, 1)
                ]
                everybody = [*jobs, first, second]
                for each in everybody:
                    each.hear("round", members=4)

                again = cluster.relay(tmp_path / "again", *knowing(first), "--spool", shared)
                with again:  # by mistake
                    assert again.end() == 1
                    assert "another relay serves the spool folder" in again.stderr

                os.kill(relay.pid, signal.SIGKILL)
                relay.process.wait()
                for job in jobs:
                    assert "is gone, and with it all others" in job.hear("reachability", count=2)["detail"]
                seen = [len(job.heard("round", members=4)) for job in jobs]
                with cluster.relay(tmp_path / "relay", "--config", tmp_path / "relay" / "run" / "node" / "config.toml"):
                    for job, count in zip(jobs, seen, strict=True):
                        job.hear("round", count=count + 3, members=4)
                    for job in jobs:
                        job.interrupt()
                        assert job.end() == 130
                # Who was silent without a word, as the relay's clients were, timed out; a hello that the lost
                # connection held up brings an old link.
                for each in everybody:
                    assert {event["reason"] for event in each.heard("rejected")} <= {"timeout", "replayed"}
        assert not [path for path in shared.iterdir() if path.name != "relay"], "what is left of connections"
