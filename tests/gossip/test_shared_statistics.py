"""Class statistics that members share: signed, of one member and one run, for neighbours that ask."""

from functools import partial

import pytest
import trio
from gossip_swarm import swarm, until

from gossip.class_statistics.statement import SharedPayload, check_statistics, sealed_statistics
from gossip.core.envelope import Scope
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import RunId, SwarmId
from gossip.core.limits import MAX_RESPONSE_BYTES, MAX_STATISTICS_BYTES, STATISTICS_PROTOCOL
from gossip.core.messages import Refused, StatisticsRequest, encode_answer, parse_statistics_answer
from gossip.session import ask_once

SCOPE = Scope(swarm=SwarmId(bytes(16)), run=RunId(bytes(16)))


async def test_who_asks_gets_what_its_neighbours_share(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4)
        nodes[1].service.share_statistics(b"of one")
        nodes[2].service.share_statistics(b"of two" * 1000)
        found = await nodes[0].service.neighbours_statistics()
        assert found == {nodes[1].peer: b"of one", nodes[2].peer: b"of two" * 1000}, "the fourth shares none"
        assert await nodes[1].service.neighbours_statistics() == {nodes[2].peer: b"of two" * 1000}, (
            "nor is it asked itself"
        )
        assert not any(node.service.stats.rejected for node in nodes), "nobody is charged"


async def test_a_stranger_is_told_nothing(autojump_clock):
    async with swarm() as it:
        one, _ = await it.start_all(2)
        one.service.share_statistics(b"of one")
        stranger = it.make(9, peers=())
        async with trio.open_nursery() as nursery:
            await nursery.start(stranger.transport.run, stranger.service)
            await stranger.transport.dial(one.address)
            asked = StatisticsRequest()
            raw = await ask_once(
                stranger.transport, one.peer, asked, 10.0, MAX_RESPONSE_BYTES, protocol=STATISTICS_PROTOCOL
            )
            with pytest.raises(Refused):
                parse_statistics_answer(raw)
            nursery.cancel_scope.cancel()


async def test_who_passes_anothers_off_as_its_own_is_charged(autojump_clock):
    async with swarm() as it:
        one, liar, third = await it.start_all(3)
        third.service.share_statistics(b"of the third")
        liar.service._server.statistics = third.service._server.statistics
        charged: list[tuple[object, Reason]] = []
        one.service._context.engine.offence = lambda peer, error, now: charged.append((peer, error.reason))
        assert await one.service.neighbours_statistics() == {third.peer: b"of the third"}
        assert charged == [(liar.peer, Reason.FORGED)]


async def test_silence_costs_the_time_of_a_request(autojump_clock, monkeypatch):
    async with swarm() as it:
        one, silent, third = await it.start_all(3)
        third.service.share_statistics(b"of the third")
        monkeypatch.setattr(silent.service._server, "_statistics", None)
        it.network.cut(one.peer, silent.peer)
        began = trio.current_time()
        assert await one.service.neighbours_statistics() == {third.peer: b"of the third"}
        assert trio.current_time() - began <= one.service._context.config.request_timeout_s + 1
        it.network.heal()
        await until(partial(one.follows, third))


def test_a_statement_is_of_its_signer_its_run_and_its_payload():
    own, other = Identity(bytes(32)), Identity(bytes([1]) * 32)
    shared = sealed_statistics(own, SCOPE, b"payload")
    assert check_statistics(shared, SCOPE, own.peer_id) == b"payload"
    elsewhere = Scope(swarm=SCOPE.swarm, run=RunId(bytes([1]) * 16))
    for wrong, scope, sender, reason in (
        (shared, SCOPE, other.peer_id, Reason.FORGED),
        (shared, elsewhere, own.peer_id, Reason.WRONG_RUN),
        (SharedPayload(shared.envelope, b"another"), SCOPE, own.peer_id, Reason.DIGEST_MISMATCH),
        (SharedPayload(b"junk", b"payload"), SCOPE, own.peer_id, Reason.MALFORMED),
    ):
        with pytest.raises(RemoteError) as refused:
            check_statistics(wrong, scope, sender)
        assert refused.value.reason is reason


def test_what_is_too_large_is_neither_sent_nor_read():
    with pytest.raises(LocalError):
        sealed_statistics(Identity(bytes(32)), SCOPE, bytes(MAX_STATISTICS_BYTES + 1))
    with pytest.raises(RemoteError) as refused:
        parse_statistics_answer(encode_answer(b"envelope", bytes(MAX_STATISTICS_BYTES + 1)))
    assert refused.value.reason is Reason.OVERSIZE
