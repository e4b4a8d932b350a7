"""The folder that a run leaves: `<run-dir>/<node>/`, made, locked and named here and nowhere else.

A node holds an exclusive flock on `lock` in its folder for as long as it lives. The kernel lets go of it when the
process ends, however it ends, so a folder is never left locked by a crash. The pid in the file is for people, and the
file's time is the node's heartbeat (events/liveness.py).
"""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from gossip.core import atomic_file
from node.system.errors import RunError, UsageError, cannot_write

DEFAULT_ROOT = Path("runs")
LOCK = "lock"
IDENTITY = "identity.key"
EVENTS = "events.jsonl"
CROSSINGS = "crossings.jsonl"
"""What has passed between this node's region and others (events/crossing_log.py)."""
LOG = "node.log"
"""What libraries log, and tracebacks."""
SUMMARY = "summary.json"
CONFIG = "config.toml"
CHECKPOINTS = "checkpoint"
"""As `p2ptrain/saved/files.py` has it."""
EPOCH = "epoch"
"""The chain epoch last used, which must never be used again."""
ADDRESSES = "addresses.json"
"""Peers that the node has reached."""
PORTS = "ports"
"""Where the node listened last, where any free port would do (gossip/transport/libp2p/kept_ports.py)."""
REGION = "region.json"
"""The region that was chosen at the first start, and by what (node.region = "auto")."""
ENERGY = "energy-today.json"
"""What training took today, for a cap on it (participation/daily_energy.py)."""
PRIVACY = "privacy.jsonl"
"""What the node's data have told (privacy/ledger.py)."""
VISITORS_PRIVACY = "visitors.jsonl"
"""How often each visitor was counted, where noise hides what they leave (visits/visitor_ledger.py)."""
SUMS_BEGUN = "secure-sums"
"""Which secure sums this node has begun (gossip/core/said_once.py)."""
REGIONAL_STATED = "regional-models"
"""After which rounds this node has stated its region's model (gossip/core/said_once.py)."""
STATISTICS = "class-statistics"
"""What the node states of its data for newcomers, where it is noised (training/warming_up.py)."""
STDERR = "stderr.log"
PEERS = "peers.txt"
TARGETS = "targets.json"
"""The nodes' metrics, as Prometheus' file service discovery reads them."""

LOCK_TRIES = 5
LOCK_AGAIN_S = 0.02
"""A process that checks whether a folder is in use holds its lock for microseconds, too. So the lock is tried
again, and no start fails because of a check."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A node's name is a folder's name and a label: 64 characters are plenty, and none of them may leave the run folder."""


def keep_settings(node_dir: Path, toml: str) -> None:
    """Write the settings of this start, for the next one and for who looks. Raises OSError."""
    write_atomic(node_dir / CONFIG, toml.encode())


class KeptSettings:
    """The settings of a start, which the folder keeps for the next one."""

    def __init__(self, node_dir: Path, toml: str) -> None:
        self._file = node_dir / CONFIG
        self._keep = partial(keep_settings, node_dir, toml)
        self._before = self._file.read_bytes() if self._file.is_file() else None
        self._fit = False

    def keep(self) -> None:
        """Write them. Raises OSError."""
        self._keep()

    def fit(self) -> None:
        """Write them, and note that the node runs with them. Raises OSError."""
        self._fit = True
        self.keep()

    def refused(self) -> None:
        """Put back what was there, unless the node ran with them: else a mistake would be the next start's as well."""
        if self._fit:
            return
        if self._before is None:
            self._file.unlink(missing_ok=True)
        else:
            write_atomic(self._file, self._before)


def fresh_run_dir(now: datetime) -> Path:
    """Return a new run folder's path: sorted by time, and random so that two of one second differ."""
    return DEFAULT_ROOT / f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def make_dir(path: Path) -> Path:
    """Create the folder with its parents. UsageError where a file, or a link to nothing, is in the way; RunError when
    it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        in_the_way = next(
            each for each in (*reversed(path.parents), path) if os.path.lexists(each) and not each.is_dir()
        )
        if not in_the_way.exists():
            lost = f"{in_the_way} is a link to {in_the_way.readlink()}, which is not there"
            raise UsageError(lost, "mount or make that folder, or give another --run-dir") from None
        raise UsageError(f"{in_the_way} is a file, not a folder", "give another --run-dir") from None
    except OSError as error:
        raise RunError(
            f"cannot create the folder {path}: {error.strerror}", "give another one by --run-dir or --out"
        ) from error
    return path


def make_node_dir(run_dir: Path, name: str) -> Path:
    """Create `<run_dir>/<name>` and return it. UsageError when the name cannot be a folder's."""
    return make_dir(node_dir(run_dir, name))


def node_dir(run_dir: Path, name: str) -> Path:
    """Return the path of a node's folder, there or not. UsageError when the name cannot be a folder's."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"node name {name!r} is not usable", "letters, digits, dots and dashes, 64 at most")
    return run_dir / name


def check_may_save(node_dir: Path) -> None:
    """Raise RunError where no checkpoint can be written in a node's folder, before it trains for nothing: an earlier
    start by another user made the folder of the checkpoints."""
    folder = node_dir / CHECKPOINTS
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(
            f"cannot write in {folder}, where the checkpoints go",
            f"where another user made it, as sudo does: sudo chown -R USER {node_dir}; or give another --run-dir",
        )


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Hold the folder for this process alone. RunError when another one holds it."""
    descriptor = _held(folder)
    try:
        yield folder
    finally:
        os.close(descriptor)  # and with it the lock


@contextmanager
def locked_meanwhile(folder: Path) -> Iterator[Path]:
    """Hold the folder as `locked` does, and leave no lock file in one that had none: a key's folder need be no
    node's."""
    had = (folder / LOCK).exists()
    with locked(folder):
        try:
            yield folder
        finally:
            if not had:
                (folder / LOCK).unlink(missing_ok=True)


def is_held(folder: Path) -> bool:
    """Return whether a process holds the folder. Raises OSError where there is no lock."""
    descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)  # and with it the lock
    return False


def write_atomic(path: Path, data: bytes, otherwise: str = "or give another --run-dir") -> None:
    """Replace a file of the run folder whole or not at all (`gossip/core/atomic_file.py`). RunError when the disk does
    not take it, with what to do `otherwise`."""
    try:
        atomic_file.write_atomic(path, data)
    except (FileExistsError, IsADirectoryError) as error:  # by --out
        raise RunError(f"cannot write {path}: {error.strerror}", "give the name of a file") from error
    except OSError as error:
        raise cannot_write(path, error, otherwise) from error


def node_dirs(path: Path) -> list[Path]:
    """Return the nodes' folders under a run folder, or the folder itself when it is a node's. UsageError when
    neither."""
    if path.is_file():
        raise UsageError(f"{path} is a file, not a run folder", "give the folder that `p2ptrain up` or `node` named")
    if not path.is_dir():
        raise UsageError(f"there is no run folder {path}", "give the folder that `p2ptrain up` or `node` named")
    if (path / EVENTS).is_file():
        return [path]
    found = sorted((entry.parent for entry in path.glob(f"*/{EVENTS}")), key=natural)
    if not found:
        raise UsageError(f"{path} is not a run folder: no {EVENTS} in it or one level below", "look under runs/")
    return found


def natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key of folders by name: node-10 after node-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _held(folder: Path) -> int:
    """Return a descriptor of the folder's lock file, which this process alone holds."""
    for _ in range(LOCK_TRIES):
        descriptor = _open_lock(folder)
        try:
            _take(descriptor, folder)
            if (folder / LOCK).exists() and os.path.samestat(os.fstat(descriptor), (folder / LOCK).stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder removed it since it was opened (locked_meanwhile)
    raise RunError(f"the folder {folder} is in use by others", "try again")


def _open_lock(folder: Path) -> int:
    try:
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunError(
            f"cannot write in {folder}: {error.strerror}", "give another folder by --run-dir or --out"
        ) from error


def no_locks(path: Path, error: OSError) -> RunError:
    """Return what to say where a file system takes no lock on a file or folder."""
    return RunError(
        f"{path} cannot be locked: {error.strerror}", "put it on a file system that has locks: a disk of this machine"
    )


def _take(descriptor: int, folder: Path) -> None:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(LOCK_AGAIN_S)
        except OSError as error:  # ENOLCK of a network's file system, mostly
            raise no_locks(folder, error) from error
    else:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        if holder == str(os.getpid()):  # a notebook's cell that is run again
            hint = "leave the swarm that was joined with it first (swarm.leave()), or give another run_dir"
            raise RunError(f"the folder {folder} is in use by this very process", hint)
        hint = "wait for it to end, or give another --run-dir or --name"
        raise RunError(f"the folder {folder} is in use by process {holder}", hint)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
