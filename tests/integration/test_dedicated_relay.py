"""A dedicated relay over real libp2p: a client that dials nobody else reaches members that know nothing of relays."""

import random

import pytest
import trio
from libp2p_harness import Node, running, until

from gossip.core.config import GossipConfig
from gossip.core.identity import Identity
from gossip.relay_service import RelayService, dialled_outside
from gossip.transport.base import TransportError
from gossip.transport.connection_limits import ConnectionBounds
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from gossip.transport.pnet import PresharedKey

pytestmark = pytest.mark.paired

HERE = "127.0.0.0/8"


class Login:
    """A relay on loopback, whose clients may be there, too."""

    def __init__(self, *members: Node, psk: PresharedKey | None = None, allow: tuple[str, ...] = (HERE,)) -> None:
        identity = Identity.generate()
        self.transport = Libp2pTransport(Libp2pConfig(bounds=ConnectionBounds(allow=allow)), identity.seed, psk=psk)
        self.warned: list[str] = []
        self.service = RelayService(
            identity=identity,
            transport=self.transport,
            config=GossipConfig(peers=tuple(member.address for member in members), relay_bytes_per_s=1e9),
            rng=random.Random(1),
            warn=self.warned.append,
            connect=self.transport.connect_bare,
            outside=dialled_outside(allow, ()),
        )

    @property
    def address(self) -> str:
        return self.transport.addresses[0]


@pytest.mark.parametrize("psk", [None, PresharedKey(bytes(range(32)))], ids=["open", "psk"])
async def test_a_client_reaches_a_member_that_sees_an_ordinary_caller(psk: PresharedKey | None) -> None:
    member = Node(psk=psk)
    async with running(member), trio.open_nursery() as nursery:
        login = Login(member, psk=psk)
        await nursery.start(login.service.run)
        client = Node(listen=(), via=login.address, psk=psk)
        await nursery.start(client.transport.run, client)
        await client.transport.dial(login.address)
        assert await client.transport.dial(member.address) == member.peer_id
        assert await client.echo(member.peer_id, bytes(300_000)) == bytes(300_000)
        assert await member.echo(client.transport.peer_id) == b"hello"
        assert client.transport.addresses == ()
        assert client.transport.address_at(member.peer_id, 1) is None, "it knows the way through the relay alone"
        assert member.transport.dialled_us(client.peer_id)
        assert login.service.relaying().circuits == 1
        await until(lambda: login.service.relaying().carried_bytes > 600_000)
        await client.transport.disconnect(member.peer_id)
        await until(lambda: not login.service.relaying().circuits)
        nursery.cancel_scope.cancel()


async def test_nobody_else_uses_it() -> None:
    """Callers from elsewhere, members outside, and clients that name somebody whom the relay does not know."""
    member, stranger = Node(), Node()
    async with running(member, stranger), trio.open_nursery() as nursery:
        login, shut = Login(member), Login(member, allow=("10.0.0.0/8",))
        for each in (login, shut):
            await nursery.start(each.service.run)
        with pytest.raises(TransportError):
            await stranger.transport.dial(shut.address)
        assert shut.transport.drops["refused_address"] == 1

        await login.transport.dial(member.address)
        ask = member.transport._circuits
        with pytest.raises(TransportError, match="permission_denied"):
            await ask.dial(login.transport.peer_id, stranger.peer_id)

        client = Node(listen=(), via=login.address)
        await nursery.start(client.transport.run, client)
        await client.transport.dial(login.address)
        with pytest.raises(TransportError, match="no_reservation"):
            await client.transport.dial(stranger.address)
        nursery.cancel_scope.cancel()


async def test_a_relay_that_joins_another_member_than_asked_for_is_found_out() -> None:
    member, other = Node(), Node()
    async with running(member, other), trio.open_nursery() as nursery:
        login = Login(member)
        login.service._state._by_operator = {member.peer_id: other.address}
        await nursery.start(login.service.run)
        client = Node(listen=(), via=login.address)
        await nursery.start(client.transport.run, client)
        await client.transport.dial(login.address)
        with pytest.raises(TransportError):
            await client.transport.dial(member.address)
        assert client.transport.peers == {login.transport.peer_id}
        nursery.cancel_scope.cancel()
