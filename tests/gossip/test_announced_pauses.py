"""Neighbours that say that they are paused: nobody waits for them, and nothing else changes."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import trio
from gossip_swarm import FakeRuntime, play, swarm, until
from hypothesis import given
from hypothesis import strategies as st
from sizes import thorough_but

from gossip import telling_task
from gossip.allreduce.allreduce import AllReduce, Group
from gossip.core.envelope import seal
from gossip.core.errors import Reason
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import KIB, PAUSE_PROTOCOL
from gossip.core.messages import PauseRequest, Refused, parse_empty_answer
from gossip.core.statements import Part, SnapshotOffer, Stage, parse_snapshot_offer, snapshot_offer_statement
from gossip.session import ask_once
from gossip.transport.base import TransportError
from gossip.updates.announced_pauses import MAX_SAID_S, WORD_S, pause_request
from gossip.updates.pauses_task import REPEAT_S, RETRY_S
from gossip.updates.standing import standing
from p2ptrain.sync.fault_tolerance import FaultTolerance

LONG_S = 3600.0
KNOWN_SOON_S = 0.5
ALL = {"quorum": 1.0, "initial_deadline_s": 30.0}


def word_of(node: FakeRuntime, seconds: float | None = None) -> PauseRequest:
    word = node.service._engine.pause_after(seconds)
    assert word is not None
    return word


async def say(node: FakeRuntime, other: FakeRuntime, word: PauseRequest) -> None:
    parse_empty_answer(await ask_once(node.transport, other.peer, word, 10.0, KIB, protocol=PAUSE_PROTOCOL))


async def close(node: FakeRuntime, round_: int) -> tuple[str, float]:
    view = await node.service.close_round(round_, at_most_s=30.0)
    return view.closed_by, view.seconds


async def test_who_says_that_it_is_paused_is_not_waited_for(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4, **ALL)
        await play(nodes, range(1, 3))
        await until(lambda: all(node.follows(other) for node in nodes for other in nodes if node is not other))
        present, paused = nodes[:3], nodes[3]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(paused.service.say_paused, lambda: LONG_S)
            await trio.sleep(KNOWN_SOON_S)
            views = [view for row in await play(present, range(3, 6)) for view in row]
            assert {view.closed_by for view in views} == {"quorum"}
            assert max(view.seconds for view in views) < 1.0
            assert all(paused.peer in view.staleness for view in views), "it belongs to their rounds as before"
            nursery.cancel_scope.cancel()
        await paused.publish(3)
        await trio.sleep(KNOWN_SOON_S)
        (row,) = await play(present, [6])
        assert {view.closed_by for view in row} == {"deadline"}, "an update ends its pause"


async def test_the_swarms_round_is_that_of_those_awake_where_most_are_paused(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(6, **ALL)
        await play(nodes, range(1, 3))
        await until(lambda: all(nodes[0].follows(other) for other in nodes[1:]))
        awake, paused = nodes[1:3], nodes[3:]
        async with trio.open_nursery() as nursery:
            for node in paused:
                nursery.start_soon(node.service.say_paused, lambda: LONG_S)
            await trio.sleep(KNOWN_SOON_S)
            for round_ in range(3, 12):
                await awake[0].publish(round_)
            await trio.sleep(KNOWN_SOON_S)
            assert nodes[0].service.swarm_round() == 2, "one is as many as may lie"
            for round_ in range(3, 11):
                await awake[1].publish(round_)
            await trio.sleep(KNOWN_SOON_S)
            assert nodes[0].service.swarm_round() == 10
            nursery.cancel_scope.cancel()


async def test_without_a_word_the_others_wait(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4, **ALL)
        (row,) = await play(nodes[:3], [1])
        assert {view.closed_by for view in row} == {"deadline"}


async def test_while_all_others_are_paused_nothing_is_waited_for(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3, **ALL)
        async with trio.open_nursery() as nursery:
            for node in nodes[1:]:
                nursery.start_soon(node.service.say_paused, lambda: None)
            await trio.sleep(KNOWN_SOON_S)
            await nodes[0].publish(1)
            assert await close(nodes[0], 1) == ("alone", 0.0)
            for round_ in range(2, 12):
                await nodes[0].publish(round_)
                assert await close(nodes[0], round_) == ("alone", 0.0), "also of neighbours that are too stale by now"
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("seconds", "counts_s"),
    thorough_but({(20, 20.0), (1 << 50, WORD_S)}, [(20, 20.0), (0, WORD_S), (MAX_SAID_S, WORD_S), (1 << 50, WORD_S)]),
)
async def test_a_word_counts_until_its_time_is_over_and_never_for_long(autojump_clock, seconds, counts_s):
    async with swarm() as it:
        one, other = await it.start_all(2, **ALL)
        await say(other, one, PauseRequest(link=word_of(other).link, seconds=seconds))
        said_at = trio.current_time()
        told = pytest.approx(min(seconds, MAX_SAID_S), abs=1.0) if seconds else None
        assert one.service.paused_neighbours() == {other.peer: told}
        await one.publish(1)
        await trio.sleep_until(said_at + counts_s - 1.0)
        assert await close(one, 1) == ("alone", 0.0)
        await trio.sleep_until(said_at + counts_s + 1.0)
        assert (await close(one, 1))[0] == "deadline"


async def test_a_long_pause_is_said_again_before_the_word_ends(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2, **ALL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.service.say_paused, lambda: None)
            await one.publish(1)
            for _ in range(8):
                await trio.sleep(REPEAT_S)
                assert await close(one, 1) == ("alone", 0.0)
            nursery.cancel_scope.cancel()


async def test_people_are_told_who_is_paused_and_until_when_it_says(autojump_clock):
    async with swarm() as it:
        one, known, unknown, absurd = await it.start_all(4, **ALL)
        assert one.service.paused_neighbours() == {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.service.say_paused, lambda: 5 * LONG_S)
            nursery.start_soon(unknown.service.say_paused, lambda: None)
            nursery.start_soon(absurd.service.say_paused, lambda: 1e12)
            await trio.sleep(KNOWN_SOON_S)
            told = one.service.paused_neighbours()
            assert told == {
                known.peer: pytest.approx(5 * LONG_S, abs=KNOWN_SOON_S + 1.0),
                unknown.peer: None,
                absurd.peer: pytest.approx(MAX_SAID_S, abs=KNOWN_SOON_S + 1.0),
            }
            nursery.cancel_scope.cancel()
        await known.publish(1)
        await trio.sleep(KNOWN_SOON_S)
        assert known.peer not in one.service.paused_neighbours(), "an update ends its pause"


async def test_a_new_neighbour_is_told_as_well(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(2, **ALL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nodes[1].service.say_paused, lambda: None)
            await trio.sleep(60.0)
            late = await it.start(9, peers=tuple(node.address for node in nodes), **ALL)
            await late.begin()
            await until(lambda: len(late.service.neighbours()) == 2)
            await until(lambda: late.service._engine.paused(1, trio.current_time()) == {nodes[1].peer}, timeout_s=1.0)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seconds", thorough_but({30.0}, [2.0, 30.0, 100.0]))
async def test_a_pause_that_is_longer_than_was_said_is_said_again_before_the_word_ends(autojump_clock, seconds):
    async with swarm() as it:
        one, other = await it.start_all(2, **ALL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.service.say_paused, lambda: seconds)
            await trio.sleep(KNOWN_SOON_S)
            gaps = 0
            for _ in range(600):
                await trio.sleep(1.0)
                gaps += not one.service._engine.paused(1, trio.current_time())
            nursery.cancel_scope.cancel()
        assert gaps == 0


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(TransportError("no way"), marks=pytest.mark.thorough),
        Refused(Reason.UNAVAILABLE, "no neighbour yet"),
    ],
)
async def test_a_telling_that_fails_is_tried_again_soon_and_then_less_often(autojump_clock, monkeypatch, error):
    tried: list[float] = []

    async def fail(*args: object, **how: object) -> bytes:
        tried.append(trio.current_time())
        raise error

    async with swarm() as it:
        one, other = await it.start_all(2, **ALL)
        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as broken:
                broken.setattr(telling_task, "ask_once", fail)
                nursery.start_soon(other.service.say_paused, lambda: None)
                await trio.sleep(1800.0)
                waits = [after - before for before, after in pairwise(tried)]
                assert waits[:6] == pytest.approx([RETRY_S * 2**count for count in range(6)])
                assert max(waits) == pytest.approx(REPEAT_S)
            await until(lambda: bool(one.service._engine.paused(1, trio.current_time())), timeout_s=REPEAT_S + 1.0)
            nursery.cancel_scope.cancel()


async def test_who_was_lost_and_is_back_is_told_anew_and_believed_no_old_word(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2, **ALL)

        async def part_and_meet() -> None:
            it.network.cut(one.peer, other.peer)
            await until(lambda: not one.service.neighbours() and not other.service.neighbours())
            it.network.heal()
            await one.transport.dial(other.address)
            await until(lambda: one.follows(other) and bool(other.service.neighbours()))

        await say(other, one, word_of(other))
        await part_and_meet()
        assert not one.service._engine.paused(1, trio.current_time()), "it did not say so this time"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.service.say_paused, lambda: None)
            await until(lambda: bool(one.service._engine.paused(1, trio.current_time())), timeout_s=1.0)
            await part_and_meet()
            await until(lambda: bool(one.service._engine.paused(1, trio.current_time())), timeout_s=10.0)
            nursery.cancel_scope.cancel()


async def test_who_is_fresh_by_a_snapshot_is_not_excused_as_well(autojump_clock):
    """A liar's snapshot is of a later round than any link of it, and then it says that it is paused."""
    how = {"quorum": 0.5, "initial_deadline_s": 30.0, "probation_rounds": 0}
    async with swarm() as it:
        honest = await it.start_all(3, **how)
        await play(honest, range(1, 8))
        one = honest[0]
        liar = it.make(9, peers=tuple(node.address for node in honest), **how)
        service = liar.service

        async def offer(epoch: int, seq: int) -> SnapshotOffer:
            payload = await service._server._snapshots._hasher.payload(b"a model")
            statement = snapshot_offer_statement(
                epoch=epoch,
                seq=seq + 50,
                head=Digest(b"h" * 32),
                address=service._engine.publisher._hold(payload),
                round=10,
                size=payload.manifest.size,
            )
            publisher = service._engine.publisher
            return parse_snapshot_offer(seal(publisher._identity, publisher._scope, statement))

        service._server._snapshots.offer = offer
        await it.launch(liar)
        await liar.begin()
        for round_ in range(1, 7):
            await liar.publish(round_)
        neighbours = one.service._engine.neighbours
        await until(lambda: liar.peer in neighbours and neighbours[liar.peer].applied_round == 10)
        assert neighbours[liar.peer].announced_round == 6
        await say(liar, one, word_of(liar))
        assert neighbours[liar.peer].promised_round == 10
        assert not one.service._engine.paused(99, trio.current_time()), "an older link of it than its snapshot's"
        await one.publish(8)
        view = await one.service.close_round(8, at_most_s=30.0)
        assert (view.closed_by, view.fresh, len(view.staleness)) == ("deadline", 1, 3)


async def test_who_is_yet_to_arrive_is_counted_so_although_it_is_paused(autojump_clock):
    """Otherwise a liar that is here first would be averaged with, since the honest are paused."""
    how = {"quorum": 1.0, "initial_deadline_s": 20.0}
    async with swarm() as it:
        first = await it.start(1, **how)
        await first.begin(epoch=1000)
        others = [await it.start(number, peers=(first.address,), **how) for number in (2, 3)]
        for other in others:
            await other.begin(epoch=1000, round=5, snapshot=b"model of an honest one")
        liar = await it.start(4, peers=(first.address,), **how)
        await liar.begin(epoch=1000)
        neighbours = first.service._engine.neighbours
        await until(lambda: len(neighbours) == 3 and all(neighbours[it.peer].tracked for it in others))
        for other in others:
            neighbours[other.peer].begin_anew(trio.current_time())
            neighbours[other.peer].retry_at = float("inf")
            await say(other, first, word_of(other))
        for node in (first, liar):
            await node.service.begin_epoch(epoch=2000, round=6, snapshot=None)
            await node.publish(6)
        await until(lambda: neighbours[liar.peer].applied_round == 6)
        view = await first.service.close_round(6, at_most_s=20.0)
        assert (view.closed_by, view.seconds) == ("quorum", 0.0), "they are not waited for"
        assert (len(view.staleness), view.arriving) == (1, 2), "and nothing is averaged over fewer than tolerate f"


async def test_what_it_has_announced_is_waited_for_although_it_is_paused(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2, **ALL)
        one.ready = trio.Event()  # its update is slow to be applied
        await other.publish(1)
        await say(other, one, word_of(other))
        await one.publish(1)

        async def go_on() -> None:
            await trio.sleep(3.0)
            one.ready.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            closed_by, seconds = await close(one, 1)
        assert closed_by == "quorum"
        assert seconds == pytest.approx(3.0, abs=0.1)


async def test_only_neighbours_and_only_their_own_newest_link(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4, **ALL)
        one, other, third, liar = nodes
        old = word_of(other)
        for link, reason in ((b"", Reason.MALFORMED), (word_of(third).link, Reason.FORGED)):
            with pytest.raises(Refused) as refused:
                await say(liar, one, PauseRequest(link=link, seconds=0))
            assert refused.value.reason is reason
        assert one.service.stats.rejected[liar.peer, Reason.FORGED] == 1, "it is charged"
        await play(nodes[:3], range(1, 3))
        await until(lambda: one.follows(other))
        await say(other, one, old)
        assert not one.service._engine.paused(9, trio.current_time()), "it has published since"
        stranger = await it.start(8)
        await stranger.begin()
        await stranger.transport.dial(one.address)
        with pytest.raises(Refused) as refused:
            await say(stranger, one, word_of(stranger))
        assert refused.value.reason is Reason.UNAVAILABLE


async def test_a_word_of_who_was_a_neighbour_is_forgotten(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2, **ALL)
        await say(other, one, word_of(other))
        assert one.service._engine.paused(1, trio.current_time()) == {other.peer}
        it.network.cut(one.peer, other.peer)
        await until(lambda: not one.service.neighbours())
        assert not one.service._engine.paused(1, trio.current_time())


async def test_a_group_does_not_wait_for_who_is_paused(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3, **ALL)
        others = [node.peer for node in nodes[1:]]
        await nodes[1].publish(1)
        with trio.move_on_after(20.0) as scope:
            await nodes[0].service.wait_for_round(1, others)
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nodes[2].service.say_paused, lambda: None)
            with trio.fail_after(1.0):
                await nodes[0].service.wait_for_round(1, others)
            nursery.cancel_scope.cancel()


async def test_an_exchange_does_not_wait_for_the_vector_of_who_is_paused(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3, **ALL)
        group = Group(members=tuple(sorted(node.peer for node in nodes)), round=1, size=30, chunk_bytes=10)
        parts: dict[PeerId, list[bytes | None]] = {}

        async def exchange(node: FakeRuntime) -> None:
            reduced = await node.service.exchange(
                group, bytes(30), lambda vectors: bytes([len(vectors)]) * 10, gather_s=60.0, timeout_s=120.0
            )
            parts[node.peer] = [part.data for part in reduced if part.owner != nodes[2].peer]

        began = trio.current_time()
        async with trio.open_nursery() as saying:
            async with trio.open_nursery() as nursery:
                for node in nodes[:2]:
                    nursery.start_soon(exchange, node)
                await trio.sleep(5.0)
                saying.start_soon(nodes[2].service.say_paused, lambda: None)
            saying.cancel_scope.cancel()
        assert trio.current_time() - began < 7.0
        assert list(parts.values()) == [[b"\x02" * 10] * 2] * 2


def test_who_has_announced_a_part_is_not_given_up() -> None:
    members = tuple(PeerId(name) for name in "ABC")
    exchange = AllReduce(
        Group(members=members, round=1, size=30, chunk_bytes=10), members[0], gather_until=5, ends_at=9
    )
    exchange.take_own(b"a" * 10)
    exchange.give_up([members[1]])
    assert exchange.work(0.0) == [], "the third is still awaited"
    exchange.give_up([members[2]])
    (reduce,) = exchange.work(0.0)
    assert reduce.vectors == {members[0]: b"a" * 10}


def exchange_of_three() -> tuple[AllReduce, PeerId, PeerId]:
    members = tuple(PeerId(name) for name in "ABC")
    group = Group(members=members, round=1, size=30, chunk_bytes=10)
    exchange = AllReduce(group, members[0], gather_until=5, ends_at=9)
    exchange.take_own(b"a" * 10)
    return exchange, members[1], members[2]


def part_of(exchange: AllReduce, peer: PeerId, stage: Stage) -> Part:
    size = 30 if stage is Stage.WHOLE else 10
    return Part(peer=peer, exchange=exchange.name, round=1, stage=stage, address=Digest(b"a" * 32), size=size, raw=b"")


def test_who_has_announced_its_vector_is_awaited_with_its_part() -> None:
    exchange, second, third = exchange_of_three()
    exchange.learn(part_of(exchange, second, Stage.WHOLE))
    exchange.give_up([second, third])
    (pull,) = exchange.work(0.0)
    exchange.pulled(pull, b"b" * 10)
    (reduce,) = exchange.work(0.0)
    assert list(reduce.vectors) == [PeerId("A"), second]
    exchange.own_reduced(b"r" * 10)
    assert not exchange.done(1.0), "its part is on the way"


@pytest.mark.parametrize("missed", [False, True])
def test_what_is_announced_after_all_is_pulled_while_there_is_time(missed: bool) -> None:
    exchange, second, third = exchange_of_three()
    exchange.give_up([second, third])
    exchange.work(0.0)
    exchange.own_reduced(b"r" * 10)
    assert exchange.done(1.0)
    if missed:
        exchange.reopen(20.0)
    exchange.learn(part_of(exchange, second, Stage.WHOLE))
    exchange.learn(part_of(exchange, second, Stage.REDUCED))
    (pull,) = exchange.work(1.0)
    assert pull.part.stage is Stage.REDUCED, "its vector is too late"
    exchange.pulled(pull, b"b" * 10)
    assert exchange.reduced[second] == b"b" * 10


def test_a_vector_that_is_announced_after_all_is_reduced_with_the_others() -> None:
    exchange, second, third = exchange_of_three()
    exchange.give_up([second])
    exchange.learn(part_of(exchange, second, Stage.WHOLE))
    exchange.give_up([second, third])
    (pull,) = exchange.work(0.0)
    exchange.pulled(pull, b"b" * 10)
    (reduce,) = exchange.work(0.0)
    assert reduce.vectors == {PeerId("A"): b"a" * 10, second: b"b" * 10}


async def test_who_leaves_waits_for_no_paused_member_to_take_its_part(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3, **ALL)
        for node in nodes:
            node.service._engine.fetch = "nothing"
        group = Group(members=tuple(sorted(node.peer for node in nodes)), round=1, size=30, chunk_bytes=10)
        async with trio.open_nursery() as saying:
            saying.start_soon(nodes[2].service.say_paused, lambda: None)
            await trio.sleep(KNOWN_SOON_S)
            async with trio.open_nursery() as nursery:
                for node in nodes[:2]:
                    exchange = partial(node.service.exchange, gather_s=60.0, timeout_s=120.0)
                    nursery.start_soon(exchange, group, bytes(30), lambda vectors: bytes(10))
            began = trio.current_time()
            await nodes[0].service.leave(20.0)
            assert trio.current_time() - began < 1.0
            saying.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, 0),
        (0.0, 1),
        (0.2, 1),
        (61.2, 62),
        (float(1 << 40), MAX_SAID_S),
        (float("inf"), MAX_SAID_S),
        (float("nan"), 0),
    ],
)
def test_the_time_of_a_return_is_said_in_whole_seconds(seconds, said):
    assert pause_request(b"link", seconds) == PauseRequest(link=b"link", seconds=said)


ROUND = st.none() | st.integers(0, 12) | st.just(9) | st.just(1000)
rounds = st.dictionaries(st.sampled_from([PeerId(letter) for letter in "ABCDEFGHI"]), ROUND)


@given(applied=rounds, paused=st.sets(st.sampled_from([PeerId(letter) for letter in "ABCDEFGHI"])), data=st.data())
def test_a_pause_ends_waiting_and_changes_nobodys_membership(applied, paused, data):
    """And who lies about one closes no round that it could not have closed by publishing in time."""
    beginning = data.draw(st.booleans())
    quorum = data.draw(st.floats(0.01, 1.0))
    paused &= applied.keys()
    behind = {peer for peer in paused if applied[peer] is None or applied[peer] < 9}
    look = partial(standing, 9, max_staleness=4, beginning=beginning)
    with_word, without = look(applied, paused=paused), look(applied)
    assert replace(with_word, paused=frozenset()) == without, "its members, who is fresh, and who is yet to arrive"
    assert with_word.behind == without.behind - paused
    for it in (with_word, without):  # and the f that so many members allow
        rule, _ = FaultTolerance("trimmed_mean", 2).rule(len(it.staleness) + 1)
        assert (rule.f if rule else None) == min(2, len(without.staleness) // 2)
    in_time = look({**applied, **dict.fromkeys(behind, 9)})
    if without.quorum_reached(quorum):
        assert with_word.quorum_reached(quorum), "nothing is waited for longer"
    if with_word.quorum_reached(quorum):
        assert in_time.quorum_reached(quorum)
