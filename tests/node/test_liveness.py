"""Who lives is told by lock and heartbeat, whatever the log said last."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
from typed_events import said, typed

from node.cli import main
from node.config.schema import load
from node.events.event_types import Event, NeighbourLost, NeighbourUp, Rejected
from node.events.liveness import SILENT_S, Signs, ago, beat, judge, lines, lives, look
from node.events.log import EventLog
from node.events.peers_seen import MAX_PEERS, Peers, observe
from node.events.progress import NodeProgress
from node.page.feed import Feed
from node.page.feed import export_command as export_command_of_page
from node.system import run_dir
from node.system.run_dir import CONFIG, EVENTS, LOCK, PEERS, is_held, locked
from node.top.source import FolderSource
from node.up.plan import make_plan
from node.up.supervisor import Supervisor

NOW = 1_000_000.0


def story(folder: Path, *last: tuple[str, dict[str, Any]], pid: int = 77) -> Path:
    """A node's log up to round 41 of 150, three minutes ago."""
    folder.mkdir(parents=True, exist_ok=True)
    with EventLog(folder / EVENTS, clock=lambda: time.time() - 185) as log:
        log(said("started", peer_id=folder.name, pid=pid))
        for done in (40, 41):
            log(said("round", round=done, rounds=150, train_loss=1.0, steps=5))
        for event, fields in last:
            log(said(event, **fields))
    return folder


def killed(folder: Path, *, pid: int = 77) -> Path:
    """Its process is no more: the lock is there, and free."""
    story(folder, pid=pid)
    (folder / LOCK).write_text(f"{pid}\n")
    os.utime(folder / LOCK, (time.time() - 181,) * 2)
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_a_killed_run_is_not_said_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path / "node")
    said = printed(capsys, "status", tmp_path)
    assert "running" not in said
    assert "node: ended without a word (killed?) 3 min ago at round 41 of 150\n" in said
    assert f"go on with: p2ptrain node --run-dir {tmp_path}\n" in said
    (node,) = json.loads(printed(capsys, "status", tmp_path, "--json"))
    assert node["state"] == "dead"
    assert time.time() - 190 < node["ended_at"] == node["heartbeat"] < time.time() - 170


def test_top_promises_no_end_of_a_killed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path / "node")
    said = printed(capsys, "top", tmp_path, "--once")
    assert "left" not in said
    assert "ended without a word (killed?) 3 min ago at round 41 of 150" in said.replace("\n", " ")
    told = json.loads(printed(capsys, "top", tmp_path, "--json"))
    assert told["nodes"][0]["state"] == "dead", "and the lines end, as the run has"


def test_top_sees_a_node_die_and_come_back(tmp_path: Path) -> None:
    folder = killed(tmp_path / "node", pid=os.getpid())
    source = FolderSource(tmp_path)

    def state() -> str:
        return source.look()[0].progress.state

    with locked(folder):
        assert state() == "running"
    assert state() == "dead"
    with locked(folder):
        assert state() == "starting", "its log has nothing of the new process yet"
        with EventLog(folder / EVENTS) as log:
            log(said("started", peer_id="x", pid=os.getpid()))
        assert state() == "running"


@contextmanager
def held(folder: Path, *, beat_ago: float) -> Iterator[None]:
    with locked(folder):
        os.utime(folder / LOCK, (time.time() - beat_ago,) * 2)
        yield


def test_a_process_without_heartbeat_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = story(tmp_path / "node", pid=os.getpid())
    with held(folder, beat_ago=40):
        said = printed(capsys, "status", tmp_path)
        assert "silent" in said
        assert "node: no news for 40 s\n" in said or "node: no news for 41 s\n" in said
    with held(folder, beat_ago=3):
        assert "no news" not in printed(capsys, "status", tmp_path), "its rounds may take minutes"


HOLDER = """
import sys
from pathlib import Path
from node.system.run_dir import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_kernel_tells_of_a_process_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert look(tmp_path).held is True
        assert look(tmp_path).pid == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert look(tmp_path).held is False


def test_who_only_looks_makes_no_start_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / LOCK).touch()
    looking = os.open(tmp_path / LOCK, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(run_dir.time, "sleep", lambda _: os.close(looking))
    with locked(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


async def test_a_node_gives_heartbeats(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    (tmp_path / LOCK).touch()
    os.utime(tmp_path / LOCK, (1.0, 1.0))
    with trio.move_on_after(1):
        await beat(tmp_path)
    assert look(tmp_path).beat == pytest.approx(time.time(), abs=60)
    (tmp_path / LOCK).unlink()
    with trio.move_on_after(11):
        await beat(tmp_path)


def node(state: str, **fields: Any) -> NodeProgress:
    return NodeProgress("a", state=state, updated_at=NOW - 60, pid=1, **fields)


@pytest.mark.parametrize(
    ("state", "signs", "judged"),
    [
        ("running", Signs(held=True, pid=1, beat=NOW - 1), "running"),
        ("running", Signs(held=True, pid=1, beat=NOW - SILENT_S - 1), "silent"),
        ("silent", Signs(held=True, pid=1, beat=NOW), "running"),
        ("running", Signs(held=False, pid=1, beat=NOW - 1), "dead"),
        ("starting", Signs(held=False, pid=1), "dead"),
        ("dead", Signs(held=False, pid=1), "dead"),
        ("dead", Signs(held=True, pid=1), "starting"),
        ("finished", Signs(held=False, pid=1), "finished"),
        ("finished", Signs(held=True, pid=1), "finished"),
        ("interrupted", Signs(held=True, pid=2), "starting"),
        ("running", Signs(held=True, pid=2, beat=NOW - 99), "starting"),
        ("running", Signs(beat=NOW - 1), "running"),
        ("running", Signs(), "silent"),
        ("failed", Signs(), "failed"),
    ],
)
def test_signs_outweigh_events(state: str, signs: Signs, judged: str) -> None:
    it = node(state)
    judge(it, signs, NOW)
    assert it.state == judged


def ended(state: str, **fields: Any) -> NodeProgress:
    return node(state, ended_at=NOW - 7200, rounds_done=41, rounds=150, **fields)


@pytest.mark.parametrize(
    ("state", "fields", "said"),
    [
        ("dead", {}, "ended without a word (killed?) 2 h ago at round 41 of 150"),
        ("interrupted", {}, "interrupted 2 h ago at round 41 of 150"),
        ("failed", {"error": "no room", "hint": "free 3 MB"}, "failed 2 h ago at round 41 of 150: no room; free 3 MB"),
        ("finished", {}, "finished 2 h ago after round 41 of 150"),
        ("silent", {"heartbeat": NOW - 40}, "no news for 40 s"),
    ],
)
def test_what_ended_says_how_and_when(tmp_path: Path, state: str, fields: dict[str, Any], said: str) -> None:
    assert next(lines([(tmp_path / "node", ended(state, **fields))], NOW)) == f"a: {said}"


def commands(*nodes: tuple[Path, NodeProgress]) -> list[str]:
    return [line.partition(": p2ptrain ")[2] for line in lines(nodes, NOW) if ": p2ptrain " in line]


def test_the_command_that_goes_on_is_the_one_of_who_made_the_folder(tmp_path: Path) -> None:
    a, b = (tmp_path / name for name in ("node-0", "node-1"))
    assert commands((a, ended("dead"))) == [f"node --run-dir {tmp_path} --name node-0"]
    (tmp_path / PEERS).touch()
    (tmp_path / LOCK).touch()
    assert commands((a, ended("dead")), (b, ended("interrupted"))) == [f"up --run-dir {tmp_path}"]
    alone = [f"node --run-dir {tmp_path} --name node-1"]
    assert commands((a, node("running")), (b, ended("dead"))) == alone, "`up` runs still, and holds the folder"
    home = [f"export {tmp_path} --out model.safetensors"]
    assert commands((a, ended("finished")), (b, ended("finished"))) == home
    assert commands((a, node("running")), (b, node("starting"))) == []


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ('[task]\nname = "hf-lm"\n', "--to hf --out model"),
        ('[task]\nname = "digits"\n', "--out model.safetensors"),
        ("task = 3", "--out model.safetensors"),
        ("[task", "--out model.safetensors"),
    ],
)
def test_a_model_of_transformers_goes_home_as_a_folder(tmp_path: Path, settings: str, options: str) -> None:
    folder = tmp_path / "node-0"
    folder.mkdir()
    assert commands((folder, ended("finished"))) == [f"export {folder} --out model.safetensors"], "not known yet"
    (folder / EVENTS).touch()
    assert commands((folder, ended("finished"))) == [f"export {folder} --out model.safetensors"]
    (folder / CONFIG).write_text(settings)
    assert commands((folder, ended("finished"))) == [f"export {folder} {options}"]
    progress = NodeProgress("node-0", run_dir=str(folder))
    assert export_command_of_page(progress) == f"p2ptrain export {folder} {options}"


def test_a_full_disk_is_named_where_a_node_could_write_no_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.events.liveness.disk_free", lambda _: 100)
    told = list(lines([(tmp_path, ended("dead")), (tmp_path / "b", ended("finished"))], NOW))
    assert f"the disk of {tmp_path} is full: free some space first" in told
    assert sum("is full" in line for line in told) == 1


def test_a_node_that_cannot_save_says_what_a_kill_would_lose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = said("checkpoint_failed", round=38, why="No space left on device", needed_bytes=9, free_bytes=1)
    saved = said("checkpoint", round=30, path="ckpt-30")
    node = NodeProgress("alice")
    for event in (said("started", peer_id="alice", pid=1), said("round", round=41, rounds=150), full):
        node.observe(event)
    unsaved = "alice: cannot write a checkpoint (No space left on device)"
    assert list(lines([(None, node)], NOW)) == [f"{unsaved}: none, of 41 done"]
    for event in (saved, full):
        node.observe(event)
    assert list(lines([(None, node)], NOW)) == [f"{unsaved}: the newest is of round 30, of 41 done"]
    node.observe(said("finished"))
    assert not any("cannot write" in line for line in lines([(None, node)], NOW)), "it is over"
    node.observe(said("started", peer_id="alice", pid=2))
    assert list(lines([(None, node)], NOW)) == [], "another process"
    for event in (full, saved):
        node.observe(event)
    assert list(lines([(None, node)], NOW)) == []
    last = ("checkpoint_failed", {"round": 38, "why": "No space left", "needed_bytes": 9, "free_bytes": 1})
    with held(story(tmp_path / "node-0", last, pid=os.getpid()), beat_ago=3):
        assert "node-0: cannot write a checkpoint (No space left)" in printed(capsys, "status", tmp_path)


def test_many_ends_leave_room_for_the_table(tmp_path: Path) -> None:
    told = list(lines([(tmp_path / f"n{number}", ended("dead")) for number in range(30)], NOW))
    assert len(told) < 20
    assert "and 22 more" in told


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3, "0 s ago"), (59, "59 s ago"), (185, "3 min ago"), (7300, "2 h ago"), (1e6, "11 days ago")],
)
def test_how_long_ago(seconds: float, said: str) -> None:
    assert ago(seconds) == said


def test_a_node_says_its_heartbeat_when_it_is_asked() -> None:
    status = Feed(NodeProgress("a")).status()
    assert status["heartbeat"] == pytest.approx(time.time(), abs=60)
    assert status["ended_at"] is None


class Running:
    """A process that lives."""

    returncode = None


@pytest.fixture
def told(tmp_path: Path) -> tuple[Supervisor, list[Event]]:
    heard: list[Event] = []

    def hear(name: str, event: Event) -> None:
        heard.append(event)

    supervisor = Supervisor(make_plan(load(), run_dir=tmp_path, nodes=1, byzantine=0, cores=1), hear)
    supervisor.nodes[0].process = Running()  # type: ignore[assignment]
    story(supervisor.nodes[0].folder)
    return supervisor, heard


def test_up_tells_of_a_node_that_hangs_and_of_its_return(told: tuple[Supervisor, list[Event]]) -> None:
    supervisor, heard = told
    (its,) = supervisor.nodes
    its.progress.observe(typed({"ts": time.time() - 40, "event": "started", "pid": 5}))
    (its.folder / LOCK).write_text("5\n")
    os.utime(its.folder / LOCK, (time.time() - 40,) * 2)
    for _ in range(2):
        supervisor._look_at(its)
    assert its.progress.state == "silent"
    assert [event.message[:11] for event in heard] == ["no news for"], "once"
    os.utime(its.folder / LOCK)
    supervisor._look_at(its)
    assert its.progress.state == "running"
    assert heard[-1].message == "there is news again"


def test_a_process_that_is_younger_than_the_lock_did_not_take_it(tmp_path: Path) -> None:
    """Ids of processes are given again: after a reboot the lock's may be anybody's."""
    lock = tmp_path / LOCK
    lock.write_text(str(os.getpid()))
    assert lives(lock)
    began = psutil.Process().create_time()
    os.utime(lock, (began - 3600, began - 3600))
    assert not lives(lock)
    lock.write_text("no number")
    assert not lives(lock)


def test_so_many_peers_are_kept_and_those_that_left_longest_ago_go_first() -> None:
    peers: Peers = {}
    for number in range(MAX_PEERS):
        observe(peers, NeighbourUp(peer=f"p{number}", detail=""))
    for number in (5, 0):
        observe(peers, NeighbourLost(peer=f"p{number}", detail=""))
    observe(peers, NeighbourUp(peer="new", detail=""))
    assert "p5" not in peers
    assert "p0" in peers
    assert len(peers) == MAX_PEERS
    for number in range(MAX_PEERS):
        observe(peers, Rejected(peer=f"liar{number}", detail="", reason="forged"))
    assert len(peers) == MAX_PEERS
    assert "p1" in peers, "who is here stays before those who only knock"
