"""Lookups alone: they end whatever they are told, and find whom they look for though some are silent and some lie.

The figures of the 500 are in docs/decisions/0026.
"""

import statistics
from contextlib import suppress
from dataclasses import replace

import pytest
from gossip_samples import ALICE, BOB, SCOPE, record
from hypothesis import given, settings
from hypothesis import strategies as st
from kademlia_swarm import VirtualSwarm, grown, member, place
from sizes import examples, thorough_but

from gossip.core.envelope import Scope
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId, RunId
from gossip.core.statements import PeerRecord
from gossip.discovery import lookup as module
from gossip.discovery.lookup import ALPHA, MAX_CANDIDATES, MAX_QUERIES, OF_NETWORK, WIDTH, Lookup, records_in
from gossip.discovery.routing_table import BUCKET, nearest

ME = PeerId("me")
TARGET = place(PeerId("peer-target"))


def looking(*seeds: PeerRecord, width: int = WIDTH) -> Lookup:
    return Lookup(target=TARGET, me=ME, scope=SCOPE, seeds=seeds, width=width)


def told(*records: PeerRecord) -> list[PeerRecord]:
    return nearest(records, SCOPE, TARGET)


def ground(count: int, address: str = "/memory/{}") -> list[PeerRecord]:
    """Members nearer to the target than any of 500 honest ones, nearest first: who grinds ids has such."""
    made = [member(f"ground-{number}", address=address.format(number % 250)) for number in range(300 * count)]
    return nearest(made, SCOPE, TARGET, count)


# -- it ends


@settings(max_examples=examples(40))
@given(st.data())
def test_it_ends_whatever_it_is_told_and_asks_nobody_twice(data):
    crowd = [member(number) for number in range(90)] + [member("target"), replace(member(1), peer=ME)]
    it = looking(*data.draw(st.lists(st.sampled_from(crowd), max_size=20)), width=BUCKET)
    asked: list[PeerId] = []
    under_way: list[PeerRecord] = []
    while not it.over:
        under_way += (more := it.next())
        asked += [each.peer for each in more]
        assert len(under_way) <= ALPHA
        one = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        if data.draw(st.booleans()):
            it.failed(one.peer)
        else:
            words = data.draw(st.lists(st.sampled_from(crowd), max_size=BUCKET))
            with suppress(RemoteError):
                it.answered(one.peer, None, told(*words) if data.draw(st.booleans()) else words)
    assert len(asked) == len(set(asked)) == it.queries <= MAX_QUERIES
    assert ME not in asked
    distances = [place(each.peer) ^ TARGET for each in it.closest()]
    assert distances == sorted(distances)
    assert len(distances) <= BUCKET


def test_members_without_end_each_nearer_than_the_last_end_it_after_so_many_questions():
    """One liar, with as many ids as it likes: it makes each answer worth another question."""
    line = sorted(ground(2 * MAX_QUERIES), key=lambda each: place(each.peer) ^ TARGET, reverse=True)
    it = looking(line[0])
    while asked := it.next():
        for one in asked:
            known = line.index(one)
            it.answered(one.peer, None, told(*line[known + 1 : known + 3]))
    assert it.over
    assert it.queries == MAX_QUERIES


def test_what_is_remembered_is_bounded():
    it = looking(*(member(number) for number in range(MAX_CANDIDATES)))
    for turn in range(1, 4 * MAX_CANDIDATES // BUCKET):
        for one in it.next():
            it.answered(one.peer, None, told(*(member(1000 * turn + number) for number in range(BUCKET))))
    assert max(len(path.order) for path in it._paths) == MAX_CANDIDATES


def test_it_does_not_ask_itself():
    assert looking(replace(member(1), peer=ME)).next() == []


# -- what a liar may say


def test_an_answer_out_of_order_or_with_one_twice_is_an_offence_and_counts_as_none():
    one, two = told(member(1), member(2))
    for words in ([two, one], [one, one]):
        it = looking(member(3))
        (asked,) = it.next()
        with pytest.raises(RemoteError) as caught:
            it.answered(asked.peer, None, words)
        assert caught.value.reason is Reason.PROTOCOL
        assert it.over
        assert it.closest() == []


def test_records_that_are_forged_or_of_another_run_are_offences():
    good = record(by=ALICE)
    (known,) = records_in([good], SCOPE, {})
    assert records_in([good], SCOPE, {good: known})[0] is known
    flipped = bytearray(record(by=BOB))
    flipped[-1] ^= 1
    for raw, scope, reason in (
        (bytes(flipped), SCOPE, Reason.FORGED),
        (good, Scope(swarm=SCOPE.swarm, run=RunId(b"o" * 16)), Reason.WRONG_RUN),
        (b"junk", SCOPE, Reason.MALFORMED),
    ):
        with pytest.raises(RemoteError) as caught:
            records_in([raw], scope, {})
        assert caught.value.reason is reason


def captured(paths: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A liar is the first that is asked; it tells of 16 of its kind, with ground ids, and so do they. The honest know
    members that are nearer, and these the target."""
    monkeypatch.setattr(module, "PATHS", paths)
    liars, honest = ground(BUCKET), told(*(member(number) for number in range(60)))
    near, far = honest[:BUCKET], honest[-2:]
    it = looking(liars[-1], *far, width=BUCKET)
    while asked := it.next():
        for one in asked:
            it.answered(one.peer, None, liars if one in liars else near if one in far else [member("target")])
    return it.found is None


def test_one_liar_cannot_capture_a_lookup_that_takes_two_ways(monkeypatch):
    assert captured(1, monkeypatch)
    assert not captured(2, monkeypatch)


def test_of_one_network_only_so_many_are_asked():
    """Whoever has a /24 to itself, and ids ground nearer than all others, had all of them asked."""
    crowd = ground(BUCKET, address="/ip4/8.8.8.{}/tcp/1")
    it = looking(*crowd[:2], member(1), width=BUCKET)
    asked: list[PeerRecord] = []
    while more := it.next():
        asked += more
        for one in more:
            it.answered(one.peer, None, told(*crowd))
    assert sum(one in crowd for one in asked) == OF_NETWORK
    assert member(1) in asked


def test_whom_we_look_for_is_asked_though_its_network_was_asked_enough():
    crowd = ground(BUCKET, address="/ip4/8.8.8.{}/tcp/1")
    wanted = member("target", address="/ip4/8.8.8.200/tcp/1")
    it = looking(*crowd[:2], member(1), width=BUCKET)
    asked: list[PeerRecord] = []
    while more := it.next():
        asked += more
        for one in more:
            late = sum(each in crowd for each in asked) >= OF_NETWORK
            it.answered(one.peer, None, told(*crowd, *([wanted] if late else [])))
    assert it.found == wanted


def test_an_old_record_of_whom_we_look_for_does_not_hide_it():
    """A liar tells one from before it moved: it does not answer there. Somebody else tells the newer one, later."""
    it = looking(member(1), member(2))
    one, two = it.next()
    it.answered(one.peer, None, [member("target", version=1)])
    (old,) = it.next()
    it.failed(old.peer)
    assert it.next() == []
    it.answered(two.peer, None, [member("target", version=2)])
    (newer,) = it.next()
    assert newer.version == 2
    it.answered(newer.peer, None, [])
    assert it.found == newer


def test_so_it_is_when_the_newer_one_comes_while_the_old_one_is_being_tried():
    it = looking(member(1), member(2))
    one, two = it.next()
    it.answered(one.peer, None, [member("target", version=1)])
    (old,) = it.next()
    it.answered(two.peer, None, [member("target", version=2)])
    assert it.next() == []
    it.failed(old.peer)
    assert [each.version for each in it.next()] == [2]


def test_nobody_is_found_who_has_not_answered():
    it = looking(member(1))
    (one,) = it.next()
    it.answered(one.peer, None, [member("target")])
    (target,) = it.next()
    it.failed(target.peer)
    assert it.over
    assert it.found is None


# -- five hundred


@pytest.fixture(scope="module")
def five_hundred() -> VirtualSwarm:
    """Each has looked up its own id when it came, and nothing since: tables are never emptier."""
    return grown(500)


def found(it: VirtualSwarm, good: list[PeerId], tries: int) -> list[int]:
    """Questions of those lookups that found whom they were for."""
    pairs = [it.rng.sample(good, 2) for _ in range(tries)]
    lookups = [it.find(asker, sought) for asker, sought in pairs]
    return [each.queries for each in lookups if each.found is not None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "median", "most"),
    thorough_but({("liars", 12, 48)}, [("nobody", 9, 21), ("silent", 9, 27), ("liars", 12, 48)]),
)
def test_anybody_of_five_hundred_is_found_though_a_fifth_are_silent_or_lie(five_hundred, what, median, most):
    it = five_hundred
    good = list(it.records) if what == "nobody" else it.turn(what, 0.2)
    try:
        questions = found(it, good, 150)
    finally:
        it.silent, it.liars = set(), set()
    assert len(questions) >= 149
    assert statistics.median(questions) <= median
    assert max(questions) <= most
