"""Whose updates are fetched first: the others' in spare time, whole models one at a time, and nobody waits for them."""

from gossip_samples import ALICE, BOB, CAROL, link
from gossip_swarm import play, swarm, until

from gossip.actions import ActionQueue, WakeSync
from gossip.transport.memory.network import LinkQuality
from gossip.updates.exchange_times import ExchangeTimes
from gossip.updates.neighbour import FetchHeaders, FetchPayload, FetchSnapshot
from gossip.updates.pull_priority import PullPriority

A, B, C = (each.peer_id for each in (ALICE, BOB, CAROL))
DELTA = FetchPayload(link=link(seq=1, prev=link().digest))
BASE = FetchPayload(link=link(kind="snapshot"))
GENESIS = FetchPayload(link=link())
MODEL = FetchSnapshot(epoch=1, seq=0)
HEADERS = FetchHeaders(epoch=1, first=1, count=1)
EVERYTHING = (DELTA, BASE, GENESIS, MODEL, HEADERS)


def priority(*here):
    actions = ActionQueue()
    return PullPriority(lambda: here or (A, B, C), actions), actions


def woken(actions):
    return [action.peer for action in actions.drain() if isinstance(action, WakeSync)]


def test_at_first_everything_begins_at_once():
    it, _ = priority()
    it.begin(A, MODEL)
    assert all(it.admits(peer, work) for peer in (B, C) for work in EVERYTHING)
    assert not it.unawaited()


def test_who_is_set_aside_is_fetched_from_update_by_update_while_nothing_else_is():
    it, actions = priority()
    it.choose({A, B}, awaited={A, B}, least=1)
    assert it.unawaited() == {C}
    assert it.admits(C, DELTA)
    assert not it.admits(C, MODEL)
    assert not it.admits(C, BASE)
    it.begin(A, DELTA)
    assert not it.admits(C, DELTA)
    assert it.admits(B, DELTA), "those that are first do not wait for each other"
    assert it.admits(C, HEADERS), "links are small"
    assert it.admits(C, GENESIS), "and of the initial model there is nothing to fetch"
    woken(actions)
    assert it.end(A, DELTA)
    assert woken(actions) == [C]
    assert it.admits(C, DELTA)


def test_whole_models_come_one_at_a_time():
    it, actions = priority()
    it.choose({A, B}, awaited={A, B}, least=1)
    it.begin(A, MODEL)
    assert not it.admits(B, MODEL)
    assert not it.admits(B, BASE)
    assert it.admits(B, DELTA)
    it.end(A, MODEL)
    assert woken(actions) == [B]
    assert it.admits(B, MODEL)


def test_who_trickles_its_model_holds_nobody_up_once_it_is_set_aside():
    it, actions = priority()
    it.choose({A, B}, awaited={B}, least=1)
    it.begin(A, MODEL)
    assert not it.admits(B, MODEL)
    assert not it.admits(C, DELTA)
    it.choose({B}, awaited={B}, least=1)
    assert sorted(woken(actions)) == sorted((B, C))
    assert it.admits(B, MODEL)
    assert it.admits(C, DELTA)
    it.begin(C, DELTA)
    assert not it.admits(A, DELTA), "an update holds up others that are set aside"


def test_another_choice_wakes_those_that_were_held_back():
    it, actions = priority()
    it.choose({A, B}, awaited={A, B}, least=1)
    assert not it.admits(C, MODEL)
    it.choose({B, C}, awaited={B}, least=1)
    assert woken(actions) == [C]
    assert it.admits(C, MODEL)
    assert it.unawaited() == {A, C}, "rounds do not wait for one that is only explored"
    it.choose(None)
    assert not it.unawaited()


def test_with_fewer_of_the_chosen_here_than_needed_nobody_is_set_unawaited():
    it, _ = priority(A, B)
    it.choose({A, C}, awaited={A, C}, least=2)
    assert not it.unawaited(), "one of two is here"
    it.begin(A, DELTA)
    assert it.admits(B, MODEL)
    it.end(A, DELTA)
    it.choose({A, C}, awaited={A, C}, least=1)
    assert it.unawaited() == {B}
    assert not it.unawaited(paused={A}), "and that one is paused"


def test_who_is_set_aside_does_not_make_an_exchange_longer():
    times = ExchangeTimes({A, B})
    for peer, took in ((A, 1.0), (B, 50.0)):
        times.heard(peer, (1, 1), 0.0)
        times.applied(peer, (1, 1), took, delta=True)
    assert times.seconds(quorum=1.0, liars=0) == 50.0
    assert times.seconds(quorum=1.0, liars=0, besides={B}) == 1.0


async def test_rounds_close_without_a_neighbour_that_is_set_aside_and_it_is_taken_up_again(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4, quorum=1.0, initial_deadline_s=30.0)
        me, slow = nodes[0], nodes[3]
        await play(nodes, range(1, 3))
        it.network.set_link(me.peer, slow.peer, LinkQuality(latency_s=5.0))
        first = {node.peer for node in nodes[1:3]}
        me.service.fetch_first(first, awaited=first, least=2)
        rows = await play(nodes[:3], range(3, 6))
        assert {row[0].closed_by for row in rows} == {"quorum"}, "it publishes nothing, and is not waited for"
        assert {row[1].closed_by for row in rows} == {"deadline"}, "by those who did not set it aside it is"
        assert all(slow.peer in row[0].staleness for row in rows[:2]), "it belongs to rounds as before"
        me.service.fetch_first(None)
        for number in range(3, 7):
            await slow.publish(number)
        await until(lambda: me.follows(slow))
        it.check()


def test_what_a_neighbour_s_old_connection_still_pulled_ends_without_what_its_new_one_pulls():
    """The old stream takes a moment to be reset; meanwhile a second whole model was let in."""
    it, _ = priority()
    it.choose({A, B}, awaited={A, B}, least=1)
    it.begin(A, BASE)
    it.begin(A, MODEL)
    it.end(A, BASE)
    assert not it.admits(B, MODEL)
    it.end(A, MODEL)
    assert it.admits(B, MODEL)
