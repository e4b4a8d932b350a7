"""Protobuf, as far as the circuit relay and signed envelopes of libp2p need it: integers, and bytes with a length.

It is strict where libraries are lenient: a known field must have its type, and nothing may be cut short. Unknown fields
are skipped, as protobuf wants it. Every error is the sender's: RemoteError(MALFORMED).
"""

from typing import Final

from gossip.core.wire import malformed

MAX_VARINT_BYTES: Final = 10
"""64 bits, seven in each byte."""

_VARINT, _FIXED64, _DATA, _FIXED32 = 0, 1, 2, 5
_WORD: Final = 1 << 64


def varint(number: int) -> bytes:
    """Return a number as a varint: seven bits a byte, the least first; the highest bit says that more follow."""
    assert 0 <= number < _WORD
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and the position after it. Raises RemoteError."""
    number = 0
    for place, digit in enumerate(raw[at : at + MAX_VARINT_BYTES]):
        number |= (digit & 0x7F) << 7 * place
        if digit < 0x80:
            if number >= _WORD:
                break
            return number, at + place + 1
    raise malformed("a number without an end, or beyond 64 bits")


def number_field(field: int, number: int | None) -> bytes:
    """Encode one integer field; nothing for None."""
    return b"" if number is None else varint(field << 3 | _VARINT) + varint(number)


def data_field(field: int, data: bytes | None) -> bytes:
    """Encode one field of bytes; nothing for None."""
    return b"" if data is None else varint(field << 3 | _DATA) + varint(len(data)) + data


class ProtobufFields:
    """The fields of one message. Where a field that may occur once is repeated, the last counts. Raises RemoteError."""

    def __init__(self, raw: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        at = 0
        while at < len(raw):
            tag, at = read_varint(raw, at)
            value, at = _read(raw, at, tag & 7)
            self._values.setdefault(tag >> 3, []).append(value)

    def number(self, field: int) -> int | None:
        """Return an integer; None where there is none."""
        value = self._values.get(field, [None])[-1]
        if isinstance(value, bytes):
            raise malformed(f"field {field} is a number")
        return value

    def data(self, field: int) -> bytes | None:
        """Return bytes; None where there are none."""
        return next(reversed(self.every(field)), None)

    def every(self, field: int) -> list[bytes]:
        """Return all values of a repeated field."""
        values = self._values.get(field, [])
        found = [value for value in values if isinstance(value, bytes)]
        if len(found) < len(values):
            raise malformed(f"field {field} is bytes")
        return found

    def within(self, field: int) -> "ProtobufFields | None":
        """Return a nested message; None where there is none."""
        data = self.data(field)
        return None if data is None else ProtobufFields(data)


def _read(raw: bytes, at: int, kind: int) -> tuple[int | bytes, int]:
    if kind == _VARINT:
        return read_varint(raw, at)
    if kind == _DATA:
        size, at = read_varint(raw, at)
    elif kind in (_FIXED64, _FIXED32):
        size = 8 if kind == _FIXED64 else 4
    else:
        raise malformed(f"a field of type {kind}")
    if at + size > len(raw):
        raise malformed("a field that is cut short")
    return raw[at : at + size], at + size
