"""A short secret sealed under a passphrase: argon2id derives the key, XSalsa20-Poly1305 (NaCl's secretbox) encrypts.

The header holds the cost of the passphrase, so that it can rise later and old files stay readable. Its numbers are
checked before a byte is allocated: a hostile file cannot use up memory or hours. `purpose`, inside the sealed part,
says what the secret is for, so that one kind of key is never taken for another.
"""

from dataclasses import dataclass
from typing import Final

from nacl.exceptions import CryptoError
from nacl.pwhash import argon2id
from nacl.secret import SecretBox

from gossip.core.errors import LocalError, RemoteError
from gossip.core.wire import Fields, pack, unpack

HEADER: Final = b"p2ptrain-sealed-1\n"
MAX_SECRET_BYTES: Final = 256
"""Seeds of 32 bytes, and room for a few together."""

MAX_SEALED_BYTES: Final = 512
"""The secret takes most; its purpose, salt, nonce, authenticator and the header's numbers take under 140 bytes."""

MAX_OPERATIONS: Final = 16
"""Passes over the memory: four times libsodium's SENSITIVE."""

MAX_MEMORY_BYTES: Final = 1024 * 1024 * 1024
"""libsodium's SENSITIVE. A file that asks for more is not ours."""

MAX_PASSPHRASE_BYTES: Final = 1024
MAX_PURPOSE_CHARS: Final = 32


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of each try at a passphrase: passes over the memory, and its bytes."""

    operations: int
    memory_bytes: int


MODERATE: Final = Cost(operations=argon2id.OPSLIMIT_MODERATE, memory_bytes=argon2id.MEMLIMIT_MODERATE)
"""libsodium's own middle setting: 3 passes over 256 MiB, about half a second of one core."""


def seal(secret: bytes, passphrase: bytes, *, purpose: str, salt: bytes, nonce: bytes, cost: Cost = MODERATE) -> bytes:
    """Return the file's bytes. `salt` (16 bytes) and `nonce` (24) are random and never used twice. Raises
    LocalError."""
    if not passphrase:
        raise LocalError("an empty passphrase protects nothing")
    if len(secret) > MAX_SECRET_BYTES or len(purpose) > MAX_PURPOSE_CHARS:
        raise LocalError("too much to seal")
    box = SecretBox(_key(passphrase, salt, cost))
    sealed = box.encrypt(pack((purpose, secret)), nonce).ciphertext
    return HEADER + pack((cost.operations, cost.memory_bytes, salt, nonce, sealed))


def unseal(data: bytes, passphrase: bytes, *, purpose: str) -> bytes:
    """Return the secret. Raises LocalError on damage, a cost beyond the bounds, a wrong passphrase or purpose."""
    try:
        cost, salt, nonce, sealed = _parse(data)
    except RemoteError as error:
        raise LocalError(f"not a sealed key, or damaged: {error.detail}") from error
    try:
        opened = SecretBox(_key(passphrase, salt, cost)).decrypt(sealed, nonce)
    except CryptoError as error:
        raise LocalError("the passphrase is wrong, or the file is damaged") from error
    return _secret_of(opened, purpose)


def is_sealed(data: bytes) -> bool:
    """Return whether a file's bytes begin like a sealed secret."""
    return data.startswith(HEADER)


def _parse(data: bytes) -> tuple[Cost, bytes, bytes, bytes]:
    fields = unpack(data[len(HEADER) :] if is_sealed(data) else b"", MAX_SEALED_BYTES)
    cost = Cost(operations=fields.integer(MAX_OPERATIONS), memory_bytes=fields.integer(MAX_MEMORY_BYTES))
    salt, nonce = fields.exactly(argon2id.SALTBYTES), fields.exactly(SecretBox.NONCE_SIZE)
    sealed = fields.binary(MAX_SEALED_BYTES)
    fields.end()
    return cost, salt, nonce, sealed


def _secret_of(opened: bytes, purpose: str) -> bytes:
    try:
        fields: Fields = unpack(opened, MAX_SEALED_BYTES)
        found, secret = fields.text(MAX_PURPOSE_CHARS), fields.binary(MAX_SECRET_BYTES)
        fields.end()
    except RemoteError as error:
        raise LocalError("the sealed file holds no key") from error
    if found != purpose:
        raise LocalError(f"the file holds a key for another purpose ({found}, not {purpose})")
    return secret


def _key(passphrase: bytes, salt: bytes, cost: Cost) -> bytes:
    if len(passphrase) > MAX_PASSPHRASE_BYTES:
        raise LocalError(f"a passphrase has at most {MAX_PASSPHRASE_BYTES} bytes")
    small = cost.operations < argon2id.OPSLIMIT_MIN or cost.memory_bytes < argon2id.MEMLIMIT_MIN
    if small or cost.operations > MAX_OPERATIONS or cost.memory_bytes > MAX_MEMORY_BYTES:
        raise LocalError("the key's cost is out of bounds")
    try:
        key: bytes = argon2id.kdf(
            SecretBox.KEY_SIZE, passphrase, salt, opslimit=cost.operations, memlimit=cost.memory_bytes
        )
    except (CryptoError, MemoryError, ValueError) as error:
        raise LocalError(f"cannot derive the key: {cost.memory_bytes} bytes of memory are needed") from error
    return key
