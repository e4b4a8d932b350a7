"""Signed statements: msgpack of [fields: bin, key: bin(32), signature: bin(64)], Ed25519 over a domain tag and fields.

Each kind has a tag: what was signed as one thing is never taken for another. Everything has exactly one encoding: bytes
that differ after packing again are refused, so that bytes can be compared and named by their digest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, Protocol, TypeVar

import msgpack

from gossip.core.digests import digest_of
from gossip.core.errors import LocalError, RemoteError
from gossip.core.identity import KEY_BYTES, SIGNATURE_BYTES, peer_id_of, verify, verify_key_of
from gossip.core.ids import Digest, PeerId
from gossip.core.wire import MAX_ARRAY, Fields, malformed, pack, unpack

NONCE_BYTES: Final = 16
_T = TypeVar("_T")


class SignedKind(StrEnum):
    """What a statement says; each has its own domain tag."""

    MANIFEST = "manifest"
    INVITE = "invite"
    REDEMPTION = "redemption"
    APPOINTMENT = "appointment"
    ROTATION = "rotation"
    REVOCATION = "revocation"
    VISIT = "visit"


class Signer(Protocol):
    """A key pair: a node's `Identity`, an `Authority`, an invite's secret."""

    @property
    def public_key(self) -> bytes:
        """The 32-byte Ed25519 public key."""

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature over `message`."""


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A statement whose signature is checked. `digest` names its signer and fields, but not the signature."""

    fields: Fields
    key: bytes
    digest: Digest
    raw: bytes


def domain(kind: SignedKind) -> bytes:
    """Return the bytes that are signed before the fields."""
    return f"p2ptrain-{kind.value}-1\x00".encode("ascii")


def sign(kind: SignedKind, fields: object, signer: Signer) -> bytes:
    """Return the signed statement's bytes."""
    packed = pack(fields)
    return pack((packed, signer.public_key, signer.sign(domain(kind) + packed)))


def open_signed(kind: SignedKind, raw: bytes, limit: int) -> Signed:
    """Check size, encoding and signature. Raises RemoteError(OVERSIZE | MALFORMED | FORGED)."""
    outer = unpack_exact(raw, limit)
    packed, key, signature = outer.binary(limit), outer.exactly(KEY_BYTES), outer.exactly(SIGNATURE_BYTES)
    outer.end()
    fields = unpack_exact(packed, limit)
    verify(key, domain(kind) + packed, signature)
    return Signed(fields=fields, key=key, digest=digest_of(key + packed), raw=raw)


def unpack_exact(data: bytes, limit: int, items: int = MAX_ARRAY) -> Fields:
    """Parse as `wire.unpack` does, but only the one encoding that `wire.pack` writes. Raises RemoteError."""
    fields = unpack(data, limit, items)
    try:
        same = pack(msgpack.unpackb(data)) == data
    except (ValueError, TypeError) as error:  # nested deeper than the packer goes
        raise malformed("not msgpack that we write") from error
    if not same:
        raise malformed("not in msgpack's shortest form")
    return fields


def ours(parse: Callable[[bytes], _T], raw: bytes) -> _T:
    """Parse what we made ourselves: what others would refuse is our caller's mistake. Raises LocalError."""
    try:
        return parse(raw)
    except RemoteError as error:
        raise LocalError(f"out of bounds: {error.detail or error}") from error


def keys_of(packed: bytes, most: int) -> tuple[bytes, ...]:
    """Return at most `most` public keys from a packed list, rising, none twice. Raises RemoteError(MALFORMED)."""
    keys = tuple(packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES))
    if len(packed) % KEY_BYTES or len(keys) > most or any(a >= b for a, b in pairwise(keys)):
        raise malformed("not a rising list of keys")
    return keys


def sorted_keys(peers: frozenset[PeerId]) -> tuple[bytes, ...]:
    """Return the keys of peer ids, sorted for `keys_of`. Raises RemoteError(MALFORMED)."""
    return tuple(sorted(verify_key_of(peer) for peer in peers))


def key_of(peer: PeerId) -> bytes:
    """Return the key of a peer that our caller names. Raises LocalError on a malformed peer id."""
    try:
        return verify_key_of(peer)
    except RemoteError as error:
        raise LocalError(f"{peer!r} is no peer: {error.detail}") from error


def peer_of(fields: Fields) -> PeerId:
    """Read a field that is a peer's public key."""
    return peer_id_of(fields.exactly(KEY_BYTES))
