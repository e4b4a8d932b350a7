"""The same bytes without gossip: over the installed libp2p's Noise and yamux, and over a bare TCP socket.

The fetcher opens a stream, or a connection, and reads to a length that it knows; the other end writes them
in pieces. Nothing is hashed while the clock runs: what is measured here is the least that any exchange can take.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from gossip.transport.libp2p.bare_host import PIECE_BYTES, BareHost, bare_host
from node.system.errors import RunError

TCP_PIECE_BYTES: Final = 1 << 20
READ_BYTES: Final = 1 << 18
"""Asked for at a time; a yamux stream gives what is there."""

Source = Callable[[], bytes]
"""The bytes to send, as they are now."""
Fetch = Callable[[int], Awaitable[list[bytes]]]
"""So many bytes, as they came."""


@asynccontextmanager
async def serving(source: Source) -> AsyncIterator[dict[str, str]]:
    """Serve `source` to everyone who asks, in either way; yield the addresses."""

    async def over_libp2p(stream: Any) -> None:
        await _send(stream.write, source(), PIECE_BYTES)
        await stream.close()

    async def over_tcp(stream: trio.SocketStream) -> None:
        await _send(stream.send_all, source(), TCP_PIECE_BYTES)

    async with bare_host(over_libp2p) as host, trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, over_tcp, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        yield {"bare": host.addresses[0], "tcp": str(port)}
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def fetching(addresses: dict[str, str]) -> AsyncIterator[dict[str, Fetch]]:
    """Yield a function that fetches from each of the addresses, by its name. libp2p is connected already, as gossip
    is."""
    async with bare_host(_refuse) as host:
        await host.connect(addresses["bare"])

        async def over_libp2p(size: int) -> list[bytes]:
            stream = await _opened(host, addresses["bare"])
            parts = await _receive(stream.read, size)
            await stream.close()
            return parts

        async def over_tcp(size: int) -> list[bytes]:
            async with await trio.open_tcp_stream("127.0.0.1", int(addresses["tcp"])) as stream:
                return await _receive(stream.receive_some, size)

        yield {"bare": over_libp2p, "tcp": over_tcp}


async def _opened(host: BareHost, address: str) -> Any:
    return await host.open_stream(address)


async def _refuse(stream: Any) -> None:
    await stream.reset()


async def _send(write: Callable[[memoryview], Awaitable[None]], data: bytes, piece_bytes: int) -> None:
    view = memoryview(data)
    for start in range(0, len(view), piece_bytes):
        await write(view[start : start + piece_bytes])


async def _receive(read: Callable[[int], Awaitable[bytes]], size: int) -> list[bytes]:
    parts: list[bytes] = []
    while size > 0:
        part = await read(min(READ_BYTES, size))
        if not part:
            raise RunError(f"the connection ended {size} bytes early")
        parts.append(part)
        size -= len(part)
    return parts
