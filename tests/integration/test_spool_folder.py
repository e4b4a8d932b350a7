"""A relay that is reached by a folder alone, over real libp2p: files in a folder take the place of sockets."""

import random
from pathlib import Path

import pytest
import trio
from libp2p_harness import Node, running

from gossip.core.config import GossipConfig
from gossip.core.identity import Identity
from gossip.relay_service import RelayService, dialled_outside
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from gossip.transport.pnet import PresharedKey
from gossip.transport.spool.spool_ends import spool_address

pytestmark = pytest.mark.paired


class Spooled:
    """A relay that listens nowhere, and serves a folder."""

    def __init__(self, folder: Path, *members: Node, psk: PresharedKey | None = None) -> None:
        identity = Identity.generate()
        self.transport = Libp2pTransport(Libp2pConfig(listen=(), spool=folder), identity.seed, psk=psk)
        self.service = RelayService(
            identity=identity,
            transport=self.transport,
            config=GossipConfig(peers=tuple(member.address for member in members), relay_bytes_per_s=1e9),
            rng=random.Random(1),
            warn=print,
            connect=self.transport.connect_bare,
            outside=dialled_outside((), ()),
        )

    @property
    def address(self) -> str:
        return spool_address(self.transport.peer_id)


@pytest.mark.parametrize("psk", [None, PresharedKey(bytes(range(32)))], ids=["open", "psk"])
async def test_a_node_without_any_network_reaches_a_member(tmp_path: Path, psk: PresharedKey | None) -> None:
    member, folder = Node(psk=psk), tmp_path / "spool"
    async with running(member), trio.open_nursery() as nursery:
        login = Spooled(folder, member, psk=psk)
        await nursery.start(login.service.run)
        client = Node(listen=(), via=login.address, spool=folder, psk=psk)
        await nursery.start(client.transport.run, client)
        await client.transport.dial(login.address)
        assert login.service.clients() == 1
        assert await client.transport.dial(member.address) == member.peer_id
        assert await client.echo(member.peer_id, bytes(3_000_000)) == bytes(3_000_000)
        assert await member.echo(client.transport.peer_id) == b"hello"
        await client.transport.disconnect(login.transport.peer_id)
        with trio.fail_after(5):
            while {path.name for path in folder.iterdir()} != {"relay"}:  # noqa: ASYNC110  # the disk tells nobody
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert list(folder.iterdir()) == []
