"""A corpus is one flat array of bytes, whatever the user pointed at; all but a small file are memory-mapped.

A small file of the user's is read, and a large one mapped as it is. A folder's files, and those of Python's own
standard library (the default: text that every machine has, with no download), are joined once into a flat file under
the user's cache folder, under a name that changes with their list, sizes and times. Building writes a temporary name
and renames it, so that nodes that start together may all build it and none sees half a file. Where the cache cannot be
written, a nameless temporary file does.
"""

import hashlib
import os
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from p2ptrain.tasks.base import TaskError

Corpus = npt.NDArray[np.uint8]
"""The bytes, (n,), read-only; mapped from a file where they are many."""

READ_WHOLE = 16 << 20
"""Largest file of the user's that is read and not mapped: one that is emptied or cut while it is mapped ends the
process by SIGBUS, without a word. A node's memory does not miss so many bytes. In our cache nobody writes."""

CACHED_CORPORA = 8
"""Joined files kept in the cache, the least recently built dropped first: one a data set that a person works with."""

NOT_TEXT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "__pycache__"})
"""Folders of the standard library that are left out: others' packages, test data, and tables of hex digits."""

GIVE_DATA = "give a file or a folder with --data"


def open_corpus(data: str | Path | None) -> Corpus:
    """Return the bytes of a file, of a folder's files in order, or (None) of Python's own library. TaskError when
    none."""
    if data is None:
        return _open_joined(_stdlib_files(), _python_name())
    path = Path(data).expanduser()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise TaskError(f"data {str(path)!r} cannot be read: {error.strerror}; {GIVE_DATA} that exists") from error
    if stat.S_ISDIR(mode):
        return _open_joined(_folder_files(path), "folder")
    if not stat.S_ISREG(mode):
        raise TaskError(f"data {str(path)!r} is neither a file nor a folder; {GIVE_DATA}")
    return _open_file(path)


def open_domains(data: str | Path | None) -> tuple[Corpus, list[tuple[str, int]]]:
    """Return the bytes of a folder's files in order, and its immediate subfolders in it, each with its bytes. TaskError
    where it has no subfolders, or files beside them."""
    path = Path(data or "").expanduser()
    if data is None or not path.is_dir():
        raise TaskError("partition 'domain' needs a folder with a subfolder a domain; give one with --data")
    sizes: dict[str, int] = {}
    for source in _folder_files(path):
        domain, *below = source.path.relative_to(path).parts
        if not below:
            raise TaskError(f"data folder {str(path)!r} has the file {domain!r} beside its domains: move it into one")
        sizes[domain] = sizes.get(domain, 0) + source.size
    return open_corpus(path), list(sizes.items())


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file that goes into a joined corpus."""

    path: Path
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "Source":
        """Return what a look at the file tells. OSError when it cannot be had."""
        status = path.stat()
        return cls(path=path, size=status.st_size, changed_ns=status.st_mtime_ns)


def cache_folder() -> Path:
    """Return where joined corpora are kept: `$XDG_CACHE_HOME/p2ptrain`, or `~/.cache/p2ptrain`. A user without a home,
    as a container may have, gets a folder that cannot be made, so that nothing is kept, as in a home that is read-only.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "p2ptrain"
    except RuntimeError:
        return Path(os.devnull) / "p2ptrain"


def _python_name() -> str:
    return f"python-{'.'.join(map(str, sys.version_info[:3]))}"


def _stdlib_files() -> list[Source]:
    root = Path(sysconfig.get_paths()["stdlib"])
    # `_sysconfigdata*` is about the machine that Python was built on, and would differ between two of them.
    files = [path for path in _walk(root, NOT_TEXT) if path.suffix == ".py" and "_sysconfigdata" not in path.name]
    if not files:
        raise TaskError(f"this Python has no library text under {root}; {GIVE_DATA}")
    return [Source.of(path) for path in files]


def _folder_files(root: Path) -> list[Source]:
    try:
        files = [Source.of(path) for path in _walk(root, frozenset()) if path.is_file()]
    except OSError as error:
        raise TaskError(f"data folder {str(root)!r} cannot be read: {error}") from error
    if not any(source.size for source in files):
        raise TaskError(f"data folder {str(root)!r} holds no bytes; {GIVE_DATA} with some")
    return files


def _walk(root: Path, left_out: frozenset[str]) -> Iterator[Path]:
    """Files below `root` in the order of their names, hidden ones and links to folders aside."""
    for folder, folders, files in os.walk(root, onerror=_raise):
        folders[:] = sorted(name for name in folders if name not in left_out and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _raise(error: OSError) -> None:
    raise error


def _open_joined(sources: Sequence[Source], kind: str) -> Corpus:
    path = cache_folder() / f"{kind}-{_key(sources)}.bin"
    size = sum(source.size for source in sources)
    try:
        if not (path.is_file() and path.stat().st_size == size):
            _build(path, sources)
        return _map(path)
    except OSError:
        return _open_temporary(sources)


def _key(sources: Sequence[Source]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for source in sources:
        digest.update(f"{source.path}\0{source.size}\0{source.changed_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _build(path: Path, sources: Sequence[Source]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as joined:
            _join(joined, sources)
            joined.flush()
            os.fsync(joined.fileno())  # or a power cut leaves a file of the right length that holds zeros
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _drop_oldest(path.parent)


def _join(joined: BinaryIO, sources: Sequence[Source]) -> None:
    for source in sources:
        try:
            file = source.path.open("rb")
        except OSError as error:
            raise TaskError(f"data file {str(source.path)!r} cannot be read: {error.strerror}") from error
        with file:
            copyfileobj(file, joined)


def _drop_oldest(folder: Path) -> None:
    built = sorted(folder.glob("*.bin"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in built[CACHED_CORPORA:]:
        with suppress(OSError):  # another node dropped it first, or a system that keeps mapped files
            path.unlink()


def _open_temporary(sources: Sequence[Source]) -> Corpus:
    try:
        with tempfile.TemporaryFile() as joined:
            _join(cast(BinaryIO, joined), sources)
            joined.flush()
            return np.memmap(joined, dtype=np.uint8, mode="r")
    except OSError as error:
        raise TaskError(f"the data cannot be joined into one file ({error}); free some disk space") from error


def _open_file(path: Path) -> Corpus:
    try:
        if 0 < path.stat().st_size <= READ_WHOLE and (found := path.read_bytes()):
            return np.frombuffer(found, dtype=np.uint8)
        return _map(path)
    except PermissionError as error:
        raise TaskError(f"data {str(path)!r} may not be read by this user; change its permissions") from error


def _map(path: Path) -> Corpus:
    try:
        return np.memmap(path, dtype=np.uint8, mode="r")
    except ValueError as error:  # an empty file cannot be mapped
        raise TaskError(f"data {str(path)!r} is empty; {GIVE_DATA} with some bytes") from error
