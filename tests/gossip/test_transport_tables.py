"""Tables of the libp2p transport that peers which come and go at the right moment could fill: they are bounded."""

from types import SimpleNamespace
from typing import Any

import trio

from gossip.core.ids import PeerId
from gossip.reachability.circuit import CircuitMessage
from gossip.reachability.circuit_ends_task import MAX_RELAYS, CircuitEnds
from gossip.transport.base import TransportError
from gossip.transport.libp2p.data_channels import MAX_WITHOUT, Channels
from gossip.transport.libp2p.fault_guard import Faults
from gossip.transport.wire_bytes import WireBytes

PEERS = [PeerId(f"peer {number}") for number in range(500)]


async def test_of_peers_that_leave_while_a_data_connection_is_made_few_are_remembered(autojump_clock: object) -> None:
    async def gone(peer: PeerId, protocol: str) -> Any:
        channels.drop(peer)  # as the transport does, before the attempt has failed
        raise TransportError("it has gone")

    async def serve(protocol: str, stream: Any) -> None:
        raise NotImplementedError

    channels = Channels(
        me=PeerId("me"),
        faults=Faults(),
        open_stream=gone,
        serve=serve,
        keeps=lambda peer: True,
        spawn=lambda task: None,
        wire=WireBytes(),
    )
    for peer in PEERS:
        assert await channels.open(peer, "/x") is None
    assert len(channels._without) == MAX_WITHOUT
    assert not channels._making
    assert await channels.open(PEERS[-1], "/x") is None, "it is left alone"


async def test_of_relays_that_leave_while_they_grant_few_are_remembered(autojump_clock: object) -> None:
    async def close() -> None:
        await trio.lowlevel.checkpoint()

    async def granted(relay: PeerId, message: CircuitMessage) -> Any:
        ends.drop(relay)
        reservation = SimpleNamespace(expire=2**40, voucher=None)
        return SimpleNamespace(close=close), SimpleNamespace(reservation=reservation)

    async def never(peer: PeerId, protocol: str) -> Any:
        raise NotImplementedError

    ends = CircuitEnds(SimpleNamespace(), Faults().note, never)  # type: ignore[arg-type]
    ends._asked = granted  # type: ignore[method-assign]
    for relay in PEERS:
        assert await ends.granted_by(relay, PeerId("me")) is not None
    assert len(ends._relays) == MAX_RELAYS
    assert list(ends._relays)[-1] == PEERS[-1]
