"""TCP for libp2p: sockets that belong to one node, read in large pieces.

Stock code binds with SO_REUSEPORT, so that two nodes on one port share its connections silently (trap 15: tcp.py:59),
and serves from a trio system task that outlives a cancelled host. It reads a Noise message by two system calls and
gives up on one that arrives in more than 100 segments (trap 11, io/utils.py:11). It reads as many bytes as a stranger
says will come (utils/varint.py:137), and knows no IPv6 address of a far end (trap 24, io/trio.py:104). All five differ
here; the rest of `TCP` is inherited.
"""

import errno
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import trio
from libp2p.io.exceptions import MessageTooLarge
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.transport.exceptions import OpenConnectionError
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from gossip.core.errors import LocalError
from gossip.transport.handshake_admission import AdmissionDeniedError
from gossip.transport.libp2p.kept_ports import KeptPorts
from gossip.transport.pnet import PnetStream, PresharedKey
from gossip.transport.wire_bytes import WireBytes

RECEIVE_BYTES: Final = 256 * 1024
"""Asked of the kernel at a time: four Noise messages, and yamux's initial window."""

MOST_AT_ONCE: Final = 65_535
"""The most that `read` is asked for by anyone honest: one Noise message, whose length field has two bytes."""

READS_A_TURN: Final = 64
"""Reads served from the buffer in a row before other tasks get a turn: at some 15 us for a message of few bytes, 1 ms.
Without it a buffer full of such messages holds the event loop for 0.2 s."""

MULTISTREAM: Final = b"\x13/multistream/1.0.0\n"
"""What every libp2p connection begins with, from both ends; no nonce is ever drawn that begins so."""

BACKLOG: Final = 128
"""Connections the kernel holds for us; its usual maximum."""

SEGMENT_BYTES: Final = 1220
"""The most that either end puts in a packet: what the least MTU of IPv6 holds (RFC 8200, 1280 bytes with both headers).
Where a PPPoE link or a tunnel takes no full Ethernet packet and a firewall drops the ICMP that would say so, anything
longer vanishes again and again: hellos pass, and no update ever does. It costs 0.5% more headers."""

HOST_PROTOCOLS: Final = ("ip4", "ip6", "dns", "dns4", "dns6")


def host_and_port(address: Multiaddr) -> tuple[str, int]:
    """`/ip4/1.2.3.4/tcp/5` -> ("1.2.3.4", 5). Raises LocalError when it is not a plain TCP address: one host, one port,
    at most one peer, in this order. What decides whether a host may be dialled reads the first."""
    parts = [(protocol.name, value) for protocol, value in address.items()]
    names = [name for name, _ in parts]
    if len(names) < 2 or names[0] not in HOST_PROTOCOLS or names[1:] not in (["tcp"], ["tcp", "p2p"]):
        raise LocalError(f"{address}: only /ip4, /ip6 or /dns with /tcp is supported")
    return str(parts[0][1]), int(str(parts[1][1]))


class BufferedTcpStream(TrioTCPStream):  # type: ignore[misc]
    """A TCP stream whose `read(n)` returns exactly n bytes, or fewer at the end; behind a pre-shared key, if any.

    `wire` counts what passes the socket.
    """

    _cached_remote_address: tuple[str, int] | None

    def __init__(self, stream: trio.SocketStream, wire: WireBytes, psk: PresharedKey | None = None) -> None:
        super().__init__(stream)
        self._wire = wire
        self.veil = None if psk is None else PnetStream(psk)
        self._buffer = bytearray()
        self._reads = 0

    async def read(self, n: int | None = None) -> bytes:
        """Bytes from the buffer, which is filled from the socket as needed. Raises MessageTooLarge."""
        wanted = 1 if n is None else n
        if wanted > MOST_AT_ONCE:
            raise MessageTooLarge(f"{wanted} bytes are announced")
        self._reads += 1
        if self._reads % READS_A_TURN == 0:
            await trio.lowlevel.checkpoint()
        while len(self._buffer) < wanted:
            if not await self._receive():
                if self.veil is not None and not self.veil.answered:
                    raise AdmissionDeniedError("", "the far end hung up at once: it may have another pre-shared key")
                break
            if self.bare:  # it would wait for us, and we for the rest of its nonce
                raise AdmissionDeniedError("", "the far end has no pre-shared key")
        size = len(self._buffer) if n is None else n
        with memoryview(self._buffer) as view, view[:size] as part:
            data = bytes(part)  # a slice of the bytearray itself would be one copy more
        del self._buffer[:size]
        return data

    async def begins_with(self, byte: bytes) -> bool:
        """Whether the first byte is this one. Nothing is taken."""
        if not self._buffer:
            await self._receive()
        return self._buffer.startswith(byte)

    async def is_foreign(self, *openings: bytes) -> bool:
        """Whether what comes first begins none of these, or is libp2p without a key where we have one.

        Nothing is taken. Of one that ends too early it is not known: False.
        """
        while True:
            likely = [each for each in openings if each.startswith(self._buffer[: len(each)])]
            if not likely or self.bare:
                return True
            if any(len(self._buffer) >= len(each) for each in likely):
                return False
            if self.veil is not None and self.veil.answered:
                await self.write(b"")  # our nonce: js and rust callers say nothing before they have it
            if not await self._receive():
                return False

    @property
    def bare(self) -> bool:
        """Whether the far end speaks libp2p where we expect the nonce of a private network."""
        return self.veil is not None and self.veil.came.startswith(MULTISTREAM)

    async def _receive(self) -> bool:
        """Fill the buffer with what there is. False at the end."""
        piece = await super().read(RECEIVE_BYTES)
        self._wire.received += len(piece)
        self._buffer += piece if self.veil is None else self.veil.shown(piece)
        return bool(piece)

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        raw = data if self.veil is None else self.veil.hidden(data)
        self._wire.sent += len(raw)
        await super().write(raw)

    def taken_over(self) -> tuple[trio.SocketStream, bytes]:
        """The socket, and what was read of it and not taken: from now on both are the caller's."""
        left = bytes(self._buffer)
        self._buffer.clear()
        return self.stream, left

    @property
    def peer_name(self) -> tuple[str, int]:
        """Host and port of the far end. Raises OSError once it is gone."""
        host, port = self.stream.socket.getpeername()[:2]
        return str(host), int(port)

    def get_remote_address(self) -> tuple[str, int] | None:
        """Host and port of the far end, also once it is gone; None where nobody has asked before that.

        Stock code knows none of an IPv6 connection, whose address has four parts (trap 24, io/trio.py:104).
        """
        if self._cached_remote_address is None:
            with suppress(OSError):
                self._cached_remote_address = self.peer_name
        return self._cached_remote_address


class OwnPortListener:
    """A libp2p IListener on a port of its own, serving in the nursery that the swarm gives it before `listen`."""

    background_nursery: trio.Nursery

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[None]],
        psk: PresharedKey | None,
        wire: WireBytes,
        kept_ports: KeptPorts,
    ) -> None:
        self._handler = handler
        self._psk = psk
        self._wire = wire
        self._kept_ports = kept_ports
        self._scope = trio.CancelScope()
        self._sockets: list[trio.SocketListener] = []

    async def listen(self, maddr: Multiaddr) -> None:
        """Bind and serve; for port 0 on the port of the last start, if that is free. Raises LocalError, which names the
        port when it is taken."""
        host, port = host_and_port(maddr)
        listener = await self._kept(host) if port == 0 else None
        listener = listener or await _open_listener(host, port)
        if port == 0:
            self._kept_ports.keep(host, listener.socket.getsockname()[1])
        self._sockets.append(listener)
        self.background_nursery.start_soon(self._serve)

    async def _kept(self, host: str) -> trio.SocketListener | None:
        port = self._kept_ports.of(host)
        with suppress(LocalError):
            return await _open_listener(host, port) if port else None
        return None

    async def _serve(self) -> None:
        with self._scope:
            await trio.serve_listeners(self._accepted, self._sockets)

    async def _accepted(self, stream: trio.SocketStream) -> None:
        await self._handler(BufferedTcpStream(stream, self._wire, self._psk))

    def get_addrs(self) -> tuple[Multiaddr, ...]:
        """The addresses bound, with the port that the kernel chose for 0."""
        return tuple(_multiaddr_of(listener.socket) for listener in self._sockets)

    async def close(self) -> None:
        """Stop accepting and free the port; accepted connections are closed with it."""
        self._scope.cancel()
        for listener in self._sockets:
            listener.socket.close()
        self._sockets.clear()


class OwnPortTcp(TCP):  # type: ignore[misc]
    """libp2p's TCP transport over the two classes above. `psk`: of a private network; `wire` counts all bytes."""

    def __init__(self, psk: PresharedKey | None, wire: WireBytes, kept_ports: KeptPorts) -> None:
        super().__init__()
        self._psk = psk
        self._wire = wire
        self._kept_ports = kept_ports

    async def dial(self, maddr: Multiaddr) -> RawConnection:
        """A raw connection; names are resolved by the system, which also knows /etc/hosts."""
        host, port = host_and_port(maddr)
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError as error:
            raise OpenConnectionError(f"cannot reach {host} port {port}") from error
        return RawConnection(BufferedTcpStream(stream, self._wire, self._psk), True)

    def create_listener(self, handler_function: Callable[[Any], Awaitable[None]]) -> OwnPortListener:
        """A listener that hands accepted streams to `handler_function`."""
        return OwnPortListener(handler_function, self._psk, self._wire, self._kept_ports)


async def _open_listener(host: str, port: int) -> trio.SocketListener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        # Only so that a restarted node gets its port back from TIME_WAIT; it does not let two nodes share one.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        with suppress(OSError):  # where a system sets no segment size before a connection, connections work as they did
            # The answer to a dial tells it to the far end, so one end is enough for both directions.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        await listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise LocalError(_why_not(host, port, error)) from error
    return trio.SocketListener(listening)


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program: choose another port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this user has: choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"


def _multiaddr_of(bound: trio.socket.SocketType) -> Multiaddr:
    host, port = bound.getsockname()[:2]
    return Multiaddr(f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}")
