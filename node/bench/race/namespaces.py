"""Hosts on one machine: a network namespace each, on a link of its own to one switch, or to one of two.

Links are shaped with `tc tbf` in both directions. It needs root and iproute2. The namespaces carry the number of the
process that made them: they are removed when its block ends, however it ends, and those of a process that was killed
are removed by the next race.
"""

import json
import os
import re
import shutil
import subprocess
from types import TracebackType
from typing import Final

from node.bench.race.delayed_link import DelayedLink
from node.system.errors import RunError, UsageError

PREFIX: Final = "p2ptrain-race"
BURST_S: Final = 0.004
"""Seconds of a link's rate that may pass at once: a tick of a kernel with 250 a second. Less leaves fast links idle."""
LEAST_BURST_BYTES: Final = 64 << 10
"""A few frames of loopback's size: with less, tbf drops what segmentation offload hands it in one piece."""
QUEUE: Final = "200ms"
"""How much may wait at a link: the buffer of a home router."""
PORT: Final = 4001
TRUNK: Final = "trunk"
"""The link between two switches."""
_OURS = re.compile(rf"{PREFIX}-(\d+)-(hub|hub2|\d+)")


def check_possible() -> None:
    """Raise UsageError, in one line, where no namespaces can be made."""
    if not (shutil.which("ip") and shutil.which("tc")):
        raise UsageError("a race needs the programs ip and tc", "install iproute2 (Linux)")
    if os.geteuid() != 0:
        raise UsageError("a race makes network namespaces, which only root may", "run it as root")
    trial = _name(os.getpid(), "hub")
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", trial], capture_output=True, check=False)
    if made.returncode != 0:
        raise UsageError(f"no network namespace can be made here ({made.stderr.strip()})", "try another machine")


class Hosts:
    """`count` hosts, 10.77.0.1 and so on, with `mbit` Mbit/s each way to the switch. A context manager. `between_mbit`:
    every second host is at a second switch, and the two have a link of so many Mbit/s each way, on which a frame takes
    `between_s` seconds."""

    def __init__(self, count: int, mbit: float, *, between_mbit: float | None = None, between_s: float = 0.0) -> None:
        self.count = count
        self._mbit = mbit
        self._between_mbit = between_mbit
        self._between_s = between_s
        self._delayed: DelayedLink | None = None
        self._pid = os.getpid()

    def __enter__(self) -> "Hosts":
        remove_abandoned()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    @staticmethod
    def address(host: int) -> str:
        """Return where others find a host."""
        return f"10.77.0.{host + 1}"

    def inside(self, host: int) -> list[str]:
        """Return the words before a command that is to run at a host."""
        return ["ip", "netns", "exec", self._space(host)]

    def bytes_sent(self) -> list[int]:
        """Return what each host has sent since its link was made, frames and all."""
        by_hub = {hub: _received(hub) for hub in self._hubs}
        return [by_hub[self._hub_of(host)][_port(host)] for host in range(self.count)]

    def bytes_between(self) -> int:
        """Return what has passed between two switches, both ways, frames and all."""
        return sum(_received(hub)[TRUNK] for hub in self._hubs)

    @property
    def _hubs(self) -> list[str]:
        return [_name(self._pid, hub) for hub in (("hub",) if self._between_mbit is None else ("hub", "hub2"))]

    def _hub_of(self, host: int) -> str:
        return self._hubs[host % len(self._hubs)]

    def _space(self, host: int) -> str:
        return _name(self._pid, str(host))

    def _make(self) -> None:
        for hub in self._hubs:
            _run("ip", "netns", "add", hub)
            _run("ip", "-n", hub, "link", "add", "switch", "type", "bridge")
            _run("ip", "-n", hub, "link", "set", "switch", "up")
        for host in range(self.count):
            self._plug(host)
        if self._between_mbit is not None:
            self._join(self._between_mbit)

    def _join(self, mbit: float) -> None:
        one, other = self._hubs
        if self._between_s > 0:
            self._delayed = DelayedLink(one, other, TRUNK, self._between_s)
        else:
            _run("ip", "link", "add", TRUNK, "netns", one, "type", "veth", "peer", "name", TRUNK, "netns", other)
        for hub in self._hubs:
            _run("ip", "-n", hub, "link", "set", TRUNK, "master", "switch", "up")
            _run("tc", "-n", hub, "qdisc", "add", "dev", TRUNK, "root", *shape(mbit))

    def _plug(self, host: int) -> None:
        space, port, hub = self._space(host), _port(host), self._hub_of(host)
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", port, "netns", hub, "type", "veth", "peer", "name", "eth0", "netns", space)
        _run("ip", "-n", hub, "link", "set", port, "master", "switch", "up")
        _run("ip", "-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _run("ip", "-n", space, "link", "set", "eth0", "up")
        _run("ip", "-n", space, "link", "set", "lo", "up")
        for place, device in ((space, "eth0"), (hub, port)):
            _run("tc", "-n", place, "qdisc", "add", "dev", device, "root", *shape(self._mbit))

    def _remove(self) -> None:
        if self._delayed is not None:
            self._delayed.close()
        _delete([*self._hubs, *map(self._space, range(self.count))])


def _received(hub: str) -> dict[str, int]:
    """Bytes that came in at each port of a switch."""
    told = json.loads(_run("ip", "-n", hub, "-s", "-j", "link", "show"))
    return {port["ifname"]: int(port["stats64"]["rx"]["bytes"]) for port in told}


def shape(mbit: float) -> list[str]:
    """Return a link's shape in tc's words."""
    burst = max(LEAST_BURST_BYTES, round(mbit * 1e6 / 8 * BURST_S))
    return ["tbf", "rate", f"{round(mbit * 1e6)}bit", "burst", str(burst), "latency", QUEUE]


def remove_abandoned() -> None:
    """Remove the namespaces of races whose process is gone."""
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    _delete(abandoned([line.split()[0] for line in done.stdout.splitlines() if line.strip()]))


def abandoned(names: list[str]) -> list[str]:
    """Return those of the namespaces `names` that a race made whose process is gone."""
    found = [(name, match) for name in names if (match := _OURS.fullmatch(name))]
    return [name for name, match in found if not _is_alive(int(match[1]))]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _delete(names: list[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _name(pid: int, what: str) -> str:
    return f"{PREFIX}-{pid}-{what}"


def _port(host: int) -> str:
    return f"h{host}"


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunError(f"{' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout
