"""Strict msgpack: what both ends write, and the only way anything from a peer is decoded.

Sizes are checked before a byte is decoded, types exactly (a bool is no int here, maps and extensions do not exist),
and every failure is RemoteError(MALFORMED or OVERSIZE). `Fields` walks one array, so that a parser reads as the
format it accepts.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from gossip.core.digests import DIGEST_BYTES
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest
from gossip.core.limits import MAX_COUNTER

MAX_ARRAY: Final = 64
"""Items of an array, unless a format says otherwise. The decoder allocates what a header declares, at each of up to a
thousand levels of nesting, so a generous number would turn 8 KiB of headers into hundreds of megabytes."""


def pack(value: object) -> bytes:
    """Encode ints, strings, bytes, None, bools and nested sequences of them as msgpack."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def malformed(detail: str) -> RemoteError:
    """Return the refusal that every parser here raises."""
    return RemoteError(Reason.MALFORMED, detail)


def unpack(data: bytes | bytearray, limit: int, items: int = MAX_ARRAY) -> "Fields":
    """Parse one msgpack array of at most `limit` bytes, no array longer than `items`. Raises RemoteError."""
    if len(data) > limit:
        raise RemoteError(Reason.OVERSIZE, f"{len(data)} bytes where at most {limit} are allowed")
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=True, max_array_len=items, max_map_len=0, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise malformed("not msgpack") from error
    return Fields(value)


class Fields:
    """The items of an array, read in order; `end` refuses what is left over."""

    def __init__(self, value: Any) -> None:
        if type(value) is not list:
            raise malformed("an array is expected")
        self._items: Sequence[Any] = value
        self._next = 0

    def _take(self, kind: type) -> Any:
        if self._next >= len(self._items):
            raise malformed("a field is missing")
        item = self._items[self._next]
        self._next += 1
        if type(item) is not kind:
            raise malformed(f"field {self._next} is not of type {kind.__name__}")
        return item

    def integer(self, most: int = MAX_COUNTER) -> int:
        """Read an int in 0..most."""
        value: int = self._take(int)
        if not 0 <= value <= most:
            raise malformed(f"field {self._next} is out of range")
        return value

    def boolean(self) -> bool:
        """Read a bool."""
        value: bool = self._take(bool)
        return value

    def text(self, most: int) -> str:
        """Read printable ASCII text of at most `most` characters: it ends up in logs and metric labels."""
        value: str = self._take(str)
        if len(value) > most:
            raise RemoteError(Reason.OVERSIZE, f"field {self._next} is longer than {most} characters")
        if not (value.isascii() and (value.isprintable() or not value)):
            raise malformed(f"field {self._next} is not printable ASCII")
        return value

    def binary(self, most: int) -> bytes:
        """Read at most `most` bytes."""
        value: bytes = self._take(bytes)
        if len(value) > most:
            raise RemoteError(Reason.OVERSIZE, f"field {self._next} is longer than {most} bytes")
        return value

    def exactly(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        value: bytes = self._take(bytes)
        if len(value) != size:
            raise malformed(f"field {self._next} does not have {size} bytes")
        return value

    def digest(self) -> Digest:
        """Read a 32-byte digest."""
        return Digest(self.exactly(DIGEST_BYTES))

    def array(self, most: int) -> "Fields":
        """Read a nested array of at most `most` items."""
        items = self._take(list)
        if len(items) > most:
            raise RemoteError(Reason.OVERSIZE, f"field {self._next} has more than {most} items")
        return Fields(items)

    @property
    def left(self) -> int:
        """How many items have not been read."""
        return len(self._items) - self._next

    def end(self) -> None:
        """Refuse items that the format does not have."""
        if self.left:
            raise malformed(f"{self.left} fields too many")
