"""A disk that fails at any system call, as an error or as a kill, and that may forget what was not synced.

Counted are the calls that change what is below a folder. `error`: one call raises OSError, the later ones work. `kill`:
it raises what no cleaning up survives, and so do all later ones: a process that was killed does nothing more.
"""

import builtins
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

How = Literal["error", "kill"]


class KilledError(BaseException):
    """As by kill -9, or by a power cut."""


@dataclass
class _Renamed:
    source: Path
    target: Path
    before: bytes | None
    """What the file `target` held, if there was one."""


@dataclass
class _Made:
    folder: Path


@dataclass
class Disk:
    """What was asked of it. `fails_at`: the number of the call that fails; None: none does."""

    root: Path
    fails_at: int | None = None
    how: How = "error"
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names of calls, and of what they were for."""
    _files: dict[int, Path] = field(default_factory=dict)
    """Written and not synced, by inode."""
    _entries: list[_Renamed | _Made] = field(default_factory=list)
    """Changes of folders that are not synced."""

    def note(self, call: str, what: str, halfway: Callable[[], object] = lambda: None) -> None:
        """Count a call, and fail if it is the one. `halfway`: what it has done when it fails."""
        number = len(self.calls)
        self.calls.append((call, what))
        if self.fails_at is None or number < self.fails_at:
            return
        if number == self.fails_at:
            halfway()
        if self.how == "kill":
            raise KilledError
        if number == self.fails_at:
            raise OSError(5, "Input/output error")

    def written(self, path: Path) -> None:
        """A file has bytes that are not synced."""
        self._files[path.stat().st_ino] = path

    def renamed(self, source: Path, target: Path) -> None:
        """Is about to be."""
        before = target.read_bytes() if target.is_file() else None
        self._entries.append(_Renamed(source, target, before))

    def made(self, folder: Path) -> None:
        """A folder was created."""
        self._entries.append(_Made(folder))

    def synced(self, descriptor: int) -> None:
        """A file or a folder was."""
        inode = os.fstat(descriptor).st_ino
        self._files.pop(inode, None)
        self._entries = [entry for entry in self._entries if _folder_of(entry).stat().st_ino != inode]

    def cut_power(self) -> None:
        """Nothing that was not synced is on the disk: renames are undone, bytes are gone."""
        for entry in reversed(self._entries):
            if isinstance(entry, _Made):
                shutil.rmtree(entry.folder, ignore_errors=True)
            elif entry.target.exists():
                entry.target.rename(entry.source)
                if entry.before is not None:
                    entry.target.write_bytes(entry.before)
        for path in self.root.rglob("*"):
            if path.is_file() and path.stat().st_ino in self._files:
                path.write_bytes(b"")


def _folder_of(entry: _Renamed | _Made) -> Path:
    return entry.folder.parent if isinstance(entry, _Made) else entry.target.parent


class _File:
    """A file being written, whose every write counts."""

    def __init__(self, file: Any, disk: Disk, path: Path) -> None:
        self._file, self._disk, self._path = file, disk, path

    def write(self, data: Any) -> int:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._disk.note("write", self._path.name, half)
        written: int = self._file.write(data)
        self._disk.written(self._path)
        return written

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def failing_disk(
    root: Path, *, fails_at: int | None = None, how: How = "error", writers: tuple[str, ...] = ()
) -> Iterator[Disk]:
    """Watch the calls below `root`, of which one may fail. `writers`: functions (value, path) that write a file without
    Python's help, as `module.name`."""
    disk = Disk(root, fails_at, how)
    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        for name, replacement in _calls(disk).items():
            patch.setattr(os, name, replacement)
        patch.setattr(io, "open", _opening(disk, io.open))
        patch.setattr(builtins, "open", io.open)
        for writer in writers:
            patch.setattr(writer, _writing(disk, writer))
        yield disk


def _calls(disk: Disk) -> dict[str, Callable[..., Any]]:
    real = {name: getattr(os, name) for name in ("open", "fdopen", "mkdir", "rename", "replace", "fsync")}
    paths: dict[int, Path] = {}

    def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if more.get("dir_fd") is None and _below(disk, path):
            disk.note("open", Path(path).name)
        descriptor: int = real["open"](path, flags, *rest, **more)
        if flags & os.O_CREAT and _below(disk, path):
            paths[descriptor] = Path(path)
            disk.written(Path(path))
        return descriptor

    def fdopen(descriptor: int, *rest: Any, **more: Any) -> Any:
        file = real["fdopen"](descriptor, *rest, **more)
        return _File(file, disk, paths[descriptor]) if descriptor in paths else file

    def mkdir(path: Any, *rest: Any, **more: Any) -> None:
        disk.note("mkdir", Path(path).name)
        real["mkdir"](path, *rest, **more)
        disk.made(Path(path))

    def moving(name: str) -> Callable[..., None]:
        def move(source: Any, target: Any, **more: Any) -> None:
            disk.note("rename", f"{Path(source).name} {Path(target).name}")
            disk.renamed(Path(source), Path(target))
            try:
                real[name](source, target, **more)
            except OSError:
                disk._entries.pop()
                raise

        return move

    def fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        disk.note("fsync", Path(f"/proc/self/fd/{number}").readlink().name)
        real["fsync"](descriptor)
        disk.synced(number)

    def removing(name: str) -> Callable[..., None]:
        remove = getattr(os, name)

        def gone(path: Any, **more: Any) -> None:
            disk.note(name, Path(path).name)
            remove(path, **more)

        return gone

    removals = {name: removing(name) for name in ("unlink", "remove", "rmdir")}
    moves = {name: moving(name) for name in ("rename", "replace")}
    return {"open": opened, "fdopen": fdopen, "mkdir": mkdir, "fsync": fsync, **moves, **removals}


def _opening(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+") or not _below(disk, file):
            return real(file, mode, *rest, **more)
        disk.note("open", Path(file).name)
        made = real(file, mode, *rest, **more)
        disk.written(Path(file))
        return _File(made, disk, Path(file))

    return opened


def _writing(disk: Disk, writer: str) -> Callable[..., Any]:
    module, _, name = writer.rpartition(".")
    real = getattr(__import__(module, fromlist=[name]), name)

    def write(value: Any, path: Path) -> None:
        def half() -> None:
            real(value, path)
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

        disk.note(name, path.name, half)
        real(value, path)
        disk.written(path)

    return write


def _below(disk: Disk, path: Any) -> bool:
    with suppress(TypeError):
        return Path(path).is_relative_to(disk.root)
    return False
