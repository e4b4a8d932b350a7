"""Who is sent away is gone at once: its streams, its connections for bulk, and those that are just being made."""

from contextlib import suppress
from typing import Any

import pytest
import trio
from libp2p_harness import ECHO, HOLD, Node, receive_exactly, running, until
from private_harness import Roster, member

from gossip.core.errors import Reason
from gossip.transport.base import Stream, TransportError
from gossip.transport.libp2p import data_channels
from gossip.transport.libp2p.data_link import DataStream, RecordKind
from gossip.transport.libp2p.yamux import SteadyYamux

PROMPT_S = 8.0
"""Sooner than a silent peer is given up: 20 s."""
OPENING_S = 60.0


async def pair(roster: Roster, one: Node, other: Node) -> None:
    await one.transport.dial(other.address)
    await until(lambda: one.peer_id in other.transport.peers)


@pytest.mark.parametrize("turned", [False, True], ids=["dialler", "listener"])
async def test_one_that_is_revoked_loses_all_that_it_has_and_stays_out(turned: bool) -> None:
    roster = Roster()
    a, b = member(roster), member(roster)
    async with running(a, b):
        await pair(roster, a, b)
        here, gone = (b, a) if turned else (a, b)
        data = await gone.transport.open_stream(here.peer_id, HOLD, bulk=True)
        assert isinstance(data, DataStream)
        plain = await gone.transport.open_stream(here.peer_id, ECHO)
        await plain.send_all(b"x")
        assert await plain.receive_some(1) == b"x"
        roster.struck[gone.peer_id] = Reason.REVOKED
        with trio.fail_after(PROMPT_S):
            await here.transport.disconnect(gone.peer_id)
            for stream in (data, plain):
                with pytest.raises(TransportError):
                    await receive_exactly(stream, 1)
        await until(lambda: not (a.transport.peers or b.transport.peers))
        for one, other in ((gone, here), (here, gone)):
            with pytest.raises(TransportError):
                await one.transport.dial(other.address)
        await until(lambda: here.transport.drops["refused_revoked"] == 2)
        assert (a.transport.peers, b.transport.peers) == (frozenset(), frozenset())
        here.release.set()


async def test_bulk_is_cut_before_anything_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that stands still may keep a goodbye waiting; what it is sent over another connection must not go on."""
    roster = Roster()
    here, gone = member(roster), member(roster)
    closing = trio.Event()

    async def for_ever(muxed: SteadyYamux, error_code: int = 0) -> None:
        closing.set()
        await trio.sleep_forever()

    async with running(here, gone):
        await pair(roster, gone, here)
        data = await here.transport.open_stream(gone.peer_id, HOLD, bulk=True)
        assert isinstance(data, DataStream)
        with monkeypatch.context() as patch, trio.fail_after(PROMPT_S):
            patch.setattr(SteadyYamux, "close", for_ever)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(here.transport.disconnect, gone.peer_id)
                await closing.wait()
                with pytest.raises(TransportError):
                    await data.send_all(b"x")
                nursery.cancel_scope.cancel()
        gone.release.set()


@pytest.mark.parametrize("asks", [True, False], ids=["asked for", "granted"])
async def test_one_that_is_being_made_comes_to_nothing(asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agreed on and not yet here: the token must be good for nothing from now on, whenever it is shown."""
    roster = Roster()
    here, gone = member(roster), member(roster)
    agreed = trio.Event()

    async def never(channels: Any, *what: Any) -> Any:
        agreed.set()
        await trio.sleep_forever()

    async def bulk(node: Node, to: Node) -> None:
        with suppress(TransportError):
            stream = await node.transport.open_stream(to.peer_id, ECHO, bulk=True)
            await stream.reset()

    monkeypatch.setattr(data_channels.Channels, "_dialled", never)
    monkeypatch.setattr(data_channels, "OPEN_S", OPENING_S)
    async with running(here, gone):
        await pair(roster, gone, here)  # so `gone` is to dial the second one too
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bulk, *((here, gone) if asks else (gone, here)))
            await agreed.wait()
            await until(lambda: len(here.transport._channels._expected) == 1)
            with trio.fail_after(OPENING_S / 2):  # sooner than it is given up by itself
                await here.transport.disconnect(gone.peer_id)
                await until(lambda: not here.transport._channels._expected)
            assert not here.transport._channels._links
            nursery.cancel_scope.cancel()


async def test_a_bulk_stream_of_one_that_was_sent_away_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    roster = Roster()
    here, gone = member(roster), member(roster)
    served: list[str] = []

    async def serve(protocol: str, stream: Stream) -> None:
        served.append(protocol)

    async with running(here, gone):
        await pair(roster, gone, here)
        first = await gone.transport.open_stream(here.peer_id, ECHO, bulk=True)
        await first.close()
        await until(lambda: any(gone.transport._channels._idle.values()))
        monkeypatch.setattr(here, "handle_stream", serve)
        idle = gone.transport._channels._idle[here.peer_id][0]
        await here.transport.disconnect(gone.peer_id)
        with suppress(TransportError):
            await idle.send(RecordKind.OPEN, ECHO.encode())
        with trio.fail_after(PROMPT_S), suppress(TransportError):
            assert await idle.receive() is None
        assert not served
