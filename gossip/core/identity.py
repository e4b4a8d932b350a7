"""Who a node is: one Ed25519 key, which is its libp2p peer id, its signing key and its name in metrics.

The peer id is the base58 of the identity multihash of libp2p's protobuf public key (libp2p spec, peer-ids): a fixed
six-byte prefix and the 32-byte key. So an id *is* a key, and a signature can be checked against an id alone.
The key has a file of its own with mode 0600: a header line and the 32-byte seed in hex; or the seed sealed under a
passphrase (keyfile.py), for a machine that others may access while it is off.
"""

import secrets
from functools import lru_cache
from pathlib import Path
from typing import Final

import base58
from nacl.exceptions import BadSignatureError
from nacl.pwhash import argon2id
from nacl.secret import SecretBox
from nacl.signing import SigningKey, VerifyKey

from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.keyfile import MAX_SEALED_BYTES, MODERATE, Cost, is_sealed, seal, unseal
from gossip.core.secret_file import read_private, write_private

PURPOSE: Final = "identity"
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_ID_PREFIX: Final = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])
_ID_CHARS: Final = 52  # the prefix fixes the length: 38 bytes are 52 base58 characters
_HEADER: Final = b"p2ptrain-ed25519-1\n"
_FILE_BYTES: Final = len(_HEADER) + 2 * KEY_BYTES + 1
MAX_REMEMBERED: Final = 1024
"""Pairs of id and key that are remembered, 256 kB: computing one takes 40 to 120 us, and a node needs those of its
neighbours and of the operator's peers many times a second."""
_WHAT: Final = "the identity file"


@lru_cache(MAX_REMEMBERED)
def peer_id_of(public_key: bytes) -> PeerId:
    """Return the peer id of a 32-byte Ed25519 public key."""
    assert len(public_key) == KEY_BYTES
    return PeerId(base58.b58encode(_ID_PREFIX + public_key).decode("ascii"))


@lru_cache(MAX_REMEMBERED)
def verify_key_of(peer: PeerId) -> bytes:
    """Return the 32-byte public key inside a peer id. Raises RemoteError(MALFORMED) when it is not an Ed25519 peer
    id."""
    if len(peer) != _ID_CHARS:
        raise RemoteError(Reason.MALFORMED, "a peer id has 52 characters")
    try:
        raw: bytes = base58.b58decode(peer)
    except ValueError as error:
        raise RemoteError(Reason.MALFORMED, "a peer id is base58") from error
    key = raw[len(_ID_PREFIX) :]
    # The round trip refuses every other spelling of the same id (base58 ignores trailing blanks).
    if not raw.startswith(_ID_PREFIX) or len(key) != KEY_BYTES or peer_id_of(key) != peer:
        raise RemoteError(Reason.MALFORMED, "not the id of an Ed25519 key")
    return key


def verify(public_key: bytes, message: bytes, signature: bytes) -> None:
    """Raise RemoteError(FORGED) unless `signature` over `message` is by `public_key`."""
    try:
        VerifyKey(public_key).verify(message, signature)
    except (BadSignatureError, ValueError) as error:
        raise RemoteError(Reason.FORGED, "the signature does not verify") from error


class Identity:
    """A node's key pair."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_BYTES:
            raise LocalError(f"an identity's seed has {KEY_BYTES} bytes, not {len(seed)}")
        self._key = SigningKey(seed)

    @classmethod
    def generate(cls) -> "Identity":
        """Return a fresh key from the system's randomness."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def load_or_create(cls, path: Path, passphrase: bytes | None = None) -> "Identity":
        """Return the key in `path`; create it when there is no file, sealed where a passphrase is given. Raises
        LocalError on a file that holds no key, and as `load` does."""
        if not path.exists():
            cls.generate().save(path, passphrase)
        return cls.load(path, passphrase)

    @classmethod
    def load(cls, path: Path, passphrase: bytes | None = None) -> "Identity":
        """Return the key in `path`; a passphrase is used where the file is sealed. Raises LocalError when there is no
        file, it holds no key, or it is sealed and no passphrase is given."""
        return cls(_read_seed(path, passphrase))

    @staticmethod
    def is_sealed(path: Path) -> bool:
        """Return whether the key in `path` is sealed under a passphrase. Raises LocalError on a file that cannot be
        read."""
        return is_sealed(read_private(path, MAX_SEALED_BYTES, _WHAT, refuse_shared=False))

    def save(
        self, path: Path, passphrase: bytes | None = None, *, replace: bool = False, cost: Cost = MODERATE
    ) -> None:
        """Write the key, readable by its owner only, and sealed where a passphrase is given. Raises LocalError, also
        when the file exists and must not be replaced."""
        if path.exists() and not replace:
            raise LocalError(f"{path} exists; an identity is not overwritten")
        if passphrase is None:
            data = _HEADER + self.seed.hex().encode("ascii") + b"\n"
        else:
            salt, nonce = secrets.token_bytes(argon2id.SALTBYTES), secrets.token_bytes(SecretBox.NONCE_SIZE)
            data = seal(self.seed, passphrase, purpose=PURPOSE, salt=salt, nonce=nonce, cost=cost)
        write_private(path, data, _WHAT)

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes: for a transport's handshake, never for the wire or a log."""
        return bytes(self._key)

    @property
    def public_key(self) -> bytes:
        """The 32-byte Ed25519 public key."""
        return bytes(self._key.verify_key)

    @property
    def peer_id(self) -> PeerId:
        """Our peer id."""
        return peer_id_of(self.public_key)

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature over `message`."""
        signature: bytes = self._key.sign(message).signature
        return signature

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"


def _read_seed(path: Path, passphrase: bytes | None) -> bytes:
    text = read_private(path, max(_FILE_BYTES, MAX_SEALED_BYTES), _WHAT, refuse_shared=False)
    if is_sealed(text):
        if passphrase is None:
            raise LocalError(f"{path} lies under a passphrase; give it with --passphrase-file")
        try:
            return unseal(text, passphrase, purpose=PURPOSE)
        except LocalError as error:
            raise LocalError(f"{_WHAT} {path}: {error}") from error
    if len(text) == _FILE_BYTES and text.startswith(_HEADER) and text.endswith(b"\n"):
        try:
            return bytes.fromhex(text[len(_HEADER) : -1].decode("ascii"))
        except ValueError:
            pass
    raise LocalError(
        f"{path} is not a p2ptrain identity (damaged or cut short); restore it from a copy, "
        "or delete it to start with a new identity"
    )
