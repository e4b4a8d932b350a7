"""The opened sum of one secure group, and its bytes, which all members who have it publish alike.

    survivors   8 bytes: whose values are in the sum, a bit each in the order of the group, little-endian
    words       width bits a value, the highest first, filled up with zeros to a whole byte

It has nothing in it that differs from member to member, so that equal sums have equal digests: members certify a sum by
publishing it, each under its own signature.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from p2ptrain.compress.base import PayloadError
from p2ptrain.sync.fixed_point import LARGEST_WIDTH, Words_d, width_of

SURVIVOR_BYTES: Final = 8
"""A bit a member: as many as the network's largest group has."""

AT_ONCE: Final = 1 << 17
"""Values packed at a time, a multiple of 8: 4 MB of single bits."""


@dataclass(frozen=True, kw_only=True)
class GroupSum:
    """What was opened of a group: the sum, modulo 2^width, of its survivors' values."""

    members: Sequence[str]
    """All of the group, in its order: their number fixes the width."""
    survivors: frozenset[str]
    """Whose values are in it."""
    words_v: Words_d
    """The sum (values,), with anything where it is missing."""
    missing: tuple[slice, ...] = ()
    """The values that did not come."""


def size_of(values: int, bits: int, members: int) -> int:
    """Return the bytes of the sum of so many values of `bits` bits in a group of so many members."""
    return SURVIVOR_BYTES + -(-values * width_of(bits, members) // 8)


def to_bytes(total: GroupSum, bits: int) -> bytes:
    """Return a whole sum of values of `bits` bits as bytes. ValueError where some of it is missing."""
    if total.missing:
        raise ValueError("a sum of which some is missing is published by nobody")
    survivors = sum(1 << place for place, name in enumerate(total.members) if name in total.survivors)
    width = width_of(bits, len(total.members))
    return survivors.to_bytes(SURVIVOR_BYTES, "little") + b"".join(_packed(total.words_v, width))


def from_bytes(payload: bytes | memoryview, members: Sequence[str], values: int, bits: int) -> GroupSum:
    """Return the sum that these bytes are. Raises PayloadError for a wrong length, and for survivors that cannot be."""
    if len(payload) != size_of(values, bits, len(members)):
        raise PayloadError("wrong_shape", f"{len(payload)} bytes where {size_of(values, bits, len(members))} belong")
    survivors = int.from_bytes(payload[:SURVIVOR_BYTES], "little")
    if not 0 < survivors < 1 << len(members):
        raise PayloadError("malformed", "survivors that are none of the group, or none at all")
    width = width_of(bits, len(members))
    return GroupSum(
        members=members,
        survivors=frozenset(name for place, name in enumerate(members) if survivors >> place & 1),
        words_v=_unpacked(memoryview(payload)[SURVIVOR_BYTES:], values, width),
    )


def _packed(words_v: Words_d, width: int) -> Iterator[bytes]:
    for start in range(0, words_v.size, AT_ONCE):
        words_c = words_v[start : start + AT_ONCE].astype(">u4")
        bits_cb = np.unpackbits(words_c.view(np.uint8)).reshape(-1, LARGEST_WIDTH)[:, LARGEST_WIDTH - width :]
        yield np.packbits(bits_cb).tobytes()


def _unpacked(packed: memoryview, values: int, width: int) -> Words_d:
    words_v = np.empty(values, np.uint32)
    for start in range(0, values, AT_ONCE):
        count = min(AT_ONCE, values - start)
        raw = np.frombuffer(packed, np.uint8, -(-count * width // 8), start * width // 8)
        bits_cb = np.zeros((count, LARGEST_WIDTH), np.uint8)
        bits_cb[:, LARGEST_WIDTH - width :] = np.unpackbits(raw, count=count * width).reshape(count, width)
        words_v[start : start + count] = np.packbits(bits_cb).view(">u4")
    return words_v
