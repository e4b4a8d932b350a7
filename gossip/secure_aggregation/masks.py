"""Masks: pseudorandom integers that hide a vector, and vanish from the sum of a group's vectors.

A seed of 256 bits is a ChaCha20 key (RFC 8439, nonce of zeros: each seed makes one stream). Value v of the mask is the
four bytes at 4v of the key stream, little-endian. ChaCha20 counts blocks of 64 bytes, so a part of a mask is generated
without what is before it. Members i < j of the group's order derive one seed by X25519 and HKDF-SHA256, which names the
exchange and both of them; i subtracts that mask from its vector and j adds it (Bonawitz et al. 2017, section 4).

All is added in uint32, which wraps modulo 2^32 and so is right modulo every 2^m that is sent, and by BLOCK values at a
time: memory does not grow with the number of members or values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gossip.core.ids import Digest
from gossip.secure_aggregation.packing import Values, pack_values, packed_size, unpack_values

SEED_BYTES: Final = 32
"""A ChaCha20 key. Never fewer: a mask of a 32-bit seed is found by trying all."""

BLOCK: Final = 1 << 16
"""Values that are masked at a time: 256 KiB of each stream stay in a core's cache. A multiple of eight, and of the 16
values of a ChaCha20 block."""

_STREAM_VALUES: Final = 16
_ZEROS: Final = bytes(4 * BLOCK)


@dataclass(frozen=True)
class MaskTerm:
    """A mask that is added to a vector (`sign` 1) or subtracted from it (-1)."""

    seed: bytes = field(repr=False)
    sign: int


class MaskStream:
    """The mask of one seed from value `start` on, a multiple of 16; `draw` goes on where the last draw ended."""

    def __init__(self, seed: bytes, start: int = 0) -> None:
        assert len(seed) == SEED_BYTES
        assert start % _STREAM_VALUES == 0
        nonce = (start // _STREAM_VALUES).to_bytes(4, "little") + bytes(12)
        self._cipher = Cipher(algorithms.ChaCha20(seed, nonce), mode=None).encryptor()
        self._buffer = bytearray(4 * BLOCK)

    def draw(self, count: int) -> Values:
        """Return the next `count` values, at most BLOCK of them; valid until the next draw."""
        self._cipher.update_into(memoryview(_ZEROS)[: 4 * count], self._buffer)
        return np.frombuffer(self._buffer, "<u4", count)


def derive_key(shared: bytes, *, purpose: str, exchange: Digest, pair: tuple[int, int]) -> bytes:
    """Return 32 bytes that only these two members know, for this purpose in this exchange. `pair`: their places."""
    info = b"p2ptrain-secure-sum-v1\x00" + purpose.encode("ascii") + b"\x00" + exchange + bytes(pair)
    return HKDF(algorithm=SHA256(), length=SEED_BYTES, salt=None, info=info).derive(shared)


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of 32 private bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared_secret(private: bytes, public: bytes) -> bytes:
    """Return what X25519 makes of our private and another's public key. ValueError for a key of small order, with which
    the secret would be known to all."""
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def pair_term(private: bytes, public: bytes, *, exchange: Digest, me: int, other: int) -> MaskTerm:
    """Return the mask that the member in place `me` shares with that in place `other`, as it stands in our vector."""
    seed = derive_key(
        shared_secret(private, public), purpose="mask", exchange=exchange, pair=(min(me, other), max(me, other))
    )
    return MaskTerm(seed, 1 if other < me else -1)


class MaskSum:
    """The sum of several masks, from value `start` on, block by block."""

    def __init__(self, terms: Sequence[MaskTerm], start: int = 0) -> None:
        skipped = start % _STREAM_VALUES
        self._streams = [(MaskStream(term.seed, start - skipped), term.sign) for term in terms]
        for stream, _ in self._streams:
            stream.draw(skipped)

    def add_to(self, block: Values) -> None:
        """Add the next values to `block` in place, modulo 2^32; at most BLOCK of them."""
        for stream, sign in self._streams:
            if sign > 0:
                block += stream.draw(len(block))
            else:
                block -= stream.draw(len(block))


def masked_bytes(values: Values, terms: Sequence[MaskTerm], bits: int) -> bytes:
    """Return `values`, shape (d,), with all masks added, packed to `bits` each. `values` stays as it is."""
    packed, masks = bytearray(packed_size(len(values), bits)), MaskSum(terms)
    for at in range(0, len(values), BLOCK):
        block = values[at : at + BLOCK].copy()
        masks.add_to(block)
        begins = packed_size(at, bits)
        packed[begins : begins + packed_size(len(block), bits)] = pack_values(block, bits)
    return bytes(packed)


def unmasked_sum(
    vectors: Sequence[bytes | memoryview], terms: Sequence[MaskTerm], *, count: int, bits: int, start: int
) -> bytes:
    """Return the sum of packed vectors of `count` values each, with all masks added, packed again. `start`: the place
    of the first value in the whole vector."""
    packed, masks = bytearray(packed_size(count, bits)), MaskSum(terms, start)
    for at in range(0, count, BLOCK):
        width, begins = min(BLOCK, count - at), packed_size(at, bits)
        span = slice(begins, begins + packed_size(width, bits))
        block = np.zeros(width, np.uint32)
        for vector in vectors:
            block += unpack_values(memoryview(vector)[span], width, bits)
        masks.add_to(block)
        packed[span] = pack_values(block, bits)
    return bytes(packed)
