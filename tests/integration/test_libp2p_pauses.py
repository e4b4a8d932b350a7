"""Pauses over real sockets: they arrive, and a release that knows nothing of them minds none."""

import pytest
import trio
from libp2p_harness import PATIENCE_S, until
from members_harness import Member, living

from gossip.core.limits import KIB, PAUSE_PROTOCOL
from gossip.session import ask_once
from gossip.transport.base import TransportError
from gossip.transport.libp2p import host


async def met(one: Member, other: Member) -> None:
    for each in (one, other):
        await each.service.begin_epoch(epoch=1, round=0, snapshot=None)
    await one.transport.dial(other.address)
    await until(lambda: one.follows(other) and other.follows(one))


async def test_a_neighbour_hears_of_a_pause() -> None:
    one, other = Member(1, quorum=1.0), Member(2, quorum=1.0)
    async with living(one, other) as nursery:
        await met(one, other)
        nursery.start_soon(one.service.say_paused, lambda: 3600.0)
        await until(lambda: other.service._engine.paused(1, trio.current_time()) == {one.transport.peer_id})
        assert (await other.service.close_round(1, at_most_s=PATIENCE_S)).closed_by == "alone"
        assert not one.service.stats.rejected
        assert not other.service.stats.rejected


async def test_a_release_that_does_not_know_of_pauses_charges_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tuple(protocol for protocol in host.OTHER_PROTOCOLS if protocol != PAUSE_PROTOCOL)
    monkeypatch.setattr(host, "OTHER_PROTOCOLS", known)
    one, other = Member(1), Member(2)
    async with living(one, other) as nursery:
        await met(one, other)
        word = one.service._engine.pause_after(None)
        assert word is not None
        with pytest.raises(TransportError):
            await ask_once(one.transport, other.transport.peer_id, word, PATIENCE_S, KIB, protocol=PAUSE_PROTOCOL)
        nursery.start_soon(one.service.say_paused, lambda: 3600.0)
        await trio.sleep(0.5)
        assert not other.service._engine.paused(1, trio.current_time())
        assert one.follows(other)
        assert other.follows(one)
        assert not one.service.stats.rejected
        assert not other.service.stats.rejected
        assert not sum(other.service.drops().values())
