"""Noise records between yamux and the socket, with one copy where stock code makes five.

`SecureSession.read` (secure_session.py:117) fills and drains a BytesIO, `read_exactly` (io/utils.py:47) copies at each
of two levels, and `write` costs a lock, a prefix and a system call for each record of 64 KiB. The records themselves
are those of the Noise spec for libp2p, so nothing changes for the far end. What was decrypted before the muxer came is
taken over. A record that does not decrypt, or is empty, ends the connection: stock code logs and reads on.
"""

from collections.abc import Sequence
from typing import Any, Final

from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.connection.exceptions import RawConnError
from noise.exceptions import NoiseInvalidMessage, NoiseMaxNonceError

LENGTH_BYTES: Final = 2
"""A record's length stands before it, big-endian."""


class Records:
    """Reads and writes what a secured connection carries. `session`: libp2p's, once its handshake is over."""

    def __init__(self, session: Any) -> None:
        self._noise = session.conn
        self._raw = session.conn.read_writer.read_write_closer
        self._plain = memoryview(session._drain(None))

    @property
    def peer_name(self) -> tuple[str, int]:
        """Host and port of the far end. Raises OSError once it is gone."""
        name: tuple[str, int] = self._raw.stream.peer_name
        return name

    async def read(self, n: int | None = None) -> bytes:
        """Exactly n bytes, fewer only where the connection ends, or what there is (None).

        Raises IncompleteReadError when the connection ends before the first of them, RawConnError for a bad record.
        """
        parts: list[memoryview] = []
        missing = 1 if n is None else n
        while missing > 0:
            if not self._plain and not await self._next():
                break
            part = self._plain if n is None else self._plain[:missing]
            self._plain = self._plain[len(part) :]
            parts.append(part)
            missing -= len(part)
        if missing > 0 and not parts:
            raise IncompleteReadError("the connection has ended", expected_bytes=missing, received_bytes=0)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    async def write(self, records: Sequence[bytes]) -> None:
        """Send each as a record of its own, all of them at once. Each has at most 65,519 bytes."""
        parts: list[bytes] = []
        for record in records:
            sealed = self._noise.encrypt(record)
            parts += (len(sealed).to_bytes(LENGTH_BYTES, "big"), sealed)
        await self._raw.write(b"".join(parts))

    async def _next(self) -> bool:
        """Decrypt the next record. False when the connection ends, between records or within one."""
        head: bytes = await self._raw.read(LENGTH_BYTES)
        if len(head) < LENGTH_BYTES:
            return False
        size = int.from_bytes(head, "big")
        sealed: bytes = await self._raw.read(size)
        if len(sealed) < size:
            return False
        try:
            self._plain = memoryview(self._noise.decrypt(sealed))
        except (NoiseInvalidMessage, NoiseMaxNonceError) as error:
            raise RawConnError("a record that cannot be decrypted") from error
        if not self._plain:
            raise RawConnError("an empty record")
        return True
