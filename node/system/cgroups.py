"""Holds this process to a share of the machine by a cgroup of its own, version 1 or 2, where its user may make one.

The cgroup is made below the one that the process is in, or beside it, where version 2 allows no limits below. What the
process holds already stays charged to the cgroup that it leaves: `hold` is told how much that is, and lowers the limit
by as much. The kernel takes back clean pages of files before it refuses memory, and ends a process that wants more than
it may have. A process that was killed leaves an empty cgroup behind, which the next start removes.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

PREFIX: Final = "p2ptrain-"
"""Before the process's number, in the name of its cgroup."""

PERIOD_US: Final = 100_000
"""Of a quota of processor time: the kernel's default."""

PROCESSES: Final = "cgroup.procs"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a cgroup may take; None: not bounded."""

    memory: int | None = None
    """Bytes."""
    cpu: float | None = None
    """Cores."""


@dataclass(frozen=True)
class Hierarchy:
    """A tree of cgroups: the folder of this process's own, and the names by which limits are set there."""

    home: Path
    version: int
    controllers: frozenset[str]

    def settings(self, limits: Limits) -> dict[str, tuple[tuple[str, str], ...]]:
        """Return the files and values that set each limit which this tree knows."""
        found: dict[str, tuple[tuple[str, str], ...]] = {}
        if limits.memory is not None and "memory" in self.controllers:
            name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
            found["memory"] = ((name, str(limits.memory)),)
        if limits.cpu is not None and "cpu" in self.controllers:
            quota = max(1000, round(limits.cpu * PERIOD_US))
            if self.version == 2:
                found["cpu"] = (("cpu.max", f"{quota} {PERIOD_US}"),)
            else:
                found["cpu"] = (("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota)))
        return found


@dataclass
class HeldProcess:
    """A process that cgroups hold to limits. `holds`: which of `memory` and `cpu` are held."""

    pid: int
    holds: frozenset[str] = frozenset()
    _groups: dict[Path, Path] = field(default_factory=dict)
    """The cgroups that were made, each with the one that the process came from."""

    def release(self) -> None:
        """Put the process back where it came from, and remove the cgroups."""
        for group, home in self._groups.items():
            with suppress(OSError):
                (home / PROCESSES).write_text(str(self.pid))
            with suppress(OSError):  # another process is still in it: the next start removes it
                group.rmdir()
        self._groups.clear()
        self.holds = frozenset()

    def memory_peak(self) -> int | None:
        """Return the most bytes that were charged to its cgroup; None where memory is not held, or not told."""
        for group in self._groups:
            for name in ("memory.peak", "memory.max_usage_in_bytes"):
                with suppress(OSError, ValueError):
                    return int((group / name).read_text())
        return None

    def add(self, group: Path, home: Path, kinds: frozenset[str]) -> None:
        """Note that the process is in `group` now."""
        self._groups[group] = home
        self.holds |= kinds


def hold(limits: Limits, hierarchies: list[Hierarchy], pid: int) -> HeldProcess:
    """Hold a process to limits as far as cgroups can be made; what is not held is missing from `holds`."""
    held = HeldProcess(pid)
    for tree in hierarchies:
        missing = Limits(
            memory=None if "memory" in held.holds else limits.memory, cpu=None if "cpu" in held.holds else limits.cpu
        )
        wanted = tree.settings(missing)
        for parent in (tree.home, tree.home.parent) if wanted else ():
            remove_stale(parent)
            group = parent / f"{PREFIX}{pid}"
            if kinds := _entered(group, wanted, pid):
                held.add(group, tree.home, kinds)
                break
    return held


def remove_stale(parent: Path) -> None:
    """Remove the cgroups in `parent` of processes that are gone."""
    for group in parent.glob(f"{PREFIX}*"):
        number = group.name.removeprefix(PREFIX)
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            with suppress(OSError):
                group.rmdir()


def own_hierarchies() -> list[Hierarchy]:
    """Return the trees of cgroups that this process is in; none where there are no cgroups."""
    try:
        return list(hierarchies_in(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()))
    except OSError:
        return []


def hierarchies_in(cgroups: str, mounts: str) -> Iterator[Hierarchy]:
    """Yield the trees in the texts of /proc/self/cgroup and /proc/self/mountinfo, those of version 1 first."""
    unified: list[Hierarchy] = []
    for line in cgroups.splitlines():
        _, names, own = line.split(":", 2)
        for kind, options, root, point in _mounts(mounts):
            if kind == "cgroup2" and not names:
                unified.append(Hierarchy(_place(point, root, own), 2, frozenset(("memory", "cpu"))))
            elif kind == "cgroup" and names and set(names.split(",")) <= options:
                yield Hierarchy(_place(point, root, own), 1, frozenset(names.split(",")))
    yield from unified


def _mounts(text: str) -> Iterator[tuple[str, set[str], str, Path]]:
    """Yield type, options, root and mount point of each mount of cgroups."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        place, filesystem = before.split(), after.split()
        if filesystem and filesystem[0].startswith("cgroup"):
            yield filesystem[0], set(filesystem[-1].split(",")), place[3], Path(place[4])


def _place(point: Path, root: str, own: str) -> Path:
    inside = own.removeprefix(root) if root != "/" else own
    return point / inside.lstrip("/")


def _entered(group: Path, wanted: Mapping[str, tuple[tuple[str, str], ...]], pid: int) -> frozenset[str]:
    """Make a cgroup and move the process there; return which limits it has. Leaves nothing where there are none."""
    try:
        group.mkdir(exist_ok=True)
    except OSError:
        return frozenset()
    kinds = frozenset(kind for kind, settings in wanted.items() if _set(group, settings))
    try:
        if kinds:
            (group / PROCESSES).write_text(str(pid))
            return kinds
    except OSError:
        pass
    with suppress(OSError):
        os.rmdir(group)
    return frozenset()


def _set(group: Path, settings: tuple[tuple[str, str], ...]) -> bool:
    try:
        for name, value in settings:
            if not (group / name).exists():  # the controller is not enabled here
                return False
            (group / name).write_text(value)
    except OSError:
        return False
    return True
