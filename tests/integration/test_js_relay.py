"""Stock js-libp2p at each place of a circuit, and ours at the others: as the relay, the source and the far end.

Between transports: a node as a whole relays for its neighbours alone, which a js peer is not. Skipped where Node.js or
its packages are missing: `make interop` fetches those.
"""

import time
from functools import partial
from typing import Any

import pytest
import trio
from js_harness import Peer, missing
from libp2p_harness import Node, running, until

from gossip.core.errors import RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.reachability.circuit import HOP_PROTOCOL
from gossip.reachability.relay import LEAST_RESERVATION_S, Circuits, circuit_address
from gossip.reachability.relay_task import Relay
from gossip.transport.base import Stream

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

DATA = bytes(300_000)
"""More than a window of yamux, and than what js-libp2p's relay grants by default."""


class Relaying(Node):
    """A node that relays for whoever asks."""

    def __init__(self) -> None:
        identity = Identity.generate()
        super().__init__(seed=identity.seed)
        self.charged: list[tuple[PeerId, RemoteError]] = []
        self.relay = Relay(
            transport=self.transport,
            identity=identity,
            circuits=Circuits(64e6),
            serves=lambda peer: True,
            addresses=lambda: self.transport.addresses,
            offence=lambda peer, error: self.charged.append((peer, error)),
            unix_time=time.time,
        )

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        await (
            self.relay.handle_stream(stream) if protocol == HOP_PROTOCOL else super().handle_stream(protocol, stream)
        )


async def hears(peer: Peer, event: str) -> dict[str, Any]:
    return await trio.to_thread.run_sync(partial(peer.hear, event), abandon_on_cancel=True)


async def test_its_relay_joins_two_of_ours() -> None:
    one, other = Node(), Node()
    with Peer("relay_peer.mjs", "relay") as peer:
        ready = await hears(peer, "ready")
        async with running(one, other):
            for node in (one, other):
                await node.transport.dial(ready["addresses"][0])
            grant = await one.transport.relayed_by(ready["me"])  # and its voucher is its own
            assert grant is not None
            assert grant.lasts_s > LEAST_RESERVATION_S
            await other.transport.dial(f"{ready['addresses'][0]}/p2p-circuit/p2p/{one.peer_id}")
            assert await other.echo(one.peer_id, DATA) == DATA
            assert await one.echo(other.peer_id) == b"hello"
            assert one.transport.address_at(other.peer_id, 1) is None, "nothing is known but the way through the relay"


async def test_it_dials_one_of_ours_through_one_of_ours() -> None:
    relay, node = Relaying(), Node()
    async with running(relay, node):
        await node.transport.dial(relay.address)
        grant = await node.transport.relayed_by(relay.peer_id)
        assert grant is not None
        assert grant.address == circuit_address(relay.peer_id, node.peer_id)
        address = f"{relay.address}/p2p-circuit/p2p/{node.peer_id}"
        with Peer("relay_peer.mjs", "dial", address) as peer:
            connected = await hears(peer, "connected")
            assert (connected["peer"], connected["limits"]) == (node.peer_id, None)
            assert (await hears(peer, "pinged"))["same"]
            await hears(peer, "subscribed")
            assert len(relay.relay.circuits) == 1
            assert relay.relay.circuits.carried > 0
        await until(lambda: not len(relay.relay.circuits))
    assert relay.charged == []


async def test_it_reserves_with_one_of_ours_and_is_dialled_through_it() -> None:
    relay, node = Relaying(), Node()
    async with running(relay, node):
        with Peer("relay_peer.mjs", "listen", relay.address) as peer:
            ready = await hears(peer, "ready")
            address = f"{relay.address}/p2p-circuit/p2p/{ready['me']}"
            assert address in ready["addresses"]
            await node.transport.dial(relay.address)
            await node.transport.dial(address)
            assert await node.echo(ready["me"], DATA) == DATA
        await until(lambda: ready["me"] not in node.transport.peers)
    assert relay.charged == []
