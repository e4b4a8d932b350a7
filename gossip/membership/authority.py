"""Who may change a swarm: an Ed25519 key of its own, in a file under a passphrase, on an admin's machine only.

It is no node's key: nodes run unattended and may be stolen; an authority is needed only when somebody is invited.
"""

import secrets
from pathlib import Path
from typing import Final

from nacl.pwhash import argon2id
from nacl.secret import SecretBox

from gossip.core.errors import LocalError
from gossip.core.identity import KEY_BYTES, Identity
from gossip.core.keyfile import MAX_SEALED_BYTES, MODERATE, Cost, seal, unseal
from gossip.core.secret_file import read_private, write_private

PURPOSE: Final = "authority"
_WHAT: Final = "the authority key"


class Authority:
    """An admin's key pair."""

    def __init__(self, seed: bytes) -> None:
        self._key = Identity(seed)

    @classmethod
    def generate(cls) -> "Authority":
        """Return a fresh key from the system's randomness."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def load(cls, path: Path, passphrase: bytes) -> "Authority":
        """Return the key in `path`. Raises LocalError when there is no file, others may open it, or the passphrase is
        wrong. Takes half a second of a core."""
        data = read_private(path, MAX_SEALED_BYTES, _WHAT, refuse_shared=True)
        try:
            return cls(unseal(data, passphrase, purpose=PURPOSE))
        except LocalError as error:
            raise LocalError(f"{_WHAT} {path}: {error}") from error

    def save(self, path: Path, passphrase: bytes, *, cost: Cost = MODERATE, replace: bool = False) -> None:
        """Write the key, readable by its owner only. Raises LocalError, also when the file exists and must not be
        replaced: a lost authority is a lost swarm."""
        if path.exists() and not replace:
            raise LocalError(f"{path} exists; an authority key is not overwritten")
        salt, nonce = secrets.token_bytes(argon2id.SALTBYTES), secrets.token_bytes(SecretBox.NONCE_SIZE)
        sealed = seal(self._key.seed, passphrase, purpose=PURPOSE, salt=salt, nonce=nonce, cost=cost)
        write_private(path, sealed, _WHAT)

    @property
    def public_key(self) -> bytes:
        """The 32-byte public key, by which a manifest names this admin."""
        return self._key.public_key

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature over `message`."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Authority({self.public_key.hex()})"
