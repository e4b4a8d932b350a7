"""Neighbours that say that their data have shifted: one claim each, which nothing of the protocol follows from."""

from functools import partial

import pytest
import trio
from gossip_swarm import FakeRuntime, play, swarm, until

from gossip import telling_task
from gossip.core.errors import Reason
from gossip.core.limits import KIB, SHIFT_PROTOCOL
from gossip.core.messages import Refused, ShiftRequest, parse_empty_answer
from gossip.session import ask_once
from gossip.transport.base import TransportError


async def say(node: FakeRuntime, other: FakeRuntime, word: ShiftRequest) -> None:
    parse_empty_answer(await ask_once(node.transport, other.peer, word, 10.0, KIB, protocol=SHIFT_PROTOCOL))


def word_of(node: FakeRuntime) -> ShiftRequest:
    word = node.service._engine.shift_word()
    assert word is not None
    return word


async def test_a_claim_is_heard_by_all_neighbours_and_said_to_each_once(autojump_clock, monkeypatch):
    asked: list[object] = []

    async def counted(*args: object, **how: object) -> bytes:
        asked.append(args[1])
        return await ask_once(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(telling_task, "ask_once", counted)
    async with swarm() as it:
        nodes = await it.start_all(4)
        await play(nodes, range(1, 4))
        for _ in range(3):
            nodes[0].service.say_shifted(3)
            await trio.sleep(1.0)
        assert [node.service.shift_claims() for node in nodes[1:]] == [{nodes[0].peer: 3}] * 3
        assert nodes[0].service.shift_claims() == {}
        assert len(asked) == 3
        await play(nodes, [4])
        nodes[0].service.say_shifted(4)
        await until(lambda: all(node.service.shift_claims() == {nodes[0].peer: 4} for node in nodes[1:]))
        assert len(asked) == 6, "another claim is said anew"


async def test_no_round_waits_longer_or_shorter_for_who_says_so(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4, quorum=1.0, initial_deadline_s=30.0)
        await play(nodes, range(1, 3))
        nodes[3].service.say_shifted(2)
        await trio.sleep(1.0)
        rows = await play(nodes[:3], [3])
        assert {view.closed_by for view in rows[0]} == {"deadline"}, "it has not published, and is waited for"


@pytest.mark.parametrize("error", [TransportError("no way"), Refused(Reason.UNAVAILABLE, "no neighbour yet")])
async def test_who_was_not_reached_is_told_in_the_next_round(autojump_clock, monkeypatch, error):
    async def fail(*args: object, **how: object) -> bytes:
        raise error

    async with swarm() as it:
        one, other = await it.start_all(2)
        with monkeypatch.context() as broken:
            broken.setattr(telling_task, "ask_once", fail)
            other.service.say_shifted(0)
            await trio.sleep(1.0)
        assert one.service.shift_claims() == {}
        other.service.say_shifted(0)
        await until(lambda: other.peer in one.service.shift_claims())


async def test_a_claim_is_of_the_round_that_its_sayer_has_signed(autojump_clock):
    async with swarm() as it:
        one, other, third = await it.start_all(3)
        old = word_of(other)
        await play([one, other, third], range(1, 3))
        for word, reason in ((word_of(third), Reason.FORGED), (ShiftRequest(link=b"junk"), Reason.MALFORMED)):
            with pytest.raises(Refused) as refused:
                await say(other, one, word)
            assert refused.value.reason is reason
        assert one.service.shift_claims() == {}
        await say(other, one, old)
        assert one.service.shift_claims() == {other.peer: 0}, "it counts as of its link's round, and for no longer"


async def test_a_claim_is_forgotten_with_the_neighbour_and_there_is_one_at_most_for_each(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        for _ in range(5):
            await say(other, one, word_of(other))
        assert len(one.service._engine._shifts._said) == 1
        it.network.cut(one.peer, other.peer)
        await until(lambda: not one.service.neighbours())
        assert one.service.shift_claims() == {}
        it.network.heal()
        await one.transport.dial(other.address)
        await until(partial(one.follows, other))
        assert one.service.shift_claims() == {}, "it has not said so this time"


async def test_a_stranger_has_no_say(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        word = word_of(other)
        stranger = it.make(9, peers=())
        async with trio.open_nursery() as nursery:
            await nursery.start(stranger.transport.run, stranger.service)
            await stranger.transport.dial(one.address)
            with pytest.raises(Refused):
                await say(stranger, one, word)
            nursery.cancel_scope.cancel()
        assert one.service.shift_claims() == {}
