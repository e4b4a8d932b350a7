"""Tables of the libp2p transport that peers which come and go at the right moment could fill: they are bounded."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gossip.core.ids import PeerId
from gossip.reachability.circuit import CircuitMessage
from gossip.reachability.circuit_ends_task import MAX_RELAYS, CircuitEnds
from gossip.transport.base import TransportError
from gossip.transport.libp2p.data_channels import MAX_WITHOUT, REFUSED, RETRY_MIN_S, Channels, Way
from gossip.transport.libp2p.fault_guard import Faults
from gossip.transport.wire_bytes import WireBytes

PEERS = [PeerId(f"peer {number}") for number in range(500)]


def channels_to(open_stream: Callable[[PeerId, str], Awaitable[Any]]) -> Channels:
    async def serve(protocol: str, stream: Any) -> None:
        raise NotImplementedError

    return Channels(
        me=PeerId("me"),
        faults=Faults(),
        open_stream=open_stream,
        serve=serve,
        keeps=lambda peer: True,
        spawn=lambda task: None,
        wire=WireBytes(),
    )


async def test_of_peers_that_leave_while_a_data_connection_is_made_few_are_remembered(autojump_clock: object) -> None:
    async def gone(peer: PeerId, protocol: str) -> Any:
        channels.drop(peer)  # as the transport does, before the attempt has failed
        raise TransportError("it has gone")

    channels = channels_to(gone)
    for peer in PEERS:
        assert await channels.open(peer, "/x") is None
    assert len(channels._without) == MAX_WITHOUT
    assert not channels._making
    assert await channels.open(PEERS[-1], "/x") is None, "it is left alone"


@pytest.mark.parametrize(("answer", "again_after_s"), [(REFUSED, RETRY_MIN_S), (b"", 8 * RETRY_MIN_S)])
async def test_who_refuses_a_data_connection_is_asked_again_after_a_minute_each_time(
    autojump_clock: object, answer: bytes, again_after_s: float
) -> None:
    """It may serve as many as it does for a moment only; after a few such moments it was left alone for an hour."""
    asked: list[float] = []

    async def answered(size: int) -> bytes:
        if not answer:
            raise TransportError("nothing came")
        return answer

    async def opened(peer: PeerId, protocol: str) -> Any:
        asked.append(trio.current_time())
        return SimpleNamespace(send_all=_sent, receive_some=answered, close=_closed), Way(dialled=None)

    channels = channels_to(opened)
    while len(asked) < 5:
        assert await channels.open(PEERS[0], "/x") is None
        await trio.sleep(1)
    assert asked[-1] - asked[-2] == pytest.approx(again_after_s, abs=1)


async def _sent(data: bytes) -> None:
    await trio.lowlevel.checkpoint()


async def _closed() -> None:
    await trio.lowlevel.checkpoint()


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
