"""The files of a spool folder: sessions, segments, and the relay's sign of life. Blocking calls, for worker threads.

    DIR/relay               who serves the folder: JSON, written anew every `BEAT_S`
    DIR/PEER.NONCE/         a session: a connection of the node PEER with the relay; segments.py says what is in it

Nothing here locks, and nothing is ever written in place: a file is written under another name and renamed. Folders are
listed, and no name is asked for that was not listed: NFS remembers for a while that a file was not there. The folder
must be its owner's alone (0700): who can write to it is that user, and can end connections, and no more.
"""

import errno
import json
import os
import re
import secrets
import shutil
import socket
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gossip.core.errors import LocalError, RemoteError
from gossip.core.identity import verify_key_of
from gossip.core.ids import PeerId
from gossip.transport.base import TransportError
from gossip.transport.spool.segments import SEGMENT_BYTES, SessionOverError, SpoolAnswer, SpoolTurn, segment_name

RELAY_FILE: Final = "relay"
MAX_RELAY_BYTES: Final = 4096
FORMAT: Final = 1

BEAT_S: Final = 2.0
"""Seconds between two signs of life of a relay."""

DEAD_AFTER_S: Final = 5 * BEAT_S
"""Seconds without one after which another may take over: a disk that is busy for some seconds is no death."""

_SESSION: Final = re.compile(r"(\w{40,64})\.([0-9a-f]{16})", re.ASCII)
_PRIVATE: Final = 0o700
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_TEMPORARY: Final = ".new"
_MAX_PID: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SpoolRelay:
    """Who serves a spool folder. `beat`: a number that changes while it lives."""

    peer: PeerId
    host: str
    pid: int
    nonce: str
    beat: int

    def encode(self) -> bytes:
        """Return the bytes of its file."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode("ascii")

    @property
    def gone(self) -> bool:
        """Whether it was a process of this machine that has ended."""
        return self.host == socket.gethostname() and not _is_alive(self.pid)


def parse_relay(raw: bytes) -> SpoolRelay | None:
    """Return who a relay's file names; None for bytes that name nobody."""
    try:
        fields = json.loads(raw)
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            return None
        kinds = {"peer": str, "host": str, "pid": int, "nonce": str, "beat": int}
        if {name: type(value) for name, value in fields.items()} != kinds or not 0 < fields["pid"] <= _MAX_PID:
            return None
        verify_key_of(PeerId(fields["peer"]))
        return SpoolRelay(**fields)
    except (ValueError, RecursionError, RemoteError):
        return None


def session_peer(name: str) -> PeerId | None:
    """Return whose session a folder of this name is; None for any other name."""
    match = _SESSION.fullmatch(name)
    return None if match is None else PeerId(match[1])


class SpoolFolder:
    """One spool folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self, *, make: bool) -> None:
        """Check that the folder is ours alone; with `make`, make it where it is not there. Raises LocalError."""
        try:
            if make:
                self.path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            status = self.path.lstat()
        except OSError as error:
            raise LocalError(f"the spool folder {self.path} cannot be used: {error.strerror or error}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise LocalError(f"the spool folder {self.path} is no folder")
        if status.st_uid != os.geteuid():
            raise LocalError(f"the spool folder {self.path} is another user's: give one of your own")
        if status.st_mode & 0o077:
            raise LocalError(f"others may enter the spool folder {self.path}: chmod 700 {self.path}")

    def relay(self) -> SpoolRelay | None:
        """Return who serves the folder, as its file says; None where nobody does."""
        with suppress(OSError):
            if RELAY_FILE in _listed(self.path):
                return parse_relay(_read(self.path / RELAY_FILE, MAX_RELAY_BYTES))
        return None

    @property
    def gone(self) -> bool:
        """Whether somebody has removed the folder; not where its disk does not answer now."""
        try:
            return not stat.S_ISDIR(self.path.lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False

    def announce(self, relay: SpoolRelay) -> None:
        """Write the relay's file. Raises TransportError."""
        try:
            _put(self.path / RELAY_FILE, relay.encode())
        except OSError as error:
            raise TransportError(f"{self.path}: {error.strerror or error}") from error

    def withdraw(self) -> None:
        """Remove the relay's file."""
        with suppress(OSError):
            (self.path / RELAY_FILE).unlink()

    def sessions(self) -> list[str]:
        """Return the names of all sessions. Raises TransportError."""
        try:
            return sorted(name for name in _listed(self.path) if session_peer(name) is not None)
        except OSError as error:
            raise TransportError(f"{self.path}: {error.strerror or error}") from error

    def open(self, peer: PeerId) -> Path:
        """Make a session of a node. Raises TransportError."""
        path = self.path / f"{peer}.{secrets.token_hex(8)}"
        try:
            path.mkdir(mode=_PRIVATE)
        except OSError as error:
            raise _translated(error, self.path) from error
        return path

    def clean(self, peer: PeerId | None = None) -> None:
        """Remove what dead processes have left: the sessions of a node, or all."""
        for name in self.sessions():
            if peer is None or session_peer(name) == peer:
                discard(self.path / name)


def discard(session: Path) -> None:
    """Remove a session, as far as that can be done."""
    shutil.rmtree(session, ignore_errors=True)


def perform(session: Path, turn: SpoolTurn) -> SpoolAnswer:
    """Do what a turn says; as far as there is room on the disk. Raises TransportError where the session is over."""
    written = 0
    try:
        for name, data in turn.writes:
            _put(session / name, data)
            written += 1
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise _translated(error, session.parent) from error
    try:
        names = _listed(session)
        pieces = _taken(session, turn, names)
    except OSError as error:
        raise _translated(error, session.parent) from error
    return SpoolAnswer(written=written, names=names, pieces=tuple(pieces))


def _taken(session: Path, turn: SpoolTurn, names: frozenset[str]) -> list[bytes]:
    pieces: list[bytes] = []
    number, room = turn.first, turn.room
    while room > 0 and (name := segment_name(turn.incoming, number)) in names:
        path = session / name
        try:
            piece = _read(path, SEGMENT_BYTES + 1)
        except FileNotFoundError:  # listed from a cache, or not yet in one
            break
        with suppress(FileNotFoundError):  # a client of NFS asks twice where an answer was lost
            path.unlink()
        pieces.append(piece)
        number, room = number + 1, room - max(1, len(piece))
    return pieces


def _listed(folder: Path) -> frozenset[str]:
    return frozenset(path.name for path in folder.iterdir())


def _opened(path: str, flags: int) -> int:
    """Open a file, and nothing that would have us wait or leads elsewhere: a pipe that somebody put there would hold
    this thread."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)


def _read(path: Path, most: int) -> bytes:
    with open(path, "rb", opener=_opened) as file:
        return file.read(most) or b""  # a pipe without bytes has None


def _put(path: Path, data: bytes) -> None:
    """Write a file that appears whole. Closing it brings it to the server of an NFS; that is all that is needed, since
    nothing is to outlive a crash."""
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        with open(temporary, "wb", opener=_opened) as file:
            file.write(data)
        temporary.rename(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def _translated(error: OSError, folder: Path) -> TransportError:
    if error.errno in _NO_ROOM:
        return TransportError(f"the disk of the spool folder {folder} is full")
    if error.errno in (errno.ENOENT, errno.ESTALE):
        return SessionOverError(f"the session in {folder} is over")
    return TransportError(f"{folder}: {error.strerror or error}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
