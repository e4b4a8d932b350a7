"""Every alert that life can provoke here, provoked: real nodes that are killed, hang, lie, run out of disk or have too
much to do, scraped by a real Prometheus with the alerts that we ship, in which a minute lasts a second.

Not here: GpuMemoryLow, which takes a GPU that is full. Some nine minutes in all: `make soak`.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import moody_digits
import psutil
import pytest
from processes_harness import DIGITS, PATIENCE_S, Program, up
from prometheus_harness import ask, eventually, needs_prometheus, prometheus

pytestmark = [pytest.mark.alone, pytest.mark.soak, needs_prometheus]

LONG = (
    *DIGITS[2:],
    "--task",
    "moody_digits:create",
    "--inner-steps",
    20,
    "--rounds",
    5000,
    "--set",
    "train.device=cpu",
)
CALM_S = 30.0
"""Longer than any rate looks back and any condition has to hold together, NoCheckpoint's aside."""
HIDDEN = ("--set", 'network.announce=["/ip4/127.0.0.1/tcp/1"]')
"""What it announces nobody can dial: a connection there is refused."""
DISK_MB = 48


class Watched:
    """A folder with a run, which a Prometheus scrapes."""

    def __init__(self, folder: Path, run: Path | None = None) -> None:
        self.folder, self.run = folder, run or folder / "run"
        self.base = ""
        self._moods = folder / "moods"
        self._moods.mkdir()
        self.words = (*LONG, "--set", f"task.moods={self._moods}")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Prometheus looks from now on."""
        file = self.folder / "prometheus" / "targets" / "run.json"
        found = ("monitor", "targets", "--run-dir", self.run, "--watch", "--every", "0.5", "--out", file)
        with prometheus(self.folder / "prometheus", hurry=True) as self.base, Program(self.folder / "targets", *found):
            yield

    def node(self, *words: object) -> Program:
        """One more node of the run."""
        listen = ("--listen", "/ip4/127.0.0.1/tcp/0")
        return Program(self.folder, "node", "--json", "--run-dir", self.run, *listen, *self.words, *words)

    def firing(self) -> set[str]:
        """Names of the alerts that fire now, each with the node that it is of, or the run."""
        told = (ask(self.base, "alerts") or {"alerts": []})["alerts"]
        return {_named(it["labels"]) for it in told if it["state"] == "firing"}

    def value(self, query: str) -> float:
        """The one value of a query; 0 without one."""
        told = (ask(self.base, "query", query=query) or {"result": []})["result"]
        return float(told[0]["value"][1]) if told else 0.0

    def has_fired(self) -> set[str]:
        """Those that ever did."""
        query = 'last_over_time(ALERTS{alertstate="firing"}[10m])'
        told = (ask(self.base, "query", query=query) or {"result": []})["result"]
        return {_named(it["metric"]) for it in told}

    def hear(self, *alerts: str) -> None:
        """Wait until all of these fire."""
        self._await(lambda: self.firing() >= set(alerts), f"not all of {alerts} fire")

    def silence(self, *alerts: str) -> None:
        """Wait until none of these does."""
        self._await(lambda: not self.firing() & set(alerts), f"some of {alerts} still fire")

    def _await(self, found: Callable[[], bool], what: str) -> None:
        try:
            eventually(found, what)
        except AssertionError:
            raise AssertionError(f"{what}: {self.firing()} do") from None

    def mood(self, pid: int, mood: str = "") -> None:
        """See moody_digits."""
        file = self._moods / str(pid)
        new = file.with_suffix(".new")
        new.write_text(mood)
        new.rename(file)

    def again(self, name: str) -> Program:
        """Start a node that was killed as its restart line says, and have it take one member's word for where the swarm
        is: of these only one was left."""
        words = ("--run-dir", self.run, "--config", self.run / name / "config.toml", "--set", "node.min_donors=1")
        return Program(self.folder, "node", "--json", *words)


def _named(labels: dict[str, str]) -> str:
    return f"{labels['alertname']} {labels.get('node') or labels['run']}"


def pid_of(swarm: Program, name: str) -> int:
    return int(swarm.hear("started", node=name)["pid"])


def kill(swarm: Program, name: str) -> None:
    os.kill(pid_of(swarm, name), signal.SIGKILL)


def test_a_healthy_swarm_is_silent_and_one_that_loses_its_nodes_is_told_of_each_loss(tmp_path: Path) -> None:
    it = Watched(tmp_path)
    names = [f"node-{index}" for index in range(4)]
    with up(tmp_path, "--nodes", 4, *it.words) as swarm:
        for name in names:
            swarm.hear_round(5, node=name)
        with it.watch():
            eventually(lambda: len(ask(it.base, "targets")["activeTargets"]) == 4, "not all are scraped")
            time.sleep(CALM_S)
            assert it.has_fired() == set()

            kill(swarm, "node-3")
            it.hear("NodeDown node-3")
            assert not {"RobustnessLost node-0", "SwarmDown run"} & it.firing()
            kill(swarm, "node-2")
            it.hear("NodeDown node-2", "RobustnessLost node-0", "RobustnessLost node-1")
            assert "Alone node-0" not in it.firing()
            kill(swarm, "node-1")
            it.hear("NodeDown node-1", "Alone node-0")

            with it.again("node-1"), it.again("node-2"):
                it.silence("NodeDown node-1", "NodeDown node-2", "Alone node-0", "RobustnessLost node-0")
                assert "NodeDown node-3" in it.firing()
                assert "SwarmDown run" not in it.has_fired()
            kill(swarm, "node-0")
            it.hear("SwarmDown run")


def test_whoever_stands_still_or_computes_no_numbers_is_named_and_a_swarm_that_does_is_critical(tmp_path: Path) -> None:
    it = Watched(tmp_path)
    large = ("--set", "task.large=true")  # of a small model updates are decoded on the event loop, beside an evaluation
    with up(tmp_path, "--nodes", 3, "--set", "train.eval_every=5", *large, *it.words) as swarm:
        pids = [pid_of(swarm, f"node-{index}") for index in range(3)]
        swarm.hear_round(5)
        with it.watch():
            query = "count(p2ptrain_skipped_steps_total offset 2s)"  # of a first count nothing is known to have risen
            eventually(lambda: it.value(query) == 3, "not all are scraped")
            it.mood(pids[0], moody_digits.NO_NUMBERS_AND_HANGS)  # with three rounds of it the node would end
            it.hear("StepsSkipped node-0")
            it.hear("LossNotFinite node-0")
            assert not {"StepsSkipped node-1", "LossNotFinite node-1"} & it.firing()
            it.mood(pids[0])
            it.silence("StepsSkipped node-0", "LossNotFinite node-0")

            it.mood(pids[1], moody_digits.HANGS_EVALUATING)
            it.hear("UpdatesWait node-1")
            assert not {"UpdatesWait node-0", "UpdatesWait node-2"} & it.firing()
            it.mood(pids[1])
            it.silence("UpdatesWait node-1", "NoRounds node-1")

            it.mood(pids[2], moody_digits.HANGS)
            it.hear("NoRounds node-2")
            assert not {"NoRounds node-0", "SwarmStalled run"} & it.firing()
            for pid in pids:
                it.mood(pid, moody_digits.HANGS)
            it.hear("SwarmStalled run", "NoRounds node-0", "NoRounds node-1")
            for pid in pids:
                it.mood(pid)
            it.silence("SwarmStalled run", "NoRounds node-0", "NoRounds node-1", "NoRounds node-2")


def test_a_node_whose_neighbours_updates_do_not_come_is_told_of(tmp_path: Path) -> None:
    """Two of three are stopped: they fall silent only after 45 s, and more than twenty rounds are closed until then."""
    it = Watched(tmp_path)
    with up(tmp_path, "--nodes", 4, *it.words) as swarm:
        stopped = [psutil.Process(pid_of(swarm, name)) for name in ("node-2", "node-3")]
        swarm.hear_round(15, node="node-0")
        swarm.hear_round(15, node="node-1")
        with it.watch():
            for process in stopped:
                process.suspend()
            it.hear("UpdatesLate node-0", "UpdatesLate node-1")
            for process in stopped:
                process.resume()
            it.silence("UpdatesLate node-0", "UpdatesLate node-1")
        swarm.hear("warning", node="node-0", about="updates_in_time", recovered=True)
        warned = swarm.heard("warning", node="node-0", about="updates_in_time")
        assert [fields["recovered"] for fields in warned] == [False, True]


def test_liars_are_told_of(tmp_path: Path) -> None:
    it = Watched(tmp_path)
    knows = ("--set", f"network.peers_file={it.run / 'peers.txt'}")
    with up(tmp_path, "--nodes", 3, *it.words) as swarm:
        swarm.hear_round(5)
        with it.watch():
            flood = ("--set", "attack.name=flood", "--set", "attack.signed=true")
            with it.node(*knows, "--name", "loud", *flood):
                it.hear(*(f"ManyRejections node-{index}" for index in range(3)))
            it.silence(*(f"ManyRejections node-{index}" for index in range(3)))
            with it.node(*knows, "--name", "liar", "--set", "attack.name=nan"):
                it.hear(*(f"PeerBanned node-{index}" for index in range(3)))


@contextmanager
def asked_all_the_time(url: str, clients: int = 16) -> Iterator[None]:
    """So many programs that each want /metrics again as soon as they have it."""
    at, over = urlsplit(url), threading.Event()
    request = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"

    def ask_again() -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection((at.hostname, at.port), PATIENCE_S) as connection:
                connection.sendall(request)
                while connection.recv(1 << 16):
                    pass

    threads = [threading.Thread(target=ask_again) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextmanager
def crowded(pid: int, others: int = 6) -> Iterator[None]:
    """The event loop of that process shares one core with so many that compute; its training thread has the others."""
    process = psutil.Process(pid)
    before = process.cpu_affinity()
    crowd = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        for each in (process, *(psutil.Process(one.pid) for one in crowd)):
            each.cpu_affinity(before[:1])
        yield
    finally:
        process.cpu_affinity(before)
        for one in crowd:
            one.kill()
            one.wait()


def test_a_node_whose_event_loop_has_no_time_for_it_is_told_of(tmp_path: Path) -> None:
    """With a step a round training goes by the event loop at each step: it is asked too much, on a core of others."""
    it = Watched(tmp_path)
    alone = ("--set", "sync.f=0", "--set", "node.checkpoint_every=0")
    short = ("--inner-steps", 1, "--set", "task.step_s=0.01")
    with it.node(*alone, *short, "--name", "asked") as asked, it.node(*alone, "--name", "left"):
        url = asked.hear("started")["metrics_url"]
        asked.hear_round(5)
        with it.watch():
            with crowded(asked.process.pid), asked_all_the_time(url):
                it.hear("LowUtilization asked")
            assert "LowUtilization left" not in it.has_fired()
            it.silence("LowUtilization asked")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of DISK_MB. Skipped where we may not mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_fills_and_checkpoints_that_are_not_written_are_told_of(tmp_path: Path, small_disk: Path) -> None:
    it = Watched(tmp_path, small_disk / "run")
    never = ("--name", "never", "--set", "node.checkpoint_every=0", "--peer")
    with it.node("--set", "sync.f=0", "--name", "full") as full:
        address = full.hear("started")["addresses"][0]
        full.hear("checkpoint")
        with it.node("--set", "sync.f=0", *never, address) as never_saves:
            never_saves.hear_round(5)
            with it.watch():
                it.hear("DiskNearlyFull full", "DiskNearlyFull never")
                filler = small_disk / "filler"
                with suppress(OSError), filler.open("wb", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass
                full.hear("warning")
                it.hear("CheckpointOld full", "NoCheckpoint never")
                assert not {"CheckpointOld never", "NoCheckpoint full"} & it.has_fired()
                subprocess.run(["mount", "-o", "remount,size=2g", str(small_disk)], check=True)
                it.silence("DiskNearlyFull full", "DiskNearlyFull never", "CheckpointOld full")


def test_a_node_whose_machine_stops_now_and_then_is_told_of(tmp_path: Path) -> None:
    it = Watched(tmp_path)
    with up(tmp_path, "--nodes", 2, "--set", "sync.f=0", *it.words) as swarm:
        process = psutil.Process(pid_of(swarm, "node-0"))
        swarm.hear_round(5)
        with it.watch():

            def stumbles() -> bool:
                process.suspend()
                time.sleep(0.8)
                process.resume()
                time.sleep(1.2)
                return "LoopLag node-0" in it.firing()

            eventually(stumbles, "a node that wakes late is not told of")
            assert "LoopLag node-1" not in it.firing()
            it.silence("LoopLag node-0")


def test_a_relay_that_gives_all_it_may_is_told_of(tmp_path: Path) -> None:
    it = Watched(tmp_path)
    words = ("--set", "sync.f=0", "--set", "sync.compressor=none")
    offers = ("--set", "network.relay=true", "--set", "network.relay_bytes_per_s=32768")
    with it.node(*words, *offers, "--name", "relay") as relay:
        knows = ("--peer", relay.hear("started")["addresses"][0])
        with (
            it.node(*words, *HIDDEN, *knows, "--name", "one"),
            it.node(*words, *HIDDEN, *knows, "--name", "other"),
            it.node(*words, *HIDDEN, *knows, "--name", "third"),  # with two the way is free now and then
            it.watch(),
        ):
            it.hear("RelaySaturated relay")
            assert not {f"RelaySaturated {name}" for name in ("one", "other", "third")} & it.firing()
