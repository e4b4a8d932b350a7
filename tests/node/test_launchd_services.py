"""Agents of launchd, with a launchctl that only remembers. Nothing here has seen a Mac."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from node.services import installing
from node.services.launchd_services import LaunchdServices
from node.services.service_manager import Done
from node.services.service_record import ServiceRecord
from node.system.errors import RunError, UsageError


class FakeLaunchctl:
    """Call it as `run_command`."""

    def __init__(self) -> None:
        self.loaded, self.code, self.running, self.refuses = False, 0, False, False
        self.verbs: list[str] = []

    def __call__(self, words: Sequence[str], *, timeout_s: float = 60.0) -> Done:
        verb, target = words[1], words[2]
        if verb == "print":
            if target.count("/") == 1 or self.loaded:
                pid = "\tpid = 4711\n" if self.running else ""
                return Done(code=0, out=f"state\n{pid}\tlast exit code = {self.code}\n", err="")
            return Done(code=113, out="", err="Could not find service\n")
        self.verbs.append(verb)
        if verb == "bootstrap":
            if self.refuses:
                return Done(code=5, out="", err="Bootstrap failed: 5: Input/output error\n")
            self.loaded = self.running = True
        if verb == "bootout":
            self.loaded = self.running = False
        return Done(code=0, out="", err="")


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceRecord:
    monkeypatch.setenv("HOME", str(tmp_path))
    return ServiceRecord(name="node", argv=("/p", "-m", "x"), folder=tmp_path, node_dir=tmp_path / "r", environment={})


def test_an_agent_is_loaded_looked_at_and_unloaded(record: ServiceRecord, tmp_path: Path) -> None:
    launchctl = FakeLaunchctl()
    manager = LaunchdServices(launchctl)
    done = installing.install(manager, record)
    assert done.linger.startswith("It ends when you log out")
    file = tmp_path / "Library" / "LaunchAgents" / "p2ptrain.node.plist"
    assert manager.names() == ["node"]
    assert manager.load("node") == record
    assert (manager.state("node").state, manager.state("node").pid) == ("running", 4711)
    launchctl.running, launchctl.code = False, 1
    assert (manager.state("node").state, manager.state("node").why) == ("waiting", "exit code 1")
    launchctl.code = 0  # what a mistake in the options becomes
    assert manager.state("node").state == "stopped"
    manager.start("node")
    launchctl.running = True
    installing.remove(manager, "node")
    assert launchctl.verbs == ["enable", "bootstrap", "kickstart", "bootout"]
    assert not file.exists()
    with pytest.raises(UsageError, match="there is no service node"):
        manager.load("node")


def test_an_agent_that_is_refused_leaves_no_file(record: ServiceRecord, tmp_path: Path) -> None:
    launchctl = FakeLaunchctl()
    launchctl.refuses = True
    with pytest.raises(RunError, match="Input/output error"):
        installing.install(LaunchdServices(launchctl), record)
    assert not list((tmp_path / "Library" / "LaunchAgents").iterdir())
