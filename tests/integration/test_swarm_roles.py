"""A private swarm's bootstrap node, and the doctor of one of its members."""

import json
import socket
from pathlib import Path

import pytest
from processes_harness import Program, ran

from gossip.membership import Role
from node.swarm.accept_invite import membership, read_invite
from node.swarm.create import CreateRequest, create
from node.swarm.folder import SwarmFolder
from node.swarm.inviting import Wish, give

pytestmark = pytest.mark.paired

RAW = {"task": {"name": "paced_digits:create"}, "train": {"rounds": 400, "inner_steps": 20, "eval_every": 100}}


def test_a_bootstrap_node_by_its_invite_and_a_doctor_that_members_speak_with(tmp_path: Path) -> None:
    made = create(tmp_path / "lab", RAW, CreateRequest(name="lab", psk=True, first=Wish(uses=None, full=True)), None)
    folder = SwarmFolder(tmp_path / "lab")

    line = tmp_path / "post.txt"
    line.write_text(give(folder, folder.authority(None), Wish(role=Role.BOOTSTRAP)))
    member = membership(tmp_path / "a" / "node", RAW | {"network": {"upnp": False}}, read_invite(made.line))
    assert member is not None
    member.settle(None)
    own = ("node", "--json", "--set", "train.threads=1")
    loopback = ("--listen", "/ip4/127.0.0.1/tcp/0")
    with (
        Program(tmp_path / "0", *own, "--swarm", folder.path) as first,
        Program(tmp_path / "1", *own[:2], "--invite", line, "--run-dir", tmp_path / "post", *loopback) as post,
    ):
        first.hear("round")
        post.hear("started", role="bootstrap")
        seen = ran(tmp_path, "doctor", "--run-dir", tmp_path / "a", "--json")
        peers = [each for each in json.loads(seen.out)["findings"] if each["check"] == "peer"]
        assert [each["level"] for each in peers] == ["ok"], peers
        assert "is of this run" in peers[0]["seen"]
        assert not post.heard("join")
        post.hear("members")
        post.interrupt()
        assert post.end() == 130


@pytest.mark.thorough
@pytest.mark.parametrize("spool", [False, True], ids=["via", "spool"])
def test_a_member_that_reaches_only_a_relay_of_the_swarm_joins_by_a_short_invite_and_trains(
    tmp_path: Path, spool: bool
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = free.getsockname()[:2]
    create(tmp_path / "lab", RAW, CreateRequest(name="lab", psk=True, first=Wish(uses=None), at=place), None)
    folder = SwarmFolder(tmp_path / "lab")
    lines = {}
    for name, role in (("login", Role.RELAY), ("job", Role.TRAINER)):
        lines[name] = tmp_path / f"{name}.txt"
        lines[name].write_text(give(folder, folder.authority(None), Wish(role=role)))
    own = ("node", "--json", "--set", "train.threads=1")
    loopback = ("--listen", "/ip4/127.0.0.1/tcp/0")
    with Program(tmp_path / "0", *own, "--swarm", folder.path) as first:
        peer = ("--peer", first.hear("started")["addresses"][0])
        joined = (*own[:2], "--invite", lines["login"], "--run-dir", tmp_path / "login")
        shared = ("--spool", tmp_path / "shared")
        with Program(tmp_path / "1", *joined, *(shared if spool else loopback), *peer) as login:
            in_job = ("--run-dir", tmp_path / "job")
            addresses = login.hear("started", role="relay")["addresses"]
            way = shared if spool else ("--via", addresses[0])
            with Program(
                tmp_path / "2", *own, "--task", RAW["task"]["name"], "--invite", lines["job"], *in_job, *way
            ) as job:
                job.hear("round", members=2)
                first.hear("round", members=2)
                assert job.heard("started")[0]["addresses"] == []
                login.hear("members", clients=1)
                for each in (first, login, job):
                    assert not each.heard("rejected")
