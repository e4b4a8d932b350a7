"""The inbox: a folder in which an admin's command leaves what it has signed, for the node on this machine."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import trio

from gossip.core.errors import LocalError
from gossip.core.membership_limits import MAX_LINE_BYTES
from gossip.core.secret_file import UnreadableError, read_private
from gossip.membership.membership_files import SUFFIX, MembershipFiles

INBOX_LOOK_S: Final = 0.5
"""Seconds between two looks: an admin who revokes somebody should not have to wait. A look at an empty folder takes 20
us."""

MAX_INBOX_FILES: Final = 64
"""Files processed in one look."""

MAX_INBOX_BYTES: Final = MAX_LINE_BYTES
"""Bytes of one file: four manifests of the largest size, as an invite holds them; an item has 1.5 KiB."""


async def watch_inbox(
    files: MembershipFiles, submit: Callable[[Iterable[bytes]], None], warn: Callable[[str], None]
) -> None:
    """Run until cancelled. Each file is processed, or reported as bad; in either case it is removed once the disk has
    what the node knows: where it is full, a revocation would be forgotten with the process. One that cannot be removed
    (another user's folder) is not processed again: it would be told and reported at every look. One that cannot be read
    (root has written it) stays, is reported once, and is processed when it can be."""
    done: set[Path] = set()
    stuck: set[Path] = set()
    unread: set[Path] = set()
    while True:
        waiting = list(_waiting(files.inbox))
        done.intersection_update(waiting)
        stuck.intersection_update(waiting)
        unread.intersection_update(waiting)
        due = sorted((each for each in waiting if each not in stuck | done), key=lambda each: each in unread)
        for path in islice(due, MAX_INBOX_FILES):
            try:
                submit((_read(path),))
            except UnreadableError as error:
                if path not in unread:
                    unread.add(path)
                    warn(f"{error}; it waits in the inbox until the user of this node may read it (chown)")
                continue
            except LocalError as error:
                warn(f"{path.name} of the inbox was not taken up: {error}")
            done.add(path)
        for path in () if files.behind else sorted(done - stuck):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                stuck.add(path)
                warn(f"{path} cannot be removed ({error.strerror}): it is passed over until the next start")
        await trio.sleep(INBOX_LOOK_S)


def _waiting(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(each for each in folder.iterdir() if each.suffix == SUFFIX)


def _read(path: Path) -> bytes:
    data = read_private(path, MAX_INBOX_BYTES, "the item", refuse_shared=False)
    if len(data) > MAX_INBOX_BYTES:
        raise LocalError(f"it has more than {MAX_INBOX_BYTES} bytes")
    return data
