"""Services of launchd: agents of this user on macOS. Everything goes through `launchctl`.

An agent lives in its user's session: it ends at log-out and starts at log-in. launchd knows no exit code that is not to
be repeated, so launchd_start.py makes a success of a mistake in the options.
"""

import os
import plistlib
import re
import time
from pathlib import Path
from typing import Final

from node.services.service_manager import Done, Run, ServiceState, checked, run_command
from node.services.service_record import ServiceRecord, parse_record
from node.services.unit_text import RESTART_S, STOP_S
from node.system.errors import UsageError

PREFIX: Final = "p2ptrain."
SUFFIX: Final = ".plist"
KEY: Final = "P2PTrainService"
"""launchd passes over keys that it does not know."""

LOOK_S: Final = 0.5
"""Seconds between two looks whether a service has ended."""


class LaunchdServices:
    """The agents `p2ptrain.NAME` of this user."""

    module = "node.cli.launchd_start"

    def __init__(self, run: Run = run_command) -> None:
        self._run = run

    def file_of(self, name: str) -> Path:
        """Return the path of the property list."""
        return Path.home() / "Library" / "LaunchAgents" / f"{PREFIX}{name}{SUFFIX}"

    def names(self) -> list[str]:
        """Return the services that are installed."""
        files = sorted(self.file_of("x").parent.glob(f"{PREFIX}*{SUFFIX}"))
        return [file.name[len(PREFIX) : -len(SUFFIX)] for file in files if _record_in(file)]

    def load(self, name: str) -> ServiceRecord:
        """Return what is installed. UsageError where nothing is; RunError where its file is damaged."""
        file = self.file_of(name)
        if not file.is_file():
            raise UsageError(f"there is no service {name} ({file})", "p2ptrain service status lists those there are")
        return parse_record(_record_in(file), file)

    def text(self, record: ServiceRecord) -> bytes:
        """Return the property list."""
        log = Path.home() / "Library" / "Logs" / f"{PREFIX}{record.name}.log"
        return plistlib.dumps(
            {
                "Label": f"{PREFIX}{record.name}",
                "ProgramArguments": list(record.argv),
                "WorkingDirectory": str(record.folder),
                "EnvironmentVariables": record.environment,
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": RESTART_S,
                "ExitTimeOut": STOP_S,
                "ProcessType": "Background",
                "LowPriorityIO": True,
                "Nice": 10,
                "StandardOutPath": "/dev/null",
                "StandardErrorPath": str(log),
                KEY: record.to_json(),
            }
        )

    def absent(self) -> str:
        """Return why launchd takes nothing of this user, in words; empty where it does."""
        done = self._launchctl("print", _domain())
        return "" if done.code == 0 else f"nobody is logged in at this Mac's screen ({done.why()})"

    def start_line(self, name: str) -> str:
        """Return the command by which a person starts the service."""
        return f"launchctl bootstrap {_domain()} {self.file_of(name)}"

    def enable(self, name: str) -> None:
        """Have the service start at log-in, and now. RunError."""
        self._launchctl("enable", _target(name))
        self.start(name)

    def start(self, name: str) -> None:
        """Load and start the agent. RunError."""
        if self._launchctl("print", _target(name)).code:
            checked(self._launchctl("bootstrap", _domain(), str(self.file_of(name))), f"start {PREFIX}{name}")
        else:
            checked(self._launchctl("kickstart", _target(name)), f"start {PREFIX}{name}")

    def stop(self, name: str) -> None:
        """Unload the agent, and return when its process has ended. RunError."""
        done = self._launchctl("bootout", _target(name), timeout_s=STOP_S + 60)
        until = time.monotonic() + STOP_S + 60
        while self._launchctl("print", _target(name)).code == 0:
            if time.monotonic() > until:
                checked(Done(code=done.code or 1, out="", err=done.err or "it does not end"), f"stop {PREFIX}{name}")
            time.sleep(LOOK_S)

    def forget(self, name: str) -> None:
        """Nothing: an agent starts by itself because its file is there."""

    def settle(self) -> None:
        """Nothing: launchd reads a file when it is loaded."""

    def state(self, name: str) -> ServiceState:
        """Return how the agent is; stopped where launchd has not loaded it."""
        done = self._launchctl("print", _target(name))
        at_login = self.file_of(name).is_file()
        if done.code:
            return ServiceState(state="stopped", at_login=at_login, lingers=False)
        pid = re.search(r"^\s*pid = (\d+)", done.out, re.MULTILINE)
        code = re.search(r"^\s*last exit code = (\d+)", done.out, re.MULTILINE)
        failed = code is not None and int(code[1]) not in (0, 130)
        return ServiceState(
            state="running" if pid else "waiting" if failed else "stopped",
            why=f"exit code {code[1]}" if code is not None and failed and pid is None else "",
            pid=int(pid[1]) if pid else None,
            at_login=at_login,
            lingers=False,
        )

    def linger(self) -> str:
        """Return what to tell: an agent cannot outlive its user's session."""
        return "It ends when you log out, and starts again when you log in; locking the screen does not end it."

    def log_line(self, name: str) -> str:
        """Return the command that shows what the node wrote to stderr."""
        return f"tail ~/Library/Logs/{PREFIX}{name}.log"

    def _launchctl(self, *words: str, timeout_s: float = 60.0) -> Done:
        return self._run(("launchctl", *words), timeout_s=timeout_s)


def _domain() -> str:
    return f"gui/{os.getuid()}"


def _target(name: str) -> str:
    return f"{_domain()}/{PREFIX}{name}"


def _record_in(file: Path) -> str:
    try:
        raw = plistlib.loads(file.read_bytes())
    except (OSError, ValueError, plistlib.InvalidFileException):
        return ""
    return str(raw.get(KEY, "")) if isinstance(raw, dict) else ""
