"""A small internet on one machine: a network namespace for every host, on a link of its own to one switch or another.

Links are shaped with `tc tbf` in both directions. Moving a host's end of the link to the second switch parts it from
the first one's hosts without a word to anybody: packets are lost, as they are when a router dies. Needs root and
iproute2; the namespaces are this object's own, and are gone when its block ends.
"""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from processes_harness import Program

BURST = "64kb"
"""A bucket for a few frames of loopback's size: less, and tbf drops what segmentation offload hands it in one piece."""
LATENCY = "200ms"
"""How much may wait at the link: the buffer of a home router."""
PORT = 4001


def possible() -> bool:
    """Whether this machine lets us make namespaces and shape links."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"p2p-{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


class Lab:
    """`hosts` hosts, 10.77.0.1 and so on, each with `rate` (in tc's words) to the switch; None: as fast as it goes."""

    HUB = "10.77.0.254"
    """Where the switches are: a place for a relay."""

    def __init__(self, hosts: int, rate: str | None) -> None:
        self.hosts = range(hosts)
        self._rate = rate
        self._tag = f"lab{secrets.token_hex(3)}"

    def __enter__(self) -> "Lab":
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
    def hub(self) -> str:
        """The namespace with the switches."""
        return f"{self._tag}-hub"

    @staticmethod
    def address(host: int) -> str:
        """Where others find a host."""
        return f"10.77.0.{host + 1}"

    def inside(self, host: int | None) -> tuple[str, ...]:
        """The words before a command that is to run at a host; None: at the hub."""
        return ("ip", "netns", "exec", self.hub if host is None else self._space(host))

    def node(self, host: int, folder: Path, *words: object, port: int = PORT) -> Program:
        """`p2ptrain node --json` at a host, which listens on its address."""
        listen = ("--listen", f"/ip4/{self.address(host)}/tcp/{port}")
        run = ("node", "--json", "--run-dir", folder / "run", *listen)
        return Program(folder, *run, *words, before=self.inside(host))

    def part(self, hosts: Iterable[int]) -> None:
        """From now on these hosts reach only each other, and the others only each other."""
        for host in hosts:
            self._hub("ip", "link", "set", self._port(host), "master", "far")

    def heal(self) -> None:
        """All hosts reach each other again."""
        for host in self.hosts:
            self._hub("ip", "link", "set", self._port(host), "master", "near")

    def _make(self) -> None:
        _run("ip", "netns", "add", self.hub)
        for switch in ("near", "far"):
            self._hub("ip", "link", "add", switch, "type", "bridge")
            self._hub("ip", "link", "set", switch, "up")
        self._hub("ip", "addr", "add", f"{self.HUB}/24", "dev", "near")
        self._hub("ip", "link", "set", "lo", "up")
        for host in self.hosts:
            self._plug(host)

    def _plug(self, host: int) -> None:
        space, port = self._space(host), self._port(host)
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", port, "netns", self.hub, "type", "veth", "peer", "name", "eth0", "netns", space)
        self._hub("ip", "link", "set", port, "master", "near", "up")
        for words in (
            ("ip", "addr", "add", f"{self.address(host)}/24", "dev", "eth0"),
            ("ip", "link", "set", "eth0", "up"),
            ("ip", "link", "set", "lo", "up"),
        ):
            _run(*self.inside(host), *words)
        if self._rate is not None:
            shape = ("root", "tbf", "rate", self._rate, "burst", BURST, "latency", LATENCY)
            _run(*self.inside(host), "tc", "qdisc", "add", "dev", "eth0", *shape)
            self._hub("tc", "qdisc", "add", "dev", port, *shape)

    def _remove(self) -> None:
        for space in (*map(self._space, self.hosts), self.hub):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def _hub(self, *words: str) -> None:
        _run("ip", "netns", "exec", self.hub, *words)

    def _space(self, host: int) -> str:
        return f"{self._tag}-{host}"

    @staticmethod
    def _port(host: int) -> str:
        return f"h{host}"


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
