"""Services of a user's own systemd. Everything goes through `systemctl --user` and `loginctl`."""

import os
from pathlib import Path
from typing import Final

from node.services.service_manager import Done, Run, ServiceState, checked, run_command, without_systemd
from node.services.service_record import ServiceRecord, parse_record
from node.services.unit_text import STOP_S, record_line, unit
from node.system.errors import UsageError

PREFIX: Final = "p2ptrain-"
SUFFIX: Final = ".service"

_SHOWN: Final = "LoadState,ActiveState,SubState,Result,ExecMainStatus,MainPID,NRestarts,UnitFileState"
_STATES: Final = {
    "active": "running",
    "activating": "starting",
    "reloading": "running",
    "deactivating": "stopping",
    "inactive": "stopped",
    "failed": "failed",
}
BOOTED: Final = Path("/run/systemd/system")
"""Where this folder is, systemd is the system's init (sd_booted(3))."""


class SystemdServices:
    """The units `p2ptrain-NAME.service` of this user."""

    module = "p2ptrain"

    def __init__(self, run: Run = run_command) -> None:
        self._run = run

    def file_of(self, name: str) -> Path:
        """Return the path of the unit file."""
        return _config_home() / "systemd" / "user" / f"{PREFIX}{name}{SUFFIX}"

    def env_file_of(self, name: str) -> Path:
        """Return the path of a file in which the owner may keep variables for the node, such as HF_TOKEN."""
        return _config_home() / "p2ptrain" / f"{name}.env"

    def names(self) -> list[str]:
        """Return the services that are installed."""
        files = sorted(self.file_of("x").parent.glob(f"{PREFIX}*{SUFFIX}"))
        return [file.name[len(PREFIX) : -len(SUFFIX)] for file in files if record_line(_read(file)) is not None]

    def load(self, name: str) -> ServiceRecord:
        """Return what is installed. UsageError where nothing is; RunError where its file is damaged."""
        file = self.file_of(name)
        if not file.is_file():
            raise UsageError(f"there is no service {name} ({file})", "p2ptrain service status lists those there are")
        return parse_record(record_line(_read(file)) or "", file)

    def text(self, record: ServiceRecord) -> bytes:
        """Return the unit file. UsageError for what cannot stand in it."""
        return unit(record, str(self.env_file_of(record.name))).encode()

    def absent(self) -> str:
        """Return why no user manager answers, in words; empty where one does."""
        done = self._systemctl("show", "--property=Version")
        if done.code == 0:
            return ""
        if not BOOTED.is_dir():
            return f"systemd does not run here ({without_systemd()})"
        return f"no systemd of this user answers ({done.why()})"

    def start_line(self, name: str) -> str:
        """Return the command by which a person starts the service."""
        return f"systemctl --user daemon-reload && systemctl --user enable --now {PREFIX}{name}"

    def enable(self, name: str) -> None:
        """Have the service start with its user's manager, and now. RunError."""
        checked(self._systemctl("enable", self._unit(name)), f"enable {self._unit(name)}")
        self.start(name)

    def start(self, name: str) -> None:
        """Start what is installed, however often it has failed before. RunError."""
        self._systemctl("reset-failed", self._unit(name))  # it fails where there is nothing to reset
        checked(self._systemctl("start", self._unit(name)), f"start {self._unit(name)}")

    def stop(self, name: str) -> None:
        """Stop it, and return when its process has ended. RunError."""
        done = self._systemctl("stop", self._unit(name), timeout_s=STOP_S + 60)
        checked(done, f"stop {self._unit(name)}")

    def forget(self, name: str) -> None:
        """Have it not start by itself any more. RunError."""
        checked(self._systemctl("disable", self._unit(name)), f"disable {self._unit(name)}")

    def settle(self) -> None:
        """Have the manager read the unit files again. RunError."""
        checked(self._systemctl("daemon-reload"), "have systemd read its units again")

    def state(self, name: str) -> ServiceState:
        """Return how the unit is; unknown where no manager answers."""
        done = self._systemctl("show", self._unit(name), f"--property={_SHOWN}")
        if done.code:
            return ServiceState(state="unknown", why=done.why(), at_login=self._is_wanted(name))
        said = dict(line.partition("=")[::2] for line in done.out.splitlines())
        state = _STATES.get(said.get("ActiveState", ""), "unknown")
        if said.get("SubState") == "auto-restart":
            state = "waiting"
        failed = said.get("Result", "success") != "success"
        return ServiceState(
            state=state,
            why=f"{said['Result']}, exit code {said.get('ExecMainStatus', '?')}" if failed else "",
            pid=int(said.get("MainPID") or 0) or None,
            restarts=int(said.get("NRestarts") or 0),
            at_login=said.get("UnitFileState") == "enabled",
            lingers=self._lingers(),
        )

    def linger(self) -> str:
        """Have this user's manager run from boot on, and after log-out. Return what to tell; empty where all is
        well."""
        if self._lingers():
            return ""
        done = self._run(("loginctl", "enable-linger"))
        if done.code == 0:
            return ""
        return f"It ends when you log out ({done.why()}). To let it go on: sudo loginctl enable-linger {_user()}"

    def log_line(self, name: str) -> str:
        """Return the command that shows what the node wrote to stderr."""
        return f"journalctl --user -u {PREFIX}{name}"

    def _unit(self, name: str) -> str:
        return f"{PREFIX}{name}{SUFFIX}"

    def _systemctl(self, *words: str, timeout_s: float = 60.0) -> Done:
        """A shell of `su` or `ssh` may lack the variable by which a manager that runs is found."""
        found = Path(f"/run/user/{os.getuid()}")
        if "XDG_RUNTIME_DIR" not in os.environ and found.is_dir():
            os.environ["XDG_RUNTIME_DIR"] = str(found)
        return self._run(("systemctl", "--user", "--no-pager", *words), timeout_s=timeout_s)

    def _lingers(self) -> bool:
        done = self._run(("loginctl", "show-user", _user(), "--property=Linger"))
        return done.code == 0 and done.out.strip() == "Linger=yes"

    def _is_wanted(self, name: str) -> bool:
        """Whether it is enabled, as the files say it."""
        return (self.file_of(name).parent / "default.target.wants" / self._unit(name)).is_symlink()


def _config_home() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(given) if Path(given).is_absolute() else Path.home() / ".config"


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
