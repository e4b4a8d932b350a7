"""The folder in which an admin's command on this machine leaves what it has signed, for the node that runs here."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import trio

from gossip.core.errors import LocalError
from gossip.core.membership_limits import MAX_LINE_BYTES
from gossip.core.secret_file import read_private
from gossip.membership.membership_files import SUFFIX, MembershipFiles

INBOX_LOOK_S: Final = 0.5
"""Between two looks: who revokes somebody is not to wait for it. A look at an empty folder takes 20 us."""

MAX_INBOX_FILES: Final = 64
"""Taken up in one look."""

MAX_INBOX_BYTES: Final = MAX_LINE_BYTES
"""Of one file: four manifests of the largest kind, as an invite holds them; an item has 1.5 KiB."""


async def watch_inbox(
    files: MembershipFiles, submit: Callable[[Iterable[bytes]], None], warn: Callable[[str], None]
) -> None:
    """Until cancelled. A file is taken up or complained of, and gone then in either case."""
    while True:
        for path in islice(_waiting(files.inbox), MAX_INBOX_FILES):
            try:
                submit((_read(path),))
            except LocalError as error:
                warn(f"{path.name} of the inbox was not taken up: {error}")
            with suppress(OSError):
                path.unlink()
        await trio.sleep(INBOX_LOOK_S)


def _waiting(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(each for each in folder.iterdir() if each.suffix == SUFFIX)


def _read(path: Path) -> bytes:
    data = read_private(path, MAX_INBOX_BYTES, "the item", refuse_shared=False)
    if len(data) > MAX_INBOX_BYTES:
        raise LocalError(f"it has more than {MAX_INBOX_BYTES} bytes")
    return data
