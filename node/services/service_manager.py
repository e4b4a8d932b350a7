"""What a service manager of the system does for us; `manager_here` returns the one of this machine."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from node.services.service_record import ServiceRecord
from node.system.errors import RunError, UsageError

COMMAND_S: Final = 60.0
"""Seconds for a command that asks a service manager, or has it start something."""

KERNEL: Final = Path("/proc/sys/kernel/osrelease")
"""Names Microsoft in WSL."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a command of the system ended."""

    code: int
    out: str
    err: str

    def why(self) -> str:
        """Return the last line that it said."""
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code}"


Run = Callable[..., Done]
"""Runs the words of a command to its end; `timeout_s`: seconds that it may take."""


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """What the service manager says of a service."""

    state: str
    """running, starting, stopping, waiting (for its next start), stopped, failed, or unknown."""
    why: str = ""
    """How it failed, in the manager's words."""
    pid: int | None = None
    restarts: int | None = None
    at_login: bool | None = None
    """Whether it starts by itself."""
    lingers: bool | None = None
    """Whether it goes on when its user logs out."""

    @property
    def up(self) -> bool:
        """Return whether there is something to stop."""
        return self.state in {"running", "starting", "stopping", "waiting"}

    def as_dict(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return asdict(self)


class ServiceManager(Protocol):
    """One for each system."""

    module: str
    """The module that it starts with the words of a command line."""

    def file_of(self, name: str) -> Path:
        """Return the path of the service's file, there or not."""

    def names(self) -> list[str]:
        """Return the services that are installed."""

    def load(self, name: str) -> ServiceRecord:
        """Return what is installed. UsageError where nothing is; RunError where its file is damaged."""

    def text(self, record: ServiceRecord) -> bytes:
        """Return the content of the service's file. UsageError for what cannot stand in it."""

    def absent(self) -> str:
        """Return why no manager answers, in words; empty where one does."""

    def start_line(self, name: str) -> str:
        """Return the command by which a person starts the service."""

    def enable(self, name: str) -> None:
        """Have the service start by itself from now on, and now. RunError."""

    def start(self, name: str) -> None:
        """Start what is installed. RunError."""

    def stop(self, name: str) -> None:
        """Stop it, and return when its process has ended. RunError."""

    def forget(self, name: str) -> None:
        """Have it not start by itself any more. The file is removed next. RunError."""

    def settle(self) -> None:
        """Have the manager read the files again. RunError."""

    def state(self, name: str) -> ServiceState:
        """Return how the service is."""

    def linger(self) -> str:
        """Have this user's services go on after log-out; return what to tell of that, empty where all is well."""

    def log_line(self, name: str) -> str:
        """Return the command that shows what the node wrote to stderr."""


def run_command(words: Sequence[str], *, timeout_s: float = COMMAND_S) -> Done:
    """Run a command to its end. One that is not there, or takes too long, has failed with 127 or 124."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,  # Ctrl-C is for us, who then put in order what the command was at
        )
    except OSError as error:
        return Done(code=127, out="", err=f"{words[0]}: {error.strerror or error}")
    except subprocess.TimeoutExpired:
        return Done(code=124, out="", err=f"{words[0]} did not answer within {timeout_s:.0f} s")
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def checked(done: Done, what: str) -> Done:
    """Return it where it succeeded. RunError, which says `what` could not be done."""
    if done.code:
        raise RunError(f"cannot {what}: {done.why()}", "mend that, and try again")
    return done


def manager_here(run: Run = run_command) -> ServiceManager:
    """Return this system's service manager. UsageError where it has none that we know."""
    from node.services.launchd_services import LaunchdServices
    from node.services.systemd_services import SystemdServices

    if sys.platform == "darwin":
        return LaunchdServices(run)
    if sys.platform != "linux":
        raise UsageError(f"there are no services for {sys.platform}", "on Windows, run it in WSL")
    if shutil.which("systemctl") is None:
        raise UsageError("this system has no systemd", without_systemd())
    return SystemdServices(run)


def without_systemd() -> str:
    """Return what to do on a Linux without systemd."""
    if KERNEL.is_file() and "microsoft" in KERNEL.read_text(errors="replace").lower():
        return "write systemd=true under [boot] in /etc/wsl.conf, then run wsl --shutdown in Windows"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "in a container, have its own restart policy start p2ptrain node (docker run --restart on-failure)"
    return "start p2ptrain node by your init system, or with nohup"


def refuse_sudo() -> None:
    """Raise UsageError under sudo: the service and all its files would be root's."""
    user = os.environ.get("SUDO_USER")
    if os.geteuid() == 0 and user and user != "root":
        raise UsageError("under sudo this would be root's service, not yours", f"run it as {user}, without sudo")
