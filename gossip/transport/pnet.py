"""Private networks of libp2p (specs/pnet, "Pre-shared Key Based Private Networks", version 1).

Who has not the swarm's 32-byte key sees noise from the first byte on, and says nothing that is understood. Each end
sends 24 random bytes, and everything after them is XORed with the stream of XSalsa20 under the key and those bytes,
without a gap from the first byte to the last. It hides and shuts out; it does not authenticate, which is for the
handshake beneath it. libp2p's own Python psk is not used: it has 8 bytes of nonce and so speaks with nobody else
(trap 10).

XSalsa20 is HSalsa20 (once a connection, in Python) and Salsa20 (pycryptodome: 0.7 GB/s of a core).
"""

import hashlib
import re
import secrets
import struct
from pathlib import Path
from typing import Final

from Crypto.Cipher import Salsa20

from gossip.core.errors import LocalError
from gossip.core.secret_file import read_private, write_private

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 24

_HEADER: Final = "/key/swarm/psk/1.0.0/\n/base16/\n"
_FILE: Final = re.compile(re.escape(_HEADER.encode("ascii")) + rb"([0-9a-fA-F]{64})\n?")
_FILE_BYTES: Final = len(_HEADER) + 2 * KEY_BYTES + 1

_SIGMA: Final = struct.unpack("<4I", b"expand 32-byte k")
_ROUNDS: Final = (
    (0, 4, 8, 12),
    (5, 9, 13, 1),
    (10, 14, 2, 6),
    (15, 3, 7, 11),
    (0, 1, 2, 3),
    (5, 6, 7, 4),
    (10, 11, 8, 9),
    (15, 12, 13, 14),
)
"""The quarters of a double round: four columns, then four rows."""
_DOUBLE_ROUNDS: Final = 10
_WORD: Final = 0xFFFFFFFF


class PresharedKey:
    """The key of a private network. Never in a log: its `repr` is its fingerprint."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise LocalError(f"a pre-shared key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    @classmethod
    def generate(cls) -> "PresharedKey":
        """A fresh key from the system's randomness."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def parse(cls, text: bytes) -> "PresharedKey":
        """The key in what a `swarm.key` file holds. Raises LocalError, which never shows what it was given."""
        match = _FILE.fullmatch(text)
        if match is None:
            raise LocalError(
                "not a libp2p swarm key: it has the lines /key/swarm/psk/1.0.0/, /base16/ and 64 hex digits"
            )
        return cls(bytes.fromhex(match[1].decode("ascii")))

    @classmethod
    def read(cls, path: Path) -> "PresharedKey":
        """The key in a file. Raises LocalError, also when others than its owner may open it."""
        text = read_private(path, _FILE_BYTES, "the swarm key", refuse_shared=True)
        try:
            return cls.parse(text)
        except LocalError as error:
            raise LocalError(f"{path}: {error}") from None

    def write(self, path: Path) -> None:
        """Into a new file that only its owner may open. Raises LocalError, also when there is one already."""
        if path.exists():
            raise LocalError(f"{path} is there already: without its key, nobody of its network can be reached")
        write_private(path, self.text(), "the swarm key")

    def text(self) -> bytes:
        """What the file holds, as go, js and rust libp2p read it."""
        return f"{_HEADER}{self._key.hex()}\n".encode("ascii")

    @property
    def fingerprint(self) -> str:
        """16 bytes in hex by which two people can tell whether they have the same key: as go and rust libp2p print it
        (SHAKE128 of the first 64 bytes of Salsa20 under the nonce `finprint`)."""
        stream = Salsa20.new(key=self._key, nonce=b"finprint").encrypt(bytes(64))
        return hashlib.shake_128(stream).hexdigest(16)

    def stream(self, nonce: bytes) -> "XSalsa20":
        """What is XORed with one direction of a connection."""
        return XSalsa20(self._key, nonce)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PresharedKey) and secrets.compare_digest(self._key, other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"PresharedKey({self.fingerprint})"


class XSalsa20:
    """One key stream, from its beginning."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES
        self._cipher = Salsa20.new(key=hsalsa20(key, nonce[:16]), nonce=nonce[16:])

    def xor(self, data: bytes | bytearray | memoryview) -> bytearray:
        """The next bytes of the stream over a copy of `data`: the library's own copies are two."""
        copy = bytearray(data)
        self._cipher.encrypt(copy, output=copy)
        return copy

    def xor_in_place(self, data: memoryview) -> None:
        """The same, where `data` stands."""
        self._cipher.encrypt(data, output=data)


def hsalsa20(key: bytes, nonce: bytes) -> bytes:
    """The key that XSalsa20 gives to Salsa20 (Bernstein, "Extending the Salsa20 nonce"): 16 bytes of nonce into it."""
    k, n = struct.unpack("<8I", key), struct.unpack("<4I", nonce)
    x = [_SIGMA[0], *k[:4], _SIGMA[1], *n, _SIGMA[2], *k[4:], _SIGMA[3]]
    for _ in range(_DOUBLE_ROUNDS):
        for a, b, c, d in _ROUNDS:
            x[b] ^= _rotated(x[a] + x[d], 7)
            x[c] ^= _rotated(x[b] + x[a], 9)
            x[d] ^= _rotated(x[c] + x[b], 13)
            x[a] ^= _rotated(x[d] + x[c], 18)
    return struct.pack("<8I", *(x[at] for at in (0, 5, 10, 15, 6, 7, 8, 9)))


def _rotated(word: int, bits: int) -> int:
    word &= _WORD
    return (word << bits | word >> (32 - bits)) & _WORD


class PnetStream:
    """Both directions of one connection under a key. Our nonce goes before what is first hidden."""

    def __init__(self, key: PresharedKey) -> None:
        self._key = key
        self._out: XSalsa20 | None = None
        self._in: XSalsa20 | None = None
        self._nonce = b""

    def hidden(self, data: bytes | bytearray | memoryview) -> bytes | bytearray:
        """What to send for `data`."""
        if self._out is not None:
            return self._out.xor(data)
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._out = self._key.stream(nonce)
        return nonce + self._out.xor(data)

    def shown(self, piece: bytes) -> bytes | bytearray:
        """What the far end meant by the next bytes that came; nothing, while its nonce is not whole."""
        if self._in is None:
            missing = NONCE_BYTES - len(self._nonce)
            self._nonce, piece = self._nonce + piece[:missing], piece[missing:]
            if len(self._nonce) < NONCE_BYTES:
                return b""
            self._in = self._key.stream(self._nonce)
        return self._in.xor(piece) if piece else b""

    @property
    def answered(self) -> bool:
        """Whether the far end's nonce is here."""
        return self._in is not None

    @property
    def came(self) -> bytes:
        """The far end's nonce, as far as it is here."""
        return self._nonce
