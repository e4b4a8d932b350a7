"""Holds this process to a share of the machine by a cgroup of its own, version 1 or 2, where its user may make one.

The cgroup is made below the one that the process is in, or beside it, where version 2 allows no limits below and that
one has none itself. What the process holds already stays charged to the cgroup that it leaves. So a node enters before
it loads torch, and its limit is lower by what it held then. The kernel takes back clean pages of files before it
refuses memory, and ends a process that wants more than it may have. A process that was killed leaves an empty cgroup
behind, which the next start removes.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

PREFIX: Final = "p2ptrain-"
"""Before the process's number, in the name of its cgroup."""

PERIOD_US: Final = 100_000
"""Of a quota of processor time: the kernel's default."""

LEAST_QUOTA_US: Final = 1000
"""The least that the kernel takes."""

PROCESSES: Final = "cgroup.procs"

BOUNDS: Final = ("memory.max", "memory.high", "cpu.max")
"""Files of a cgroup of version 2 that say how memory and processor time are bounded."""

UNBOUNDED: Final = ("", "max")
"""What is first in them where it is not."""

KINDS: Final = ("memory", "cpu")

UNIFIED: Final = 2
"""The version with one tree for all controllers."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may take; None: not bounded."""

    memory: int | None = None
    """Bytes."""
    cpu: float | None = None
    """Cores."""


@dataclass(frozen=True)
class Hierarchy:
    """A tree of cgroups: the folder of this process's own, and what is bounded there."""

    home: Path
    version: int
    controllers: frozenset[str]

    def parents(self) -> tuple[Path, ...]:
        """Return where a cgroup may be made. Beside its own a process would be free of the bounds of that one, such as
        `MemoryMax=` of a service: so only where version 2 needs it, and where there are none."""
        bounded = any(_bounds(self.home / name) for name in BOUNDS)
        return (self.home,) if self.version != UNIFIED or bounded else (self.home, self.home.parent)

    def memory_bounds(self) -> Iterator[int]:
        """Yield the bytes that its own cgroup, and each one above, may hold."""
        name = "memory.max" if self.version == UNIFIED else "memory.limit_in_bytes"
        for folder in (self.home, *self.home.parents):
            with suppress(OSError, ValueError):  # "max", or no cgroup any more
                yield int((folder / name).read_text())

    def kinds(self, limits: Limits) -> frozenset[str]:
        """Return which of the limits this tree knows."""
        return frozenset(kind for kind in KINDS if getattr(limits, kind) is not None and kind in self.controllers)

    def settings(self, kind: str, limits: Limits) -> list[tuple[str, str]]:
        """Return the files and values that set a limit."""
        if kind == "memory":
            return [("memory.max" if self.version == UNIFIED else "memory.limit_in_bytes", str(limits.memory))]
        assert limits.cpu is not None, "it is wanted"
        quota = max(LEAST_QUOTA_US, round(limits.cpu * PERIOD_US))
        if self.version == UNIFIED:
            return [("cpu.max", f"{quota} {PERIOD_US}")]
        return [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]


@dataclass(frozen=True)
class _Group:
    """A cgroup that was made, and what is bounded there."""

    folder: Path
    tree: Hierarchy
    kinds: frozenset[str]


class HeldProcess:
    """A process in cgroups of its own. Limits hold once they are set."""

    def __init__(self, pid: int, outside: int = 0) -> None:
        """`outside`: bytes of its memory that stay charged elsewhere."""
        self.holds: frozenset[str] = frozenset()
        """Which of KINDS are held."""
        self._pid, self._outside = pid, outside
        self._groups: list[_Group] = []

    def enter(self, limits: Limits, trees: Iterable[Hierarchy]) -> None:
        """Make the cgroups for these limits and move the process there, as far as its user may. None is set yet."""
        entered: frozenset[str] = frozenset()
        for tree in trees:
            kinds = tree.kinds(limits) - entered
            for parent in tree.parents() if kinds else ():
                remove_stale(parent)
                group = _Group(parent / f"{PREFIX}{self._pid}", tree, kinds)
                if self._made(group, limits):
                    self._groups.append(group)
                    entered |= kinds
                    break

    def limit(self, limits: Limits) -> None:
        """Set the limits, of memory less what is charged elsewhere; `holds` says which the kernel takes."""
        if limits.memory is not None:
            limits = replace(limits, memory=max(1, limits.memory - self._outside))
        for group in self._groups:
            for kind in group.kinds & group.tree.kinds(limits):
                with suppress(OSError):
                    for name, value in group.tree.settings(kind, limits):
                        (group.folder / name).write_text(value)
                    self.holds |= {kind}

    def __enter__(self) -> "HeldProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the process back where it came from, and remove the cgroups."""
        for group in self._groups:
            with suppress(OSError):
                (group.tree.home / PROCESSES).write_text(str(self._pid))
            with suppress(OSError):  # another process is still in it: a later start removes it
                group.folder.rmdir()
        self._groups.clear()
        self.holds = frozenset()

    def memory_peak(self) -> int | None:
        """Return the most bytes of its memory so far, pages of files included; None where no cgroup tells it."""
        for group in self._groups:
            for name in ("memory.peak", "memory.max_usage_in_bytes"):
                with suppress(OSError, ValueError):
                    return self._outside + int((group.folder / name).read_text())
        return None

    def _made(self, group: _Group, limits: Limits) -> bool:
        """Make a cgroup and move the process there. Leaves nothing where that cannot be."""
        with suppress(OSError):  # of an earlier process of this number, with its limits
            group.folder.rmdir()
        try:
            group.folder.mkdir()
            files = [name for kind in group.kinds for name, _ in group.tree.settings(kind, limits)]
            if all((group.folder / name).exists() for name in files):  # else the controller is not enabled there
                (group.folder / PROCESSES).write_text(str(self._pid))
                return True
        except OSError:
            pass
        with suppress(OSError):  # that of a process of this number in another container has processes, and stays
            group.folder.rmdir()
        return False


def _bounds(file: Path) -> bool:
    try:
        return (file.read_text().split() or [""])[0] not in UNBOUNDED
    except OSError:
        return False


def remove_stale(parent: Path) -> None:
    """Remove the cgroups in `parent` of processes that are gone."""
    for group in parent.glob(f"{PREFIX}*"):
        number = group.name.removeprefix(PREFIX)
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            with suppress(OSError):
                group.rmdir()


def machine_memory(trees: Iterable[Hierarchy] | None = None) -> int:
    """Return the bytes of memory that this machine has for this process: no more than a container or a service lets it
    take. `trees`: default, those it is in."""
    bounds = [bound for tree in (own_hierarchies() if trees is None else trees) for bound in tree.memory_bounds()]
    return min([psutil.virtual_memory().total, *bounds])


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
                unified.append(Hierarchy(_place(point, root, own), UNIFIED, frozenset(KINDS)))
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
