"""Real nodes with a budget of memory, held by a cgroup: one trains on within half of what it takes without one, one
that was killed leaves nothing behind, and a budget that is too small is told in one line.

Counted is what the system cannot take back: anonymous and shared memory (RssAnon, RssShmem). Pages of libraries are
resident besides (VmHWM), some 130 MB in memory that all programs share; the cgroup counts those of them that this node
was the first to read.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes_harness import DIGITS, Program, node, ran

from node.system.cgroups import PREFIX, HeldProcess, Limits, own_hierarchies

pytestmark = [pytest.mark.alone, pytest.mark.thorough]

MICRO = (
    "--set",
    "task.size=micro",
    "--set",
    "train.batch_size=64",
    "--set",
    "train.threads=1",
    "--set",
    "network.upnp=false",
    "--set",
    "sync.f=0",
)
SHORT = ("--rounds", "2", "--inner-steps", "3", "--set", "network.degree=2", "--set", "node.linger_s=1")
LOOK_S = 0.02
OVER = 1.05
"""Times its budget that a node may take at most."""


def can_hold() -> bool:
    """Whether this user may make cgroups that bound memory."""
    limits = Limits(memory=1 << 40)
    with HeldProcess(os.getpid()) as process:
        process.enter(limits, own_hierarchies())
        process.limit(limits)
        return "memory" in process.holds


@pytest.fixture
def cgroups() -> None:
    """Skip where this user may make none; asked as a test runs, since it moves this process into one and back."""
    if not can_hold():
        pytest.skip("this user may make no cgroup that bounds memory")


class Peak:
    """The most bytes of memory that a process has taken, of those looked at."""

    def __init__(self) -> None:
        self.resident = self.held = 0

    def look(self, pid: int) -> None:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:  # it has ended
            return
        seen = dict(line.split(":", 1) for line in lines if line.startswith(("VmHWM:", "RssAnon:", "RssShmem:")))
        sizes = {name: 1024 * int(value.split()[0]) for name, value in seen.items()}
        self.resident = max(self.resident, sizes.get("VmHWM", 0))
        self.held = max(self.held, sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0))


@contextmanager
def watched(program: Program) -> Iterator[Peak]:
    peak, over = Peak(), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            peak.look(program.pid)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def groups() -> list[Path]:
    """The cgroups that nodes have made beside this process."""
    return [group for tree in own_hierarchies() for group in tree.home.glob(f"{PREFIX}*")]


def limit_in(group: Path) -> int:
    """The bytes that the kernel lets a cgroup have."""
    names = ("memory.max", "memory.limit_in_bytes")
    return next(int((group / name).read_text()) for name in names if (group / name).exists())


def beside_a_neighbour(folder: Path, *words: object) -> tuple[Peak, Program]:
    """Run a node of micro to its end beside another one; return the memory that it took, and the ended node."""
    with node(folder / "neighbour", *MICRO, *SHORT, "--set", "node.wait_for=1", real=True) as neighbour:
        address = neighbour.hear("started")["addresses"][0]
        program = node(folder / "node", *MICRO, *SHORT, *words, "--peer", address, real=True)
        with program, watched(program) as peak:
            assert program.end() == 0, program.stderr
        return peak, program


@pytest.mark.usefixtures("cgroups")
def test_a_node_trains_on_within_half_of_what_it_takes_without_a_budget(tmp_path: Path) -> None:
    free, _ = beside_a_neighbour(tmp_path / "free")
    budget = free.held // 2
    within, program = beside_a_neighbour(tmp_path / "within", "--memory", str(budget))
    sizes = [f"{size / 1e6:.0f}" for size in (free.resident, free.held, budget, within.resident, within.held)]
    print("MB without a budget, resident and held: {}, {}; with {}: {}, {}".format(*sizes))
    (planned,) = program.heard("budget_planned")
    assert planned["held"] == ["memory"]
    assert planned["needed_bytes"] <= budget
    (finished,) = program.heard("finished")
    assert finished["summary"]["rounds"] == 2
    assert finished["summary"]["eval_loss_last"] < finished["summary"]["eval_loss_first"]
    assert finished["summary"]["updates_accepted"] > 0
    assert within.held <= OVER * budget
    assert groups() == []


@pytest.mark.usefixtures("cgroups")
def test_a_killed_node_leaves_no_cgroup_once_another_starts(tmp_path: Path) -> None:
    with node(tmp_path / "killed", *DIGITS, "--memory", "2GiB", real=True) as program:
        program.hear("budget_planned")
        (group,) = groups()
        assert group.name == f"{PREFIX}{program.pid}"
        assert 1 << 30 < limit_in(group) <= 2 << 30
        os.kill(program.pid, signal.SIGKILL)
        program.end()
    assert groups() == [group]
    with node(tmp_path / "next", *DIGITS, "--memory", "2GiB", real=True) as program:
        program.hear("started")  # until then Ctrl-C ends a node at once, as a kill does
        assert [each.name for each in groups()] == [f"{PREFIX}{program.pid}"]
        program.interrupt()
        assert program.end() == 130, program.stderr
    assert groups() == []


def test_a_budget_that_is_too_small_is_told_in_one_line(tmp_path: Path) -> None:
    refused = ran(tmp_path, "node", "--run-dir", "run", *MICRO, "--memory", "200MiB")
    assert refused.code == 2
    assert not (tmp_path / "run" / "node" / "config.toml").exists(), "the next start is not refused for it as well"
    (line,) = refused.err.splitlines()
    assert "budget.memory of 210 MB is too little: this node needs " in line
    assert groups() == []
