"""libp2p's messages over a stream: a varint of the length, then the message. Exactly one message is read, and not a
byte beyond it, since what follows may be a circuit's."""

import trio

from gossip.core.errors import Reason, RemoteError
from gossip.core.protobuf import read_varint
from gossip.reachability.circuit import MAX_MESSAGE_BYTES, MAX_SIZE_BYTES, delimited
from gossip.transport.base import Stream


async def receive_message(stream: Stream, patience_s: float) -> bytes | None:
    """Return the next message; None where the stream ends before it. The whole message has `patience_s`: it is small.

    Raises RemoteError (TIMEOUT, OVERSIZE, PROTOCOL), TransportError.
    """
    with trio.move_on_after(patience_s):
        size = await _size(stream)
        return None if size is None else await _exactly(stream, size)
    raise RemoteError(Reason.TIMEOUT, "no message in time, or one that trickles")


async def send_message(stream: Stream, message: bytes, patience_s: float) -> None:
    """Send one message. Raises RemoteError(TIMEOUT), TransportError."""
    with trio.move_on_after(patience_s) as scope:
        await stream.send_all(delimited(message))
    if scope.cancelled_caught:
        raise RemoteError(Reason.TIMEOUT, "it does not read")


async def _size(stream: Stream) -> int | None:
    digits = b""
    while len(digits) < MAX_SIZE_BYTES:
        digit = await stream.receive_some(1)
        if not digit and not digits:
            return None
        digits += digit
        if not digit or digits[-1] < 0x80:
            break
    if digits[-1] >= 0x80 and len(digits) < MAX_SIZE_BYTES:
        raise RemoteError(Reason.PROTOCOL, "the stream ended inside a length")
    size = MAX_MESSAGE_BYTES + 1 if digits[-1] >= 0x80 else read_varint(digits, 0)[0]
    if size > MAX_MESSAGE_BYTES:
        raise RemoteError(Reason.OVERSIZE, f"a message of more than {MAX_MESSAGE_BYTES} bytes")
    return size


async def _exactly(stream: Stream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise RemoteError(Reason.PROTOCOL, "the stream ended inside a message")
        data += piece
    return bytes(data)
