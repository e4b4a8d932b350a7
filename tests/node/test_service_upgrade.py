"""An upgrade refuses what the swarm would refuse, and goes back where a node does not come up.

pip and systemd are fakes here; tests/integration/test_service_releases.py has the real ones.
"""

import json
import os
import signal
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from fake_systemd import OK, FakeSystemd

from gossip.core.limits import PROTOCOL_VERSION
from gossip.membership import ManifestBody
from node.services import installing, upgrade
from node.services.candidate import candidate, wire_version
from node.services.installed_package import KEPT, installed_package, pack
from node.services.service_manager import Done, run_command
from node.services.service_record import ServiceRecord
from node.services.systemd_services import SystemdServices
from node.services.upgrade import Clock, Upgraded, check_wire
from node.system import run_dir as folders
from node.system.errors import RunError, UsageError

OURS = "gossip/core/limits.py"


def wheel(folder: Path, version: str = "0.2.0", *, name: str = "p2ptrain", wire: object = PROTOCOL_VERSION) -> Path:
    """A wheel with nothing in it but what is asked before it is installed."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for module in ("gossip/__init__.py", "gossip/core/__init__.py"):
            file.writestr(module, "")
        file.writestr(OURS, f"PROTOCOL_VERSION = {wire}\n")
        file.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
    return path


def installed_in(site: Path, version: str = "0.1.0", *, editable: bool = False) -> Distribution:
    """A p2ptrain as pip leaves it in `site`."""
    info = site / f"p2ptrain-{version}.dist-info"
    info.mkdir(parents=True)
    (site / "gossip").mkdir()
    (site / "gossip" / "a, b.py").write_text("x = 1\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: p2ptrain\nVersion: {version}\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (info / "INSTALLER").write_text("pip\n")
    (info / "direct_url.json").write_text(
        json.dumps({"url": "file:///home/me/my%20checkout", "dir_info": {"editable": True} if editable else {}})
    )
    names = [f"{info.name}/{each}" for each in ("METADATA", "WHEEL", "INSTALLER", "direct_url.json", "RECORD")]
    names += ['"gossip/a, b.py"', "gossip/__pycache__/x.pyc", "../../../bin/p2ptrain"]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    return Distribution.at(info)


class Machine:
    """One service on a machine whose pip does as it is told. `starts`: what the node's log says after each start."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.systemd, self.now = FakeSystemd(), 0.0
        self.pip: list[str] = []
        self.fails: Callable[[str], Done | None] = lambda line: None
        self.starts: list[list[str]] = []
        self.version = "0.1.0"
        self.told: list[str] = []
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        old = installed_in(tmp_path / "site")
        monkeypatch.setattr(upgrade, "installed_package", lambda: old)
        self.manager = SystemdServices(self.systemd)
        self.node_dir = folders.make_node_dir(tmp_path / "run", "node")
        self.record = ServiceRecord(
            name="node", argv=(sys.executable, "x"), folder=tmp_path, node_dir=self.node_dir, environment={}
        )
        installing.install(self.manager, self.record)
        self.systemd.on["start"] = self._start
        self.systemd.asked.clear()

    def run(self, words: Sequence[str], *, timeout_s: float = 60.0) -> Done:
        if "pip" not in words:
            if "--version" in words:
                return Done(code=0, out=f"p2ptrain {self.version}\n", err="")
            return run_command(words, timeout_s=timeout_s)
        line = " ".join(words[words.index("--no-input") + 1 :])
        self.pip.append(line)
        if (said := self.fails(line)) is not None:
            return said
        if line.startswith("wheel"):
            folder = Path(words[words.index("--wheel-dir") + 1])
            (folder / Path(words[-1]).name).write_bytes(Path(words[-1]).read_bytes())
        if line.startswith("install") and line.endswith(".whl") and "--dry-run" not in line:
            self.version = Path(words[-1]).name.split("-")[1]
        return OK if not line.startswith("list") else Done(code=0, out="[]", err="")

    def upgrade(self, to: Path, wire: int | None = None) -> Upgraded:
        return upgrade.upgrade(
            self.manager,
            str(to),
            wire=wire,
            tell=self.told.append,
            run=self.run,
            clock=Clock(now=lambda: self.now, sleep=self._sleep),
        )

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _start(self) -> None:
        with (self.node_dir / folders.EVENTS).open("a") as log:
            for event in self.starts.pop(0) if self.starts else ["started"]:
                log.write(json.dumps({"ts": self.now, "event": event, "error": "no luck", "hint": ""}) + "\n")
                if event == "failed":
                    self.systemd.on["show"] = lambda: Done(
                        code=0, out="ActiveState=activating\nSubState=auto-restart", err=""
                    )
                else:
                    self.systemd.on.pop("show", None)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_release_of_the_same_wire_version_is_installed_between_stop_and_start(
    machine: Machine, tmp_path: Path
) -> None:
    done = machine.upgrade(wheel(tmp_path / "new"))
    assert (done.before, done.after, done.started) == ("0.1.0", "0.2.0", ("node",))
    assert done.kept == tmp_path / "state" / "p2ptrain" / "before" / "p2ptrain-0.1.0-py3-none-any.whl"
    assert [line.split()[0] for line in machine.pip] == ["--version", "wheel", "install", "list", "install"]
    assert "--dry-run" in machine.pip[2]
    assert machine.systemd.verbs() == ["stop", "reset-failed", "start"]
    assert machine.now >= upgrade.STEADY_S
    again = machine.upgrade(wheel(tmp_path / "same", "0.1.0"))  # the fake's old one still says 0.1.0
    assert "--force-reinstall --no-deps" in machine.pip[-1]
    assert again.after == "0.1.0"


@pytest.mark.parametrize(
    ("wire", "spoken"), [(PROTOCOL_VERSION + 1, None), (PROTOCOL_VERSION - 1, None), (3, 4), (4, 5)]
)
def test_another_wire_version_is_refused_before_anything_is_touched(
    machine: Machine, tmp_path: Path, wire: int, spoken: int | None
) -> None:
    with pytest.raises(UsageError) as caught:
        machine.upgrade(wheel(tmp_path / "new", wire=wire), spoken)
    assert f"p2ptrain 0.2.0 speaks wire version {wire}, and the run speaks {spoken or PROTOCOL_VERSION}" in str(
        caught.value
    )
    assert machine.systemd.verbs() == []
    assert [line.split()[0] for line in machine.pip] == ["--version", "wheel"]
    assert not (tmp_path / "state").exists()


def test_a_swarm_that_has_moved_on_is_followed(machine: Machine, tmp_path: Path) -> None:
    assert machine.upgrade(wheel(tmp_path / "new", wire=PROTOCOL_VERSION + 1), PROTOCOL_VERSION + 1).after == "0.2.0"


def test_a_private_swarms_least_versions_hold(machine: Machine, tmp_path: Path, monkeypatch) -> None:
    terms = ManifestBody(name="lab", admins=(bytes(32),), min_protocol=PROTOCOL_VERSION + 1)
    monkeypatch.setattr(upgrade, "_terms", lambda folder: terms)
    with pytest.raises(UsageError, match=f"the run speaks {PROTOCOL_VERSION + 1}"):
        machine.upgrade(wheel(tmp_path / "old"))
    newer = candidate(machine.run, str(wheel(tmp_path / "new", wire=PROTOCOL_VERSION + 1)), made(tmp_path / "out"))
    check_wire(newer, [machine.record], None)
    with pytest.raises(UsageError, match="asks for wire version"):
        check_wire(replace(newer, wire=PROTOCOL_VERSION), [machine.record], PROTOCOL_VERSION)
    terms = replace(terms, min_app="0.3")
    with pytest.raises(RunError, match=r"needs p2ptrain 0\.3 or newer, and this is 0\.2\.0"):
        check_wire(newer, [machine.record], None)


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (["failed"], "node failed (no luck)"),
        (["started", "failed"], "node failed (no luck)"),
        (["checkpoint_skipped", "started"], "node cannot read its checkpoint"),
        ([], "node did not start within 300 s"),
    ],
)
def test_where_the_node_does_not_come_up_what_was_before_is_back(
    machine: Machine, tmp_path: Path, log, why: str
) -> None:
    machine.starts = [log, ["started"]]
    with pytest.raises(RunError) as caught:
        machine.upgrade(wheel(tmp_path / "new"))
    assert str(caught.value) == f"p2ptrain 0.2.0 does not do: {why}; p2ptrain 0.1.0 is back and started"
    assert machine.version == "0.1.0"
    assert machine.pip[-2].startswith("install --no-index --no-deps --force-reinstall")
    assert machine.systemd.verbs() == ["stop", "reset-failed", "start", "stop", "reset-failed", "start"]


def test_a_finished_run_has_come_up(machine: Machine, tmp_path: Path) -> None:
    machine.starts = [["started", "finished"]]
    ended = Done(code=0, out="ActiveState=inactive", err="")
    start = machine.systemd.on["start"]

    def finish() -> None:
        start()
        machine.systemd.on["show"] = lambda: ended

    machine.systemd.on["start"] = finish
    assert machine.upgrade(wheel(tmp_path / "new")).started == ("node",)


def test_a_log_that_is_begun_anew_meanwhile_is_read_from_its_beginning(machine: Machine, tmp_path: Path) -> None:
    log = machine.node_dir / folders.EVENTS
    log.write_text(json.dumps({"ts": 0.0, "event": "failed", "error": "long ago", "hint": "x" * 4096}) + "\n")
    start = machine.systemd.on["start"]

    def rotated() -> None:
        log.unlink()
        start()

    machine.systemd.on["start"] = rotated
    assert machine.upgrade(wheel(tmp_path / "new")).started == ("node",)


def test_a_pip_that_fails_half_way_goes_back(machine: Machine, tmp_path: Path) -> None:
    full = Done(code=1, out="", err="ERROR: Could not install packages: No space left on device\n")
    machine.fails = lambda line: full if line.startswith("install /") else None
    with pytest.raises(RunError, match=r"No space left on device; p2ptrain 0\.1\.0 is back and started"):
        machine.upgrade(wheel(tmp_path / "new"))
    machine.fails = lambda line: full if "--dry-run" in line else None
    machine.systemd.asked.clear()
    with pytest.raises(RunError, match="cannot install p2ptrain"):
        machine.upgrade(wheel(tmp_path / "new"))
    assert machine.systemd.verbs() == []


def test_ctrl_c_while_pip_installs_goes_back(machine: Machine, tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("install /"):
            raise KeyboardInterrupt

    machine.fails = interrupt
    with pytest.raises(KeyboardInterrupt):
        machine.upgrade(wheel(tmp_path / "new"))
    assert machine.told[-1] == "interrupted; p2ptrain 0.1.0 is back and started"
    assert machine.systemd.verbs()[-1] == "start"


def test_ctrl_c_while_it_goes_back_is_passed_over(machine: Machine, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupt(line: str) -> None:
        if "--no-index" in line:
            signal.raise_signal(signal.SIGINT)

    machine.fails, machine.starts = interrupt, [["failed"], ["started"]]
    with pytest.raises(RunError, match=r"0\.1\.0 is back and started"):
        machine.upgrade(wheel(tmp_path / "new"))
    assert machine.version == "0.1.0"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_service_that_does_not_stop_keeps_no_package_back(machine: Machine, tmp_path: Path) -> None:
    machine.starts = [["checkpoint_skipped"], ["started"]]
    stops = iter([OK, Done(code=1, out="", err="Connection timed out")])
    machine.systemd.on["stop"] = lambda: next(stops)
    with pytest.raises(RunError, match=r"0\.1\.0 is back; cannot stop p2ptrain-node\.service: Connection timed out"):
        machine.upgrade(wheel(tmp_path / "new"))
    assert machine.version == "0.1.0"
    assert machine.systemd.verbs()[-1] == "start"


def test_where_pip_cannot_go_back_either_it_says_by_what_command(machine: Machine, tmp_path: Path) -> None:
    machine.fails = lambda line: (
        Done(code=1, out="", err="disk") if line.startswith("install") and "dry" not in line else None
    )
    with pytest.raises(
        RunError,
        match=r"cannot put p2ptrain 0\.1\.0 back: disk; node is stopped \(then: systemctl .* p2ptrain-node\); "
        r"try: .* -m pip install --no-deps",
    ) as caught:
        machine.upgrade(wheel(tmp_path / "new"))
    assert Path(str(caught.value).split()[-1]).is_file()


def test_packages_that_pip_changed_on_the_way_go_back_too(machine: Machine, tmp_path: Path) -> None:
    versions = iter(["1.0", "2.0"])

    def other(line: str) -> Done | None:
        if not line.startswith("list"):
            return None
        return Done(code=0, out=json.dumps([{"name": "other", "version": next(versions)}]), err="")

    machine.fails, machine.starts = other, [["failed"], ["started"]]
    with pytest.raises(RunError):
        machine.upgrade(wheel(tmp_path / "new"))
    assert machine.pip[-1] == "install --no-deps other==1.0"


def test_a_service_that_was_stopped_is_not_started(machine: Machine, tmp_path: Path) -> None:
    machine.systemd.states.clear()
    assert machine.upgrade(wheel(tmp_path / "new")).started == ()
    machine.systemd.answers = False
    assert machine.upgrade(wheel(tmp_path / "new")).started == ()
    assert machine.systemd.verbs() == []


def test_two_upgrades_at_once_are_one(machine: Machine, tmp_path: Path) -> None:
    keep = tmp_path / "state" / "p2ptrain" / "before"
    keep.mkdir(parents=True)
    with folders.locked(keep), pytest.raises(RunError, match="is in use by"):
        machine.upgrade(wheel(tmp_path / "new"))
    assert machine.systemd.verbs() == []


def test_a_service_of_another_environment_is_named(machine: Machine, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "elsewhere" / "python"))
    with pytest.raises(UsageError, match=r"call that one's: .*python.* -m p2ptrain service upgrade"):
        upgrade.services_here(machine.manager)


def test_what_is_no_p2ptrain_is_refused(machine: Machine, tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "none.whl", "there is no"),
        (wheel(tmp_path / "a", name="torch"), "is torch, not p2ptrain"),
        (wheel(tmp_path / "b", wire="print()"), "does not say which wire version"),
    ):
        with pytest.raises((UsageError, RunError), match=said):
            machine.upgrade(path)
    (tmp_path / "c").mkdir()
    (broken := tmp_path / "c" / "p2ptrain-1-py3-none-any.whl").write_bytes(b"zip")
    with pytest.raises(RunError, match="is damaged"):
        machine.upgrade(broken)
    assert machine.systemd.verbs() == []


def test_the_wire_version_is_read_in_another_process(tmp_path: Path) -> None:
    path = wheel(tmp_path / "new", wire="__import__('os').getpid()")
    assert wire_version(run_command, path) != os.getpid()


def test_a_packed_package_is_what_is_installed(tmp_path: Path) -> None:
    package = installed_in(tmp_path / "site")
    (tmp_path / "kept").mkdir()
    with zipfile.ZipFile(pack(package, tmp_path / "kept")) as file:
        names = file.namelist()
        record = file.read("p2ptrain-0.1.0.dist-info/RECORD").decode().splitlines()
        assert file.read("gossip/a, b.py") == b"x = 1\n"
    assert sorted(names) == [
        "gossip/a, b.py",
        *(f"p2ptrain-0.1.0.dist-info/{it}" for it in ("METADATA", "RECORD", "WHEEL")),
    ]
    assert '"gossip/a, b.py",sha256=' in "\n".join(record)
    assert len(record) == 4
    for number in range(5):
        pack(installed_in(tmp_path / f"site-{number}", f"0.{number}.1"), tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == KEPT
    (tmp_path / "site" / "gossip" / "a, b.py").unlink()
    with pytest.raises(RunError, match="cannot keep the p2ptrain of now"):
        pack(package, tmp_path / "kept")
    assert not list((tmp_path / "kept").glob("*.new"))


def test_a_checkout_is_not_replaced(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(
        "node.services.installed_package.distribution",
        lambda name: installed_in(tmp_path / "site", editable=True),
    )
    with pytest.raises(UsageError, match="runs from the checkout /home/me/my checkout"):
        installed_package()


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder
