"""A cluster beside the small internet of `lab_harness.py`: compute nodes that have a link to their login node alone."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType

from lab_harness import PORT, Lab
from processes_harness import Program


class Cluster:
    """`members` hosts of the internet, a login node that is one more of them, and `compute` hosts behind it, 10.99.0.2
    and so on. Nothing is routed between the two networks. A compute node without a `link` has no network at all."""

    PREFIX = "10.99.0.0/24"

    def __init__(self, members: int, compute: int, *, linked: bool = True) -> None:
        self.lab = Lab(members + 1, None)
        self.login = members
        self.compute = range(compute)
        self._linked = linked

    def __enter__(self) -> "Cluster":
        self.lab.__enter__()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    @property
    def login_inside(self) -> str:
        """The login node's address on the compute nodes' network."""
        return "10.99.0.1"

    def inside(self, number: int) -> tuple[str, ...]:
        """The words before a command that is to run at a compute node."""
        return ("ip", "netns", "exec", self._space(number))

    def reaches(self, number: int, address: str) -> bool:
        """Whether a compute node connects to this address."""
        code = f"import socket; socket.create_connection(({address!r}, {PORT}), 3)"
        words = (*self.inside(number), sys.executable, "-c", code)
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def relay(self, folder: Path, *words: object) -> Program:
        """`p2ptrain node --role relay --json` at the login node."""
        listen = ("--listen", f"/ip4/0.0.0.0/tcp/{PORT}") if self._linked else ()
        run = ("node", "--json", "--run-dir", folder / "run", "--role", "relay", *listen)
        return Program(folder, *run, *words, before=self.lab.inside(self.login))

    def node(self, number: int, folder: Path, *words: object) -> Program:
        """`p2ptrain node --json` at a compute node."""
        return Program(folder, "node", "--json", "--run-dir", folder / "run", *words, before=self.inside(number))

    def _space(self, number: int) -> str:
        return f"{self.lab.hub}-c{number}"

    def _make(self) -> None:
        login = self.lab.inside(self.login)
        if self._linked:
            _run(*login, "ip", "link", "add", "inside", "type", "bridge")
            _run(*login, "ip", "addr", "add", f"{self.login_inside}/24", "dev", "inside")
            _run(*login, "ip", "link", "set", "inside", "up")
        for number in self.compute:
            space = self._space(number)
            _run("ip", "netns", "add", space)
            _run(*self.inside(number), "ip", "link", "set", "lo", "up")
            if self._linked:
                self._plug(number, login)

    def _plug(self, number: int, login: tuple[str, ...]) -> None:
        space, port = self._space(number), f"c{number}"
        _run(*login, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        _run(*login, "ip", "link", "set", port, "master", "inside", "up")
        _run(*self.inside(number), "ip", "addr", "add", f"10.99.0.{number + 2}/24", "dev", "eth0")
        _run(*self.inside(number), "ip", "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for number in self.compute:
            subprocess.run(["ip", "netns", "del", self._space(number)], capture_output=True, check=False)
        self.lab.__exit__(None, None, None)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
