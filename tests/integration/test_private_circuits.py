"""Circuits of a private network with a pre-shared key: between two hops that have it, and behind it end to end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from libp2p_harness import PATIENCE_S, Node, running, until
from private_harness import Roster, member

from gossip.core.errors import Reason
from gossip.reachability.delimited_task import receive_message
from gossip.transport.base import MAX_EXPLANATION, TransportError
from gossip.transport.pnet import PresharedKey

KEY, OTHER = PresharedKey(b"k" * 32), PresharedKey(b"K" * 32)
PIPE = "/p2ptrain/1/pipe"


class Circuit:
    """From `near` to `far` through a member that carries it, and keeps all that passes."""

    def __init__(self) -> None:
        self.near_knows, self.far_knows = Roster(), Roster()
        self.near, self.relay = member(self.near_knows, KEY), member(Roster(), KEY)
        self.far = member(self.far_knows, KEY)
        self.carried = bytearray()
        self.error = ""

    async def carry(self, protocol: str, stream: Any) -> None:
        onward = await self.relay.transport.open_stream(self.far.peer_id, protocol)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pipe, stream, onward)
            nursery.start_soon(self._pipe, onward, stream)

    async def _pipe(self, source: Any, sink: Any) -> None:
        try:
            while data := await source.receive_some(65536):
                self.carried += data
                await sink.send_all(data)
        except TransportError:
            await sink.reset()

    async def take(self, protocol: str, stream: Any) -> None:
        """As where a relay has somebody for us."""
        try:
            await self.far.transport._circuits._take(stream, self.near.peer_id)
        except TransportError as error:
            self.error = str(error)

    async def dial(self) -> None:
        circuits = self.near.transport._circuits
        stream = await self.near.transport.open_stream(self.relay.peer_id, PIPE)
        assert await receive_message(stream, PATIENCE_S)  # that the far end takes the circuit
        await circuits._add(await circuits._upgraded(stream, self.far.peer_id, dials=True), None)


@asynccontextmanager
async def circuit() -> AsyncIterator[Circuit]:
    it = Circuit()
    it.relay.handle_stream, plain = it.carry, it.far.handle_stream  # type: ignore[method-assign]

    async def either(protocol: str, stream: Any) -> None:
        await (it.take if protocol == PIPE else plain)(protocol, stream)

    it.far.handle_stream = either  # type: ignore[method-assign]
    async with running(it.near, it.relay, it.far):
        await it.relay.transport.dial(it.far.address)
        await it.near.transport.dial(it.relay.address)
        await until(lambda: it.relay.transport.peers == {it.near.peer_id, it.far.peer_id})
        await until(lambda: knows(it.near, it.relay) and knows(it.far, it.relay))
        yield it


def knows(one: Node, other: Node) -> bool:
    return other.peer_id in one.transport.peers


async def test_nothing_of_what_a_relay_carries_shows_even_to_it() -> None:
    async with circuit() as it:
        with trio.fail_after(PATIENCE_S):
            await it.dial()
            await until(lambda: knows(it.far, it.near))
            assert await it.near.echo(it.far.peer_id, b"in words" * 1000) == b"in words" * 1000
            assert await it.far.echo(it.near.peer_id, b"and back") == b"and back"
        assert len(it.carried) > 16_000
        for plain in (b"multistream", b"/yamux", b"/p2ptrain", b"/noise", it.near.peer_id.encode(), bytes(8)):
            assert plain not in it.carried


@pytest.mark.parametrize("psk", [OTHER, None], ids=["another key", "none"])
@pytest.mark.parametrize("turned", [False, True], ids=["dialler", "listener"])
async def test_an_end_without_the_key_comes_through_to_nobody(psk: PresharedKey | None, turned: bool) -> None:
    """It reached the relay by a key that the relay's program passed on; the far end has its own."""
    async with circuit() as it:
        (it.far if turned else it.near).transport._circuits.port.psk = psk
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError):
            await it.dial()
        await until(lambda: it.error != "")
        assert not knows(it.far, it.near)
        assert not knows(it.near, it.far)
        assert it.near.peer_id not in {peer for peer, _ in it.far_knows.asked}, (
            "its membership was not even asked about"
        )
        assert it.far.peer_id not in {peer for peer, _ in it.near_knows.asked}


async def test_the_key_and_a_relay_that_lets_it_pass_make_no_member() -> None:
    """Admission is asked at the ends: what the relay knows of who is revoked does not matter."""
    async with circuit() as it:
        it.far_knows.struck = {it.near.peer_id: Reason.REVOKED}  # of which the relay has not heard
        it.far_knows.says = b"x" * MAX_EXPLANATION
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError, match=f"a member: x{{{MAX_EXPLANATION}}}$"):
            await it.dial()
        await until(lambda: it.error != "")
        assert it.error == "it was refused: revoked"
        await until(lambda: it.far.transport.drops["refused_revoked"] == 1)
        assert not knows(it.far, it.near)


async def test_who_dials_through_a_relay_tells_why_it_refuses() -> None:
    async with circuit() as it:
        it.near_knows.struck, it.near_knows.says = {it.far.peer_id: Reason.REVOKED}, b"x" * MAX_EXPLANATION
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError, match="it was refused: revoked"):
            await it.dial()
        assert it.far_knows.heard == [(it.near.peer_id, it.near_knows.says)]
        await until(lambda: it.error == f"it does not take us for a member: {'x' * MAX_EXPLANATION}")
        assert not knows(it.far, it.near)


async def test_no_hop_of_a_circuit_is_without_the_key() -> None:
    """Who has not the key opens no connection to a relay, and so no stream on which to ask for a circuit."""
    roster = Roster()
    relay, stranger = member(roster, KEY), member(roster, None)
    async with running(relay, stranger):
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError):
            await stranger.transport.dial(relay.address)
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError):
            await relay.transport.dial(stranger.address)
        await until(lambda: relay.transport.drops["refused_psk"] == 1)
        assert not relay.transport.peers
