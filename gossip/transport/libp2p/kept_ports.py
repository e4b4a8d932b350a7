"""The ports on which a node listened last, where any would do: it listens there again, where nobody else does.

Members that were away remember each other by address. If each took another port at each start, two of them would not
find each other again without a third one that has stayed.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from gossip.core.atomic_file import write_atomic

MAX_PORTS_BYTES: Final = 4096
"""A file has a line of at most 46 bytes for each address that is listened on."""

_LINE: Final = re.compile(r"(\S{1,45}) ([1-9][0-9]{0,4})")
_MAX_PORT: Final = 65_535


class KeptPorts:
    """The port by host, in `file`, a line each; None: nothing is kept. A file that is damaged or cannot be read or
    written is as none: ports are a convenience."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._by_host = {} if file is None else _read(file)

    def of(self, host: str) -> int:
        """Return the port of a host; 0, for any free one, where none is kept."""
        return self._by_host.get(host, 0)

    def keep(self, host: str, port: int) -> None:
        """Note on which port a host is listened on."""
        if self._file is None or self._by_host.get(host) == port:
            return
        self._by_host[host] = port
        lines = "".join(f"{each} {number}\n" for each, number in sorted(self._by_host.items()))
        with suppress(OSError):
            write_atomic(self._file, lines.encode("ascii"))


def _read(file: Path) -> dict[str, int]:
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_PORTS_BYTES).decode("ascii", "replace")
    except OSError:
        return {}
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return {match[1]: int(match[2]) for match in found if match is not None and int(match[2]) <= _MAX_PORT}
