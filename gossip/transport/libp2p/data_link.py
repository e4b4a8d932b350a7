"""A TCP connection of our own for bulk: records of up to a chunk, sealed with AES-256-GCM.

    preamble = MAGIC, token (16 bytes)                                     by the dialling end, in the clear
    record   = head: 4 bytes, big-endian: kind << 24 | length              authenticated with what follows
               length bytes of ciphertext, then 16 of tag

The keys come from a secret that one end drew at random and sent inside the Noise channel (libp2p_channels), by
HKDF-SHA256, one for each direction: every connection has keys that no other has, and the number of a record within its
direction is its nonce, so none repeats. The first record each way is an empty HELLO: who sends it holds the keys,
and only they can follow. A head that is out of order or bounds, or a record that does not open, ends the connection.

In a private network (transport/pnet.py) the preamble stands behind the pre-shared key, as a libp2p connection would,
and the heads behind two streams under the same key: nothing shows that would tell what it is, or where a record ends.
"""

import struct
from enum import IntEnum
from typing import Final

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gossip.core.ids import PeerId
from gossip.core.limits import CHUNK_BYTES
from gossip.transport.base import TransportError
from gossip.transport.pnet import NONCE_BYTES as PSK_NONCE_BYTES
from gossip.transport.pnet import PresharedKey, XSalsa20
from gossip.transport.wire_bytes import WireBytes

MAGIC: Final = b"\xd5p2pdata"
"""No libp2p connection begins so: its first byte is the length of multistream's name, 19."""

TOKEN_BYTES: Final = 16
SECRET_BYTES: Final = 32
KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
NONCE_BYTES: Final = 12

MAX_RECORD_BYTES: Final = CHUNK_BYTES + 4096
"""Plaintext of a record: an answer with a whole chunk fits into one, and can be handed over without a copy."""

MAX_RECORDS: Final = 2**32
"""Of one direction; a connection ends before its nonces do. NIST SP 800-38D allows as many under one key."""

_HEAD: Final = struct.Struct(">I")
_LENGTH_BITS: Final = 24
_DOMAIN: Final = b"p2ptrain-data-v1\x00"


class RecordKind(IntEnum):
    """What a record is. HELLO and END are empty, OPEN names a protocol, DATA holds bytes of the stream that is open."""

    HELLO = 0
    OPEN = 1
    DATA = 2
    END = 3


MOST: Final = {
    RecordKind.HELLO: (0, 0),
    RecordKind.OPEN: (1, 128),
    RecordKind.DATA: (1, MAX_RECORD_BYTES),
    RecordKind.END: (0, 0),
}
"""The least and the most bytes of each kind. The name of a protocol of ours has 19."""


def keys_of(secret: bytes, dialler: PeerId, listener: PeerId) -> tuple[bytes, bytes]:
    """The key of what `dialler` sends and of what `listener` sends, of a connection between them."""
    keys = _derived(secret, dialler, listener, 2 * KEY_BYTES)
    return keys[:KEY_BYTES], keys[KEY_BYTES:]


def masks_of(psk: PresharedKey, secret: bytes, dialler: PeerId, listener: PeerId) -> tuple[XSalsa20, XSalsa20]:
    """In a private network: what the heads of either's records are XORed with. What follows them looks random as it is,
    and to XOR all of it would make bulk four times as slow."""
    nonces = _derived(secret, dialler, listener, 2 * KEY_BYTES + 2 * PSK_NONCE_BYTES)[2 * KEY_BYTES :]
    return psk.stream(nonces[:PSK_NONCE_BYTES]), psk.stream(nonces[PSK_NONCE_BYTES:])


def _derived(secret: bytes, dialler: PeerId, listener: PeerId, size: int) -> bytes:
    info = _DOMAIN + dialler.encode("ascii") + b"\x00" + listener.encode("ascii")
    return HKDF(algorithm=SHA256(), length=size, salt=None, info=info).derive(secret)


class _Direction:
    """A key, and the number of the next record under it."""

    def __init__(self, key: bytes) -> None:
        self.cipher = AESGCM(key)
        self._records = 0

    def nonce(self) -> bytes:
        if self._records >= MAX_RECORDS:
            raise TransportError("this data connection has carried enough")
        self._records += 1
        return (self._records - 1).to_bytes(NONCE_BYTES, "big")


class DataLink:
    """One such connection. One task may send while another receives. Every fault is a TransportError, and final.

    `left`: what was read of it already, behind the preamble. `masks`: of the heads that we send and that come.
    `wire` counts what passes the socket.
    Memory: one record each way, sealed, and one plain.
    """

    def __init__(
        self,
        socket: trio.SocketStream,
        left: bytes,
        *,
        send_key: bytes,
        receive_key: bytes,
        wire: WireBytes,
        masks: tuple[XSalsa20, XSalsa20] | None = None,
    ) -> None:
        self._socket = socket
        self._wire = wire
        self._masks = masks
        self._out, self._in = _Direction(send_key), _Direction(receive_key)
        self._left = left
        self._outgoing = bytearray(_HEAD.size + TAG_BYTES)
        self._incoming = bytearray(_HEAD.size)
        self._got = 0
        self._head: tuple[RecordKind, int] | None = None
        self.closed = trio.Event()
        self.idle_since = trio.current_time()

    async def send(self, kind: RecordKind, data: bytes | memoryview = b"") -> None:
        """Send one record. A cancelled one leaves half of itself on the wire: the connection is closed then."""
        size = len(data)
        assert size <= MAX_RECORD_BYTES
        try:
            await self._sent(kind, data, size)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.abandon()
            raise TransportError("the data connection was lost") from error
        except BaseException:
            self.abandon()
            raise

    async def _sent(self, kind: RecordKind, data: bytes | memoryview, size: int) -> None:
        whole = _HEAD.size + size + TAG_BYTES
        if len(self._outgoing) < whole:
            self._outgoing = bytearray(whole)
        _HEAD.pack_into(self._outgoing, 0, kind << _LENGTH_BITS | size)
        with memoryview(self._outgoing) as view:
            head = bytes(view[: _HEAD.size])
            self._out.cipher.encrypt_into(self._out.nonce(), data, head, view[_HEAD.size : whole])
            if self._masks is not None:
                self._masks[0].xor_in_place(view[: _HEAD.size])
            self._wire.sent += whole
            await self._socket.send_all(view[:whole])

    async def receive(self) -> tuple[RecordKind, bytes] | None:
        """The next record; None at the end of the connection, which is no fault between two records.

        May be cancelled and called again.
        """
        try:
            return await self._received()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.abandon()
            raise TransportError("the data connection was lost") from error
        except TransportError:
            self.abandon()
            raise

    async def _received(self) -> tuple[RecordKind, bytes] | None:
        if self._head is None:
            if not await self._fill(_HEAD.size):
                if self._got:
                    raise TransportError("the data connection ended within a record")
                return None
            if self._masks is not None:
                with memoryview(self._incoming) as view:
                    self._masks[1].xor_in_place(view[: _HEAD.size])
            self._head = _opened(bytes(self._incoming[: _HEAD.size]))
        kind, size = self._head
        whole = _HEAD.size + size + TAG_BYTES
        if not await self._fill(whole):
            raise TransportError("the data connection ended within a record")
        with memoryview(self._incoming) as view:
            head = bytes(view[: _HEAD.size])
            try:
                plain = self._in.cipher.decrypt(self._in.nonce(), view[_HEAD.size : whole], head)
            except InvalidTag:
                raise TransportError("a record of the data connection does not open") from None
        self._head, self._got = None, 0
        return kind, plain

    async def _fill(self, size: int) -> bool:
        """Whether the first `size` bytes of a record are here; what has come is kept, also when cancelled."""
        if len(self._incoming) < size:
            self._incoming += bytes(size - len(self._incoming))
        while self._got < size:
            if self._left:
                part, self._left = self._left[: size - self._got], self._left[size - self._got :]
                self._incoming[self._got : self._got + len(part)] = part
                self._got += len(part)
                continue
            with memoryview(self._incoming) as view:
                got = await self._recv_into(view[self._got : size])
            if not got:
                return False
            self._wire.received += got
            self._got += got
        return True

    async def _recv_into(self, view: memoryview) -> int:
        try:
            return await self._socket.socket.recv_into(view)
        except trio.ClosedResourceError:
            raise
        except OSError as error:
            raise TransportError("the data connection was lost") from error

    @property
    def pending(self) -> int:
        """Bytes of the next record that are here."""
        return self._got

    @property
    def quiet(self) -> bool:
        """Whether nothing has come that nobody asked for: of an idle connection, that it is still there."""
        return not (self.closed.is_set() or self._left or self._socket.socket.is_readable())

    def abandon(self) -> None:
        """Close it at once; anybody who waits for it is woken."""
        self._socket.socket.close()
        self.closed.set()


def _opened(head: bytes) -> tuple[RecordKind, int]:
    """Kind and length of a record, before anything is read or made room for. Raises TransportError."""
    (word,) = _HEAD.unpack(head)
    kind, size = word >> _LENGTH_BITS, word & (1 << _LENGTH_BITS) - 1
    if kind not in MOST or not MOST[RecordKind(kind)][0] <= size <= MOST[RecordKind(kind)][1]:
        raise TransportError("a record of no kind or size that there is")
    return RecordKind(kind), size


class DataStream:
    """A `gossip.transport.base.Stream` over a link, until both ends have said END; then the link is free again.

    `released` is set when this end has let go of it, `finished` when the far end has.
    """

    def __init__(self, link: DataLink, remote: PeerId) -> None:
        self._link = link
        self._remote = remote
        self._plain = b""
        self._at = 0
        self.finished = False
        self.released = trio.Event()

    @property
    def remote(self) -> PeerId:
        """The peer at the other end, as proved by the Noise handshake under which the keys were agreed."""
        return self._remote

    @property
    def pending(self) -> int:
        """Bytes of the next record that are here: it is opened when it is whole, over a slow link a minute later."""
        return self._link.pending

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send all of `data`. Raises TransportError."""
        self._check_held()
        view = memoryview(data)
        for start in range(0, len(view), MAX_RECORD_BYTES):
            await self._link.send(RecordKind.DATA, view[start : start + MAX_RECORD_BYTES])

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least 1 and at most `max_bytes` bytes; b"" at the end of the stream. Raises TransportError."""
        assert max_bytes > 0
        self._check_held()
        if self._at == len(self._plain) and not await self._next():
            return b""
        if not self._at and len(self._plain) <= max_bytes:
            plain, self._plain = self._plain, b""
            return plain
        part = self._plain[self._at : self._at + max_bytes]
        self._at += len(part)
        return part

    async def close(self) -> None:
        """Say that we are done sending, and let go of the stream."""
        if not self.released.is_set():
            self.released.set()
            with trio.CancelScope(shield=True), trio.move_on_after(END_S):
                try:
                    await self._link.send(RecordKind.END)
                except TransportError:
                    return

    async def reset(self) -> None:
        """Abandon the stream, and the connection with it, at once."""
        self.released.set()
        self._link.abandon()

    async def drain(self) -> bool:
        """Read and drop to the far end's END. False when the connection can carry no other stream after this one."""
        try:
            while await self._next():
                pass
        except TransportError:
            return False
        return self.finished and not self._link.closed.is_set()

    async def _next(self) -> bool:
        """Take the next record of data. False when the far end has finished."""
        if self.finished:
            return False
        record = await self._link.receive()
        if record is None:
            self._link.abandon()
            raise TransportError("the data connection was lost")
        kind, data = record
        if kind not in (RecordKind.DATA, RecordKind.END):
            self._link.abandon()
            raise TransportError("a record that does not belong into a stream")
        self._plain, self._at = data, 0
        self.finished = kind is RecordKind.END
        return not self.finished

    def _check_held(self) -> None:
        if self.released.is_set():
            raise TransportError("the stream is closed")


END_S: Final = 1.0
"""For our END to leave: 20 bytes, which wait only for a far end that does not read."""
