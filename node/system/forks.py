"""What a forked child must not hold: sockets and files of the node that runs in its parent.

DataLoader's workers are forked from the process that trains (Linux, CPython before 3.14). A child that keeps a
listening socket keeps its port taken after the parent's death, one that keeps a connection keeps it open towards the
peer, and one that keeps the folder's lock keeps the folder in use.
"""

import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_DESCRIPTORS: Final = Path("/proc/self/fd")


class ForkGuard:
    """From its making until `end`: every forked child gets /dev/null in place of the descriptors `own`, and, where a
    `folder` is given, of the TCP sockets that were opened since and of files below it. Where there is no /proc, nothing
    is forked by default, and nothing is done."""

    def __init__(self, folder: Path | None = None, *, own: Sequence[int] = ()) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._own = frozenset(own)
        self._before = _open_descriptors()
        _GUARDS.append(self)

    def end(self) -> None:
        """Guard no more."""
        if self in _GUARDS:
            _GUARDS.remove(self)

    def release(self) -> None:
        """In a child: let go of everything. The descriptors' numbers stay taken, for objects in the child's memory may
        still close them."""
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor, file in _open_descriptors().items():
            # A number that was taken before may have been closed since, and be a socket's of ours now.
            is_new = self._before.get(descriptor) != file
            if descriptor in self._own or (is_new and self._is_ours(descriptor)):
                with suppress(OSError):
                    os.dup2(null, descriptor, inheritable=False)
        os.close(null)

    def _is_ours(self, descriptor: int) -> bool:
        if self._folder is None:
            return False
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return _is_tcp(descriptor)
            return self._folder in (_DESCRIPTORS / str(descriptor)).readlink().parents
        except OSError:
            return False


_GUARDS: list[ForkGuard] = []


def _release_all() -> None:
    for guard in _GUARDS:
        guard.release()
    _GUARDS.clear()


def _open_descriptors() -> dict[int, tuple[int, int]]:
    """The open descriptors, with device and inode of what each is open on."""
    try:
        listed = sorted(int(each.name) for each in _DESCRIPTORS.iterdir())
    except OSError:
        return {}
    found = {}
    for descriptor in listed:
        with suppress(OSError):  # the one that the listing itself had
            about = os.fstat(descriptor)
            found[descriptor] = about.st_dev, about.st_ino
    return found


def _is_tcp(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as found:
        return found.family in (socket.AF_INET, socket.AF_INET6)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)
