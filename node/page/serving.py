"""The node's HTTP over one listening socket: who may have a connection, and how all end when the node stops.

A client is a stranger until it is admitted: it showed the token, or, where none is asked for, a name of loopback. The
number of strangers is bounded, in all and by address. One more replaces the oldest of the address that has most. So
silent, slow and refused clients cannot keep out a client whose request takes one round trip. The number of admitted
clients is bounded as well, but they are never replaced.

A stranger whose transfer the application has agreed to (a visitor's model or difference) is no stranger until it ends:
transfers are bounded in all and by network, and never replaced. One beyond these bounds goes on as a stranger.
"""

import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio
from starlette.types import ASGIApp, Receive, Scope, Send

from gossip.core.networks import network_at, parsed_host
from gossip.transport.connection_limits import Handshakes
from node.page.http1 import Http1Connection

SEND_BUFFER_BYTES: Final = 1 << 18
"""Bytes of a send buffer: the largest answer, a scrape of a node with many peers."""

MAX_CONNECTIONS: Final = 64
"""Most connections of admitted clients: 16 pages with the four connections that a browser opens at first, at 256 kB of
buffers each. A further one stays a stranger, and is answered until it is replaced."""

MAX_STRANGERS: Final = 32
"""Most connections of strangers. A client is one for a round trip before it is admitted. Chosen for a dozen scrapers
and browsers at once."""

MAX_STRANGERS_OF_ADDRESS: Final = 16
"""Most strangers of one IPv4 address, or one /64 of IPv6, which one machine may have. It is half, so that one host
alone never decides who is cut off. A proxy's clients are strangers one after the other."""

IPV6_PREFIX: Final = 64


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """What the application may be asked for beyond short answers."""

    max_body: int = 0
    """Most bytes of a request's body that it may ask for."""
    most: int = 0
    """Most connections that keep their place for a transfer."""
    of_network: int = 0
    """The same of one network: a /24 of IPv4, a /48 of IPv6."""


class Connections:
    """The current connections. It does no I/O: it returns the connections to cut."""

    def __init__(self, transfers: Transfers = Transfers()) -> None:
        self._bounds = transfers
        self._transfers: dict[Http1Connection, str] = {}
        """The network of each connection that has a transfer's place."""
        self._strangers: Handshakes[Http1Connection] = Handshakes(MAX_STRANGERS, MAX_STRANGERS_OF_ADDRESS)
        self._admitted: set[Http1Connection] = set()
        self._all: set[Http1Connection] = set()

    def enter(self, connection: Http1Connection, host: str) -> Http1Connection | None:
        """Add a stranger. Return the connection that it replaces, if any."""
        self._all.add(connection)
        return self._strangers.begin(connection, network_of(host))

    def admit(self, connection: Http1Connection) -> None:
        """Count a connection as admitted, where there is room."""
        if connection not in self._admitted and len(self._admitted) < MAX_CONNECTIONS:
            self._strangers.end(connection)
            self._transfers.pop(connection, None)
            self._admitted.add(connection)

    def hold(self, connection: Http1Connection, host: str) -> None:
        """Give a stranger's connection a transfer's place, where there is one."""
        address = parsed_host(host)
        network = "" if address is None else network_at(address)
        if connection in self._admitted or connection in self._transfers or len(self._transfers) >= self._bounds.most:
            return
        if Counter(self._transfers.values())[network] < self._bounds.of_network:
            self._strangers.end(connection)
            self._transfers[connection] = network

    def release(self, connection: Http1Connection, host: str) -> Http1Connection | None:
        """Make a connection whose transfer has ended a stranger again. Return the one that it replaces, if any."""
        if self._transfers.pop(connection, None) is None:
            return None
        return self._strangers.begin(connection, network_of(host))

    def leave(self, connection: Http1Connection) -> None:
        """Remove a connection that has ended."""
        self._strangers.end(connection)
        self._transfers.pop(connection, None)
        self._admitted.discard(connection)
        self._all.discard(connection)

    def hasten(self) -> None:
        """Tell every connection that the node stops."""
        for connection in self._all:
            connection.hasten()


def network_of(host: str) -> str:
    """Return what counts as one address: for IPv6 its /64, and an IPv4 address also where it came mapped into IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(ipaddress.ip_network((address, 32 if address.version == 4 else IPV6_PREFIX), strict=False))


def limit_buffers(listener: socket.socket) -> None:
    """Limit the buffers of a listener before it listens: the connections that it accepts inherit them."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    tls: Callable[[], ssl.SSLContext] | None = None,
    transfers: Transfers = Transfers(),
) -> None:
    """Answer until cancelled. `listener` listens already, and the caller closes it. `tls`: over HTTPS, each connection
    by what it returns then. `app` finds a function in each request's `scope["state"]["hold"]`, which it calls once it
    agrees to a transfer."""
    connections = Connections(transfers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hasten_at_the_end, connections)
        accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        await trio.serve_listeners(partial(_talk, app, connections, tls, transfers.max_body), [accepting])


async def _talk(
    app: ASGIApp,
    connections: Connections,
    tls: Callable[[], ssl.SSLContext] | None,
    max_body: int,
    stream: trio.SocketStream,
) -> None:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:  # the client has left
        await trio.aclose_forcefully(stream)
        return
    # The handshake of TLS is a part of the first head's time.
    spoken = stream if tls is None else trio.SSLStream(stream, tls(), server_side=True, https_compatible=True)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["hold"] = lambda: connections.hold(connection, host)
        try:
            await app(scope, receive, send)
        finally:
            _cut(connections.release(connection, host))

    connection = Http1Connection(
        answer, spoken, client=(host, port), admit=lambda: connections.admit(connection), max_body=max_body
    )
    _cut(connections.enter(connection, host))
    try:
        await connection.run()
    finally:
        connections.leave(connection)


def _cut(crowded_out: Http1Connection | None) -> None:
    if crowded_out is not None:
        crowded_out.cut()


async def _hasten_at_the_end(connections: Connections) -> None:
    try:
        await trio.sleep_forever()
    finally:
        connections.hasten()
