"""A private swarm on loopback, and strangers at its door: what they are told, byte by byte."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from hostile_harness import tcp
from libp2p.io.exceptions import IOException
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p_harness import PATIENCE_S, Node, noise, running, until, upgrader_with
from multiaddr import Multiaddr

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.transport.base import TransportError
from gossip.transport.libp2p.member_security import MEMBER_ID
from gossip.transport.libp2p.tcp import BufferedTcpStream
from gossip.transport.pnet import NONCE_BYTES, PresharedKey
from gossip.transport.wire_bytes import WireBytes

GREETING: Final = b"\x13/multistream/1.0.0\n"
NO: Final = b"\x03na\n"
ENDINGS: Final = ("handler", "connection_write")
"""What a member that stops at the end of the test may leave behind: its echo ends in the middle."""


class Roster:
    """What all members of a swarm know: who is no member, and why. `says`: what they tell who is not."""

    def __init__(self) -> None:
        self.struck: dict[PeerId, Reason] = {}
        self.says = b""
        self.asked: list[tuple[PeerId, bytes]] = []
        self.heard: list[tuple[PeerId, bytes]] = []


class Card:
    """An `Admission`: a membership that names its holder, checked against the roster."""

    def __init__(self, roster: Roster) -> None:
        self.holder = PeerId("nobody yet")
        self._roster = roster

    def credentials(self) -> bytes:
        return card_of(self.holder)

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        self._roster.asked.append((peer, credentials))
        if not credentials:
            raise RemoteError(Reason.NO_MEMBER, "it shows nothing")
        if credentials != card_of(peer):
            raise RemoteError(Reason.FORGED, "it is another's")
        if peer in self._roster.struck:
            raise RemoteError(self._roster.struck[peer])

    def explain(self, peer: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        return self._roster.says

    def heard(self, peer: PeerId, said: bytes) -> str:
        self._roster.heard.append((peer, said))
        return f"it does not take us for a member: {said.decode('ascii', 'replace')}"


def card_of(peer: PeerId | str) -> bytes:
    return b"a card of " + str(peer).encode("ascii")


def member(roster: Roster, psk: PresharedKey | None = None, **config: Any) -> Node:
    """A node of the private swarm."""
    card = Card(roster)
    node = Node(admission=card, psk=psk, **config)
    card.holder = node.peer_id
    return node


class Wire:
    """A stranger's socket, for libp2p's client: everything that comes is kept."""

    def __init__(self, stream: BufferedTcpStream) -> None:
        self.stream = stream
        self.came = bytearray()
        self.raw = RawConnection(self, True)

    async def read(self, n: int | None = None) -> bytes:
        data = await self.stream.read(n)
        self.came += data
        return data

    async def write(self, data: bytes) -> None:
        await self.stream.write(data)

    async def close(self) -> None:
        await self.stream.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.stream.get_remote_address()

    async def rest(self) -> bytes:
        """What still comes until the far end hangs up, which it does."""
        said = b""
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    piece = await self.stream.read()
                except (IOException, TransportError):
                    return said
                if not piece:
                    return said
                said += piece


@asynccontextmanager
async def wired(address: str, psk: PresharedKey | None = None, source: str | None = None) -> AsyncIterator[Wire]:
    """A stranger's socket to a node."""
    wire = Wire(BufferedTcpStream(await tcp(address, source), WireBytes(), psk))
    try:
        yield wire
    finally:
        with trio.CancelScope(shield=True):
            await wire.close()


async def proved(wire: Wire, address: str, key: Any = None) -> Any:
    """Noise under the members' name: the stranger's session, in which it has shown nothing yet."""
    upgrader = upgrader_with({MEMBER_ID: key or noise()})
    expected = ID.from_string(str(Multiaddr(address).get_peer_id()))
    with trio.fail_after(PATIENCE_S):
        return await upgrader.upgrade_security(wire.raw, True, expected)


def framed(credentials: bytes) -> bytes:
    return len(credentials).to_bytes(2, "big") + credentials


@asynccontextmanager
async def besieged(victim: Node, roster: Roster, psk: PresharedKey | None = None) -> AsyncIterator[None]:
    """While the block tries the door, and after it, a member connects and exchanges; no stranger becomes a peer."""
    friend, later = member(roster, psk), member(roster, psk)
    async with running(victim, friend, later):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_visit, friend, victim)
            yield
        await _visit(later, victim)
        assert victim.transport.peers == {friend.peer_id, later.peer_id}
        assert {peer for _, peer in victim.log} == victim.transport.peers
        assert not victim.messages


async def _visit(friend: Node, victim: Node) -> None:
    with trio.fail_after(PATIENCE_S):
        await friend.transport.dial(victim.address)
        assert await friend.echo(victim.peer_id, b"among us") == b"among us"


async def counted(node: Node, kind: str, times: int = 1) -> None:
    """Wait until this was counted so often, and nothing else was of those who are no member."""
    await until(lambda: node.transport.drops[kind] >= times)
    seen = {name: count for name, count in node.transport.drops.items() if count and name not in ENDINGS}
    assert seen == {kind: times}, seen


@asynccontextmanager
async def tapped(address: str) -> AsyncIterator[tuple[str, bytearray]]:
    """Another address of the node, and all bytes that pass there, both ways; the first of a connection one by one."""
    heard = bytearray()

    async def serve(near: trio.SocketStream) -> None:
        async with await tcp(address) as far, trio.open_nursery() as nursery:
            nursery.start_soon(_carry, near, far, heard, nursery.cancel_scope.cancel)
            nursery.start_soon(_carry, far, near, heard, nursery.cancel_scope.cancel)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(lambda *, task_status: _listen(serve, task_status))
        port = listeners[0].socket.getsockname()[1]
        yield f"/ip4/127.0.0.1/tcp/{port}/p2p/{Multiaddr(address).get_peer_id()}", heard
        nursery.cancel_scope.cancel()


async def _listen(serve: Callable[[trio.SocketStream], Awaitable[None]], task_status: Any) -> None:
    await trio.serve_tcp(serve, 0, host="127.0.0.1", task_status=task_status)


async def _carry(source: Any, sink: Any, heard: bytearray, over: Callable[[], None]) -> None:
    single = 2 * NONCE_BYTES
    try:
        while data := await source.receive_some(65536):
            heard.extend(data)
            while data and single:
                await sink.send_all(data[:1])
                data, single = data[1:], single - 1
                await trio.lowlevel.checkpoint()
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    over()
