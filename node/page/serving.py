"""The node's HTTP over one listening socket: who may have a connection, and what becomes of all when the node stops.

A client is a stranger until it has been admitted: it showed the token, or, where none is asked for, a name of
loopback's own. Strangers are few, in all and of one address, and one more takes the place of the oldest of the address
that has most: so silent, slow and refused clients keep nobody out, whose request takes a round trip. Those who are
admitted are bounded as well, and never make room.
"""

import ipaddress
import socket
from functools import partial
from typing import Final

import trio
from starlette.types import ASGIApp

from gossip.transport.connection_limits import Handshakes
from node.page.http1 import Http1Connection

SEND_BUFFER_BYTES: Final = 1 << 18
"""The largest answer there is: a scrape of a node with many peers."""

MAX_CONNECTIONS: Final = 64
"""Of clients that are admitted: 16 pages with the four connections that a browser opens at first, at 256 kB of buffers
each. One beyond stays a stranger, and is answered as long as it has its place."""

MAX_STRANGERS: Final = 32
"""Of all others. Whoever is admitted is one for a round trip: chosen, for a dozen scrapers and browsers at once."""

MAX_STRANGERS_OF_ADDRESS: Final = 16
"""The same of one IPv4 address, or one /64 of IPv6, which is what one machine may have: half, so that one host alone
never decides who is let go. A proxy's clients are strangers one after the other."""

IPV6_PREFIX: Final = 64


class Connections:
    """Who is connected. Nothing here is I/O: what has to be cut is named."""

    def __init__(self) -> None:
        self._strangers: Handshakes[Http1Connection] = Handshakes(MAX_STRANGERS, MAX_STRANGERS_OF_ADDRESS)
        self._admitted: set[Http1Connection] = set()
        self._all: set[Http1Connection] = set()

    def enter(self, connection: Http1Connection, host: str) -> Http1Connection | None:
        """One more stranger; whom it takes the place of, if anybody's."""
        self._all.add(connection)
        return self._strangers.begin(connection, network_of(host))

    def admit(self, connection: Http1Connection) -> None:
        """It may stay, where there is room."""
        if connection not in self._admitted and len(self._admitted) < MAX_CONNECTIONS:
            self._strangers.end(connection)
            self._admitted.add(connection)

    def leave(self, connection: Http1Connection) -> None:
        """It has ended."""
        self._strangers.end(connection)
        self._admitted.discard(connection)
        self._all.discard(connection)

    def hasten(self) -> None:
        """The node stops."""
        for connection in self._all:
            connection.hasten()


def network_of(host: str) -> str:
    """What counts as one address: of IPv6 a /64, and an IPv4 address whichever way it came."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(ipaddress.ip_network((address, 32 if address.version == 4 else IPV6_PREFIX), strict=False))


def limit_buffers(listener: socket.socket) -> None:
    """Before it listens: the connections that it takes inherit this."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


async def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Answer until cancelled. `listener` listens, and stays the caller's."""
    connections = Connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hasten_at_the_end, connections)
        accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        await trio.serve_listeners(partial(_talk, app, connections), [accepting])


async def _talk(app: ASGIApp, connections: Connections, stream: trio.SocketStream) -> None:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:  # gone again
        await trio.aclose_forcefully(stream)
        return
    connection = Http1Connection(app, stream, client=(host, port), admit=lambda: connections.admit(connection))
    crowded_out = connections.enter(connection, host)
    if crowded_out is not None:
        crowded_out.cut()
    try:
        await connection.run()
    finally:
        connections.leave(connection)


async def _hasten_at_the_end(connections: Connections) -> None:
    try:
        await trio.sleep_forever()
    finally:
        connections.hasten()
