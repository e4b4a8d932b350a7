"""Shares of a member's two secrets: any `threshold` of them give a secret back, and fewer say nothing of it.

A secret has 32 bytes: two of Shamir's secrets over GF(2^128), as pycryptodome has them. The share of the member in
place k is the polynomial's value at k + 1. Each share is sealed for its holder (ChaCha20-Poly1305, a key of its own
a share, derived from both members' X25519 keys). The sealed shares of all holders are one signed statement, so that
a holder gives a share to others by telling its key: they open the same sealed bytes, and neither end can say
something else later.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from gossip.core.digests import digest_of
from gossip.core.ids import Digest
from gossip.secure_aggregation.masks import SEED_BYTES, derive_key

HALF_BYTES: Final = 16
"""A secret of pycryptodome's Shamir."""

TAG_BYTES: Final = 16
SEALED_BYTES: Final = SEED_BYTES + TAG_BYTES
"""A share, sealed."""

_NONCE: Final = bytes(12)
"""Each key seals one share."""


class Secret(IntEnum):
    """Which of a dealer's secrets: the seed of its own mask, or the private key of its masks with others. Never are
    both opened of one dealer."""

    SEED = 0
    KEY = 1


def commitment(secret: bytes) -> Digest:
    """Return what a dealer says of a secret before it deals it."""
    return digest_of(b"p2ptrain-secure-seed-v1\x00" + secret)


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Return a share of 32 bytes for each of the places 0 to holders - 1. Drawn from the system's randomness."""
    halves = [Shamir.split(threshold, holders, secret[at : at + HALF_BYTES]) for at in (0, HALF_BYTES)]
    return [first + second for (_, first), (_, second) in zip(*halves, strict=True)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of which these are as many shares as its threshold, by the holder's place."""
    halves = [
        Shamir.combine([(place + 1, share[at : at + HALF_BYTES]) for place, share in shares.items()])
        for at in (0, HALF_BYTES)
    ]
    return bytes(halves[0] + halves[1])


def share_key(shared: bytes, secret: Secret, *, exchange: Digest, dealer: int, holder: int) -> bytes:
    """Return the key that seals a dealer's share for a holder. `shared`: what X25519 makes of their channel keys."""
    return derive_key(shared, purpose=f"share {secret.value}", exchange=exchange, pair=(dealer, holder))


def seal_share(share: bytes, key: bytes, *, exchange: Digest, dealer: int, holder: int) -> bytes:
    """Return a share sealed under a key that seals nothing else."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, share, exchange + bytes((dealer, holder)))


def open_share(sealed: bytes, key: bytes, *, exchange: Digest, dealer: int, holder: int) -> bytes | None:
    """Return the share of 32 bytes; None where the key is not the one that sealed it."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, exchange + bytes((dealer, holder)))
    except InvalidTag:
        return None
