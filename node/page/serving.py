"""HTTP over one listening socket: hypercorn speaks it, and readers who do not read cost nothing for long.

hypercorn shields what it writes from cancellation, so that one reader that has stopped would hold a node up at its end,
and for ever. So streams are handed to it that give up: after STALL_S without a byte taken, and when the node stops. The
kernel's buffer of each is small as well, and there are not many.
"""

import socket

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.types import ASGIApp

STALL_S = 10.0
"""A phone that changes networks is back within seconds, and asks anew in any case."""

GRACE_S = 0.5
"""How long an answer under way may take when the node stops: the whole stop has five seconds."""

CHUNK_BYTES = 1 << 14
"""What must be taken within STALL_S: 1.6 kB/s is slower than any link that a person would watch a page over."""

SEND_BUFFER_BYTES = 1 << 18
"""The largest answer there is: a scrape of a node with many peers."""

MAX_CONNECTIONS = 64
"""16 pages with the four connections that a browser opens at first; at 256 kB of buffers each."""


class PatientStream:
    """A connection as hypercorn wants one, which does not wait for its reader for ever."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.socket = stream.socket
        self.writing = False
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        """Raises trio.BrokenResourceError when the reader stalls."""
        self.writing = True
        try:
            for start in range(0, len(data), CHUNK_BYTES):
                with trio.fail_after(STALL_S):
                    await self._stream.send_all(data[start : start + CHUNK_BYTES])
        except trio.TooSlowError:
            self.socket.close()
            raise trio.BrokenResourceError("the reader does not read") from None
        finally:
            self.writing = False

    async def receive_some(self, max_bytes: int) -> bytes:
        """As trio's."""
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """As trio's."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """As trio's."""
        await self._stream.aclose()


def limit_buffers(listener: socket.socket) -> None:
    """Before it listens: the connections that it takes inherit this."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


async def serve(app: ASGIApp, listener: socket.socket, settings: HypercornConfig) -> None:
    """Answer until cancelled. `listener` listens, and stays the caller's."""
    wrapped, context = ASGIWrapper(app), WorkerContext(None)
    talking: set[PatientStream] = set()

    async def talk(stream: trio.SocketStream) -> None:
        if len(talking) >= MAX_CONNECTIONS:
            await stream.aclose()
            return
        patient = PatientStream(stream)
        talking.add(patient)
        try:
            await TCPServer(wrapped, settings, context, ConnectionState({}), patient)
        finally:
            talking.discard(patient)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_close_at_the_end, talking)
        await trio.serve_listeners(talk, [trio.SocketListener(trio.socket.from_stdlib_socket(listener))])


async def _close_at_the_end(talking: set[PatientStream]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(GRACE_S):
            while any(stream.writing for stream in talking):  # noqa: ASYNC110
                await trio.sleep(GRACE_S / 10)
        for stream in list(talking):
            stream.socket.close()
