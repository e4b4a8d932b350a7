"""Requests of strangers are bounded in all, those of neighbours are answered whatever strangers ask."""

import random

import pytest
import trio
from gossip_liars import Liar, join
from gossip_swarm import RUN, all_follow, identity, play, swarm, until

from gossip.core.envelope import Scope
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import CHUNK_BYTES, KIB, MAX_FIND_ANSWER_BYTES
from gossip.core.messages import ChunkRequest, FindRequest, Refused, Request, parse_bytes_answer
from gossip.core.request_limit import (
    MAX_WAIT_S,
    REQUESTS_BURST,
    REQUESTS_PER_S,
    STRANGER_BURST,
    STRANGER_PER_S,
    STRANGERS_BURST,
    STRANGERS_PER_S,
    RequestLimit,
)
from gossip.discovery.dht import named
from gossip.discovery.peerstore import PeerStore
from gossip.discovery.record_exchange import STRANGERS_BURST as RECORDS_BURST
from gossip.discovery.record_exchange import STRANGERS_PER_S as RECORDS_PER_S
from gossip.discovery.record_exchange import RecordExchange
from gossip.session import ask_once, open_session
from gossip.transport.base import TransportError

STRANGERS = 60


def test_strangers_have_one_budget_however_many_they_are():
    budget, granted, refused, seconds, reasons = RequestLimit(), 0, 0, 120, set()
    for tick in range(seconds * 10):
        for number in range(30):  # three hundred keys a second, each new
            try:
                budget.reserve(PeerId(f"{tick} {number}"), tick / 10, known=False)
                granted += 1
            except RemoteError as error:
                reasons.add(error.reason)
                refused += 1
    assert granted <= STRANGERS_BURST + STRANGERS_PER_S * (seconds + MAX_WAIT_S) + 1
    assert refused > granted
    assert reasons == {Reason.UNAVAILABLE}, "no offence"


def test_a_stranger_that_is_refused_has_its_share_when_the_flood_is_over():
    budget, newcomer = RequestLimit(), PeerId("newcomer")
    flooded = 0
    while not flooded:
        try:
            budget.reserve(PeerId(f"{random.random()}"), 0.0, known=False)
        except RemoteError:
            flooded = 3 * STRANGER_BURST
    for _ in range(flooded):
        with pytest.raises(RemoteError):
            budget.reserve(newcomer, 0.0, known=False)
    assert budget.reserve(newcomer, STRANGERS_BURST / STRANGERS_PER_S + MAX_WAIT_S + 1, known=False) == 0.0


def test_no_stranger_waits_longer_than_it_would_bear_and_neighbours_do_not_at_all():
    budget, waits = RequestLimit(), []
    for number in range(2000):
        try:
            waits.append(budget.reserve(PeerId(f"{number}"), 0.0, known=False))
        except RemoteError:
            continue
    assert MAX_WAIT_S < max(waits) <= MAX_WAIT_S + 1 / STRANGERS_PER_S
    for _ in range(REQUESTS_BURST):
        assert budget.reserve(PeerId("neighbour"), 0.0, known=True) == 0.0
    assert budget.reserve(PeerId("neighbour"), 0.0, known=True) == pytest.approx(1 / REQUESTS_PER_S)


def test_one_stranger_cannot_use_up_what_all_of_them_have():
    budget, stranger = RequestLimit(), PeerId("stranger")
    waits = [budget.reserve(stranger, 0.0, known=False) for _ in range(STRANGER_BURST + 5)]
    assert waits[STRANGER_BURST - 1] == 0.0
    assert waits[-1] == pytest.approx(5 / STRANGER_PER_S)
    assert budget.reserve(PeerId("another"), 0.0, known=False) == 0.0


def question(scope: Scope) -> FindRequest:
    target = named(random.Random(1).getrandbits(256))
    return FindRequest(swarm=scope.swarm, run=scope.run, genesis=RUN.genesis, target=target, record=b"")


@pytest.mark.thorough
async def test_a_crowd_of_strangers_is_answered_at_a_pace_and_rounds_go_on(autojump_clock):
    async def ask_for_ever(liar: Liar, node) -> None:
        await liar.transport.dial(node.address)
        while True:
            try:
                await ask_once(
                    liar.transport, node.peer, question(node.service._engine.scope), 10.0, MAX_FIND_ANSWER_BYTES
                )
            except Refused:
                continue
            except (RemoteError, TransportError):
                return

    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(3)
        began = trio.current_time()
        handled = 0
        server = nodes[0].service._server
        grant = server._grant

        async def counting(talk, request: Request) -> bytes:
            nonlocal handled
            handled += talk.peer not in nodes[0].service.neighbour_ids
            return await grant(talk, request)

        server._grant = counting
        for number in range(STRANGERS):
            key = identity(1000 + number)
            liar = Liar(key, it.network.attach(key.peer_id))
            await nursery.start(lambda *, task_status, liar=liar: liar.transport.run(liar, task_status=task_status))
            for _ in range(4):
                nursery.start_soon(ask_for_ever, liar, nodes[0])
        for round_ in range(1, 20):
            (views,) = await play(nodes, [round_])
            assert {view.closed_by for view in views} == {"quorum"}
            await trio.sleep(0.5)
        await until(lambda: all_follow(nodes))
        seconds = trio.current_time() - began
        assert STRANGERS_BURST < handled <= STRANGERS_BURST + STRANGERS_PER_S * (seconds + 1)
        nursery.cancel_scope.cancel()


async def test_chunks_that_carry_nothing_are_paced_like_requests(autojump_clock):
    """A chunk is paced by the link; one of nine bytes, or one that is not here, by nothing else."""
    async with swarm() as it, trio.open_nursery() as nursery:
        (node,) = [await it.start(1)]
        await node.begin(snapshot=random.Random(1).randbytes(CHUNK_BYTES + 9))
        liar = await join(it, nursery, [node])
        base = node.service._engine.publisher.newest
        assert base is not None
        began, asked = trio.current_time(), 4 * REQUESTS_BURST
        async with open_session(liar.transport, node.peer, 10.0) as session:
            for _ in range(asked):
                await session.request(ChunkRequest(address=base.address, index=1))
                assert len(parse_bytes_answer(await session.response(), KIB)) == 9
        assert trio.current_time() - began >= (asked - REQUESTS_BURST) / REQUESTS_PER_S - 0.1
        began = trio.current_time()
        async with open_session(liar.transport, node.peer, 10.0) as session:
            for _ in range(asked):
                await session.request(ChunkRequest(address=base.address, index=0))
                await session.response()
        assert trio.current_time() - began < 1.0, "whole ones are not"
        nursery.cancel_scope.cancel()


def test_new_records_of_strangers_are_bounded_in_all():
    scope = Scope(swarm=b"s" * 32, run=RUN.run_id)  # type: ignore[arg-type]
    neighbour = PeerId("neighbour")
    record_exchange = RecordExchange(PeerStore(), scope, lambda peer, now: True, lambda peer: None, {neighbour})
    seconds, looked_at = 60, 0
    for second in range(seconds):
        for number in range(20):
            looked_at += sum(record_exchange._listens(PeerId(f"{second} {number}"), float(second)) for _ in range(32))
    assert looked_at <= RECORDS_BURST + RECORDS_PER_S * seconds
    assert sum(record_exchange._listens(neighbour, float(seconds)) for _ in range(32)) == 32
