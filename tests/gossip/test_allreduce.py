"""Exchanges of parts, as one member sees them: what is begun when, and what the dead, the late and liars cost."""

from contextlib import suppress

import pytest
from gossip_samples import ALICE, BOB, CAROL, SCOPE, sealed
from hypothesis import given
from hypothesis import strategies as st

from gossip.allreduce.allreduce import MAX_EARLY, AllReduce, EarlyMessages, Group, Pull, Reduce
from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.envelope import EnvelopeKind, Statement, open_envelope
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.limits import CHUNK_BYTES, MAX_CHUNKS, MAX_GROUP
from gossip.core.messages import PartRequest, encode_request, parse_request
from gossip.core.statements import Part, Stage, parse_part, part_statement
from gossip.core.wire import pack

KEYS = (ALICE, BOB, CAROL)
A, B, C = (key.peer_id for key in KEYS)
GROUP = Group(members=(A, B, C), round=7, size=6 * CHUNK_BYTES + 5)
GATHER_UNTIL, ENDS_AT = 10.0, 20.0


def part(by: Identity, stage: Stage, *, group: Group = GROUP, size: int | None = None, content: bytes = b"") -> Part:
    whole = group.size if stage is Stage.WHOLE else group.part_size(by.peer_id)
    statement = part_statement(
        exchange=group.name,
        round=group.round,
        stage=stage,
        address=digest_of(content + by.public_key + bytes([stage])),
        size=whole if size is None else size,
    )
    return parse_part(sealed(statement, by))


def begun(group: Group = GROUP) -> AllReduce:
    exchange = AllReduce(group, A, gather_until=GATHER_UNTIL, ends_at=ENDS_AT)
    exchange.take_own(b"own")
    return exchange


def pulls(exchange: AllReduce, now: float = 0.0) -> list[Pull]:
    return [work for work in exchange.work(now) if isinstance(work, Pull)]


def gathered(exchange: AllReduce) -> None:
    """The others' vectors are here, and our part of them is reduced."""
    for key in (BOB, CAROL):
        exchange.learn(part(key, Stage.WHOLE))
        (pull,) = pulls(exchange)
        exchange.pulled(pull, key.public_key)
    (work,) = exchange.work(1.0)
    assert isinstance(work, Reduce)
    exchange.own_reduced(bytes(GROUP.part_size(A)))


members = st.integers(2, MAX_GROUP).map(lambda count: tuple(f"peer {number}" for number in range(count)))


@given(members, st.integers(1, 200 * CHUNK_BYTES), st.sampled_from([1 << 14, 1 << 17, CHUNK_BYTES]))
def test_the_parts_are_the_vector_each_byte_once(names, size, chunk_bytes):
    group = Group(members=names, round=1, size=size, chunk_bytes=chunk_bytes)
    parts = [group.part(name) for name in names if group.part_size(name)]
    assert [each.start for each in parts] == [0, *(each.stop for each in parts[:-1])]
    assert parts[-1].stop == size
    assert [each.stop - each.start for each in parts] == [
        group.part_size(name) for name in names if group.part_size(name)
    ]
    sizes = [len(group.span(name)) for name in names]
    assert max(sizes) - min(sizes) <= 1


def test_a_groups_name_tells_members_order_round_and_size():
    variants = [
        GROUP,
        Group(members=(B, A, C), round=7, size=GROUP.size),
        Group(members=(A, B), round=7, size=GROUP.size),
        Group(members=(A, B, C), round=8, size=GROUP.size),
        Group(members=(A, B, C), round=7, size=GROUP.size - 1),
        Group(members=(A, B, C), round=7, size=GROUP.size, chunk_bytes=CHUNK_BYTES // 2),
    ]
    assert len({group.name for group in variants}) == len(variants)


@pytest.mark.parametrize("wrong", [(A,), (A, B, A), tuple(f"{number}" for number in range(MAX_GROUP + 1))])
def test_a_group_that_is_none(wrong):
    with pytest.raises(LocalError):
        Group(members=wrong, round=1, size=1)
    with pytest.raises(LocalError):
        Group(members=(A, B), round=1, size=0)
    for chunk_bytes in (0, 2 * CHUNK_BYTES, 1):
        with pytest.raises(LocalError, match="chunks of"):
            Group(members=(A, B), round=1, size=MAX_CHUNKS + 1, chunk_bytes=chunk_bytes)
    with pytest.raises(LocalError):
        AllReduce(Group(members=(B, C), round=1, size=9), A, gather_until=1, ends_at=2)


def test_of_others_vectors_only_our_part_is_pulled_and_of_their_parts_all():
    exchange = begun()
    exchange.learn(part(CAROL, Stage.REDUCED))
    exchange.learn(part(BOB, Stage.WHOLE))
    found = {(pull.part.peer, pull.part.stage): pull.span for pull in pulls(exchange)}
    assert found == {(B, Stage.WHOLE): range(2), (C, Stage.REDUCED): range(3)}
    assert pulls(exchange) == []  # each once


def test_vectors_are_reduced_in_the_groups_order_when_all_are_there():
    exchange = begun()
    for key in (CAROL, BOB):
        exchange.learn(part(key, Stage.WHOLE))
    for pull in reversed(pulls(exchange)):
        assert exchange.work(1.0) == []
        exchange.pulled(pull, pull.part.peer[-4:].encode())
    (work,) = exchange.work(1.0)
    assert isinstance(work, Reduce)
    assert list(work.vectors.items()) == [(A, b"own"), (B, B[-4:].encode()), (C, C[-4:].encode())]
    assert exchange.work(1.0) == []
    with pytest.raises(LocalError):
        exchange.own_reduced(b"too short")


def test_whoever_is_late_is_left_out():
    exchange = begun()
    exchange.learn(part(BOB, Stage.WHOLE))
    (pull,) = pulls(exchange)
    exchange.pulled(pull, b"in time")
    exchange.learn(part(CAROL, Stage.WHOLE))
    (late,) = pulls(exchange)
    assert exchange.work(GATHER_UNTIL - 0.1) == []
    assert exchange.deadline(GATHER_UNTIL - 0.1) == GATHER_UNTIL
    (work,) = exchange.work(GATHER_UNTIL)
    assert isinstance(work, Reduce)
    assert list(work.vectors) == [A, B]
    exchange.pulled(late, b"too late")
    assert list(work.vectors) == [A, B]
    assert exchange.deadline(GATHER_UNTIL) == ENDS_AT


def test_a_part_that_nobody_gave_is_none_and_the_rest_stands():
    exchange = begun()
    gathered(exchange)
    exchange.learn(part(CAROL, Stage.REDUCED))
    (pull,) = pulls(exchange, 2.0)
    exchange.pulled(pull, b"reduced by carol")
    assert not exchange.done(ENDS_AT - 0.1)
    assert exchange.done(ENDS_AT)
    found = {each.owner: each.data for each in exchange.result()}
    assert found == {A: bytes(GROUP.part_size(A)), B: None, C: b"reduced by carol"}


def test_it_is_over_when_everything_is_there():
    exchange = begun()
    gathered(exchange)
    for key in (BOB, CAROL):
        assert not exchange.done(2.0)
        exchange.learn(part(key, Stage.REDUCED))
        (pull,) = pulls(exchange, 2.0)
        exchange.pulled(pull, key.public_key)
    assert exchange.done(2.0)
    assert all(each.data is not None for each in exchange.result())


def test_the_networks_faults_are_tried_again_and_a_peers_are_not():
    exchange = begun()
    exchange.learn(part(BOB, Stage.REDUCED))
    (pull,) = pulls(exchange)
    exchange.failed(pull, again=True)
    (pull,) = pulls(exchange)
    exchange.failed(pull, again=False)
    assert pulls(exchange) == []
    exchange.pulled(pull, b"after all")
    assert B not in exchange.reduced


def test_what_was_reduced_and_did_not_come_is_pulled_afterwards():
    exchange = begun()
    exchange.learn(part(BOB, Stage.WHOLE))
    (reduce,) = [work for work in exchange.work(GATHER_UNTIL) if isinstance(work, Reduce)]
    assert list(reduce.vectors) == [A]
    exchange.own_reduced(bytes(GROUP.part_size(A)))
    exchange.learn(part(CAROL, Stage.REDUCED))
    (broken_off,) = pulls(exchange, 11.0)
    assert exchange.done(ENDS_AT)
    assert exchange.incomplete
    exchange.let_go()
    assert all(each.data is None for each in exchange.result()), "what was returned is not held until the next one"
    assert exchange.incomplete
    exchange.reopen(ENDS_AT + 5)
    (pull,) = exchange.work(ENDS_AT + 1)
    assert pull == broken_off, "and nobody's vector"
    assert exchange.may_come(ENDS_AT + 1)
    exchange.pulled(pull, b"after all")
    assert not exchange.may_come(ENDS_AT + 1), "the other one's was never announced"
    exchange.learn(part(BOB, Stage.REDUCED))
    assert exchange.may_come(ENDS_AT + 1)
    assert not exchange.may_come(ENDS_AT + 5)
    (pull,) = pulls(exchange, ENDS_AT + 1)
    exchange.failed(pull, again=False)
    assert not exchange.may_come(ENDS_AT + 1)
    assert exchange.incomplete
    assert [each.owner for each in exchange.result() if each.data == b"after all"] == [C]


def test_an_exchange_of_which_all_came_is_complete():
    exchange = begun()
    gathered(exchange)
    for key in (BOB, CAROL):
        assert exchange.incomplete
        exchange.learn(part(key, Stage.REDUCED))
        (pull,) = pulls(exchange, 2.0)
        exchange.pulled(pull, key.public_key)
    assert not exchange.incomplete
    exchange.let_go()
    assert not exchange.incomplete


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("off", [-1, 1])
def test_a_size_that_does_not_belong_costs_the_part(stage, off):
    exchange = begun()
    size = part(BOB, stage).size + off
    with pytest.raises(RemoteError) as caught:
        exchange.learn(part(BOB, stage, size=size))
    assert caught.value.reason is Reason.WRONG_SHAPE
    assert pulls(exchange) == []


def test_two_blobs_for_one_part_are_none():
    exchange = begun()
    exchange.learn(part(BOB, Stage.REDUCED))
    exchange.learn(part(BOB, Stage.REDUCED))  # the same again is no harm
    with pytest.raises(RemoteError) as caught:
        exchange.learn(part(BOB, Stage.REDUCED, content=b"another"))
    assert caught.value.reason is Reason.PROTOCOL
    assert pulls(exchange) == []


def test_statements_of_strangers_and_of_other_exchanges_are_refused():
    exchange = begun()
    other = Group(members=(A, B, C), round=8, size=GROUP.size)
    for wrong in (
        part(Identity(b"d" * 32), Stage.WHOLE),
        part(ALICE, Stage.WHOLE),
        part(BOB, Stage.WHOLE, group=other),
    ):
        with pytest.raises(RemoteError) as caught:
            exchange.learn(wrong)
        assert caught.value.reason is Reason.PROTOCOL
    assert pulls(exchange) == []


def test_with_fewer_chunks_than_members_some_own_nothing():
    group = Group(members=(A, B, C), round=7, size=9)
    exchange = AllReduce(group, A, gather_until=GATHER_UNTIL, ends_at=ENDS_AT)
    assert [group.part_size(member) for member in group.members] == [0, 0, 9]
    exchange.learn(part(BOB, Stage.WHOLE, group=group))
    assert exchange.work(0.0) == []
    assert not exchange.done(0.0)
    exchange.learn(part(CAROL, Stage.REDUCED, group=group))
    (pull,) = pulls(exchange)
    exchange.pulled(pull, b"nine byte")
    assert exchange.done(0.0)


def test_what_comes_early_is_kept_within_bounds():
    early = EarlyMessages()
    rounds = [Group(members=(A, B, C), round=number, size=9) for number in range(3 * MAX_EARLY)]
    for group in rounds:
        early.keep(part(BOB, Stage.WHOLE, group=group))
    assert len(early) == MAX_EARLY
    assert [found.peer for found in early.take(rounds[-1].name)] == [B]
    assert early.take(rounds[-1].name) == early.take(rounds[0].name) == []
    for number in range(2 * MAX_GROUP):
        early.keep(part(Identity(number.to_bytes(32, "big")), Stage.WHOLE))
    assert len(early) <= MAX_GROUP


def test_a_part_comes_back_from_its_request():
    stated = part(BOB, Stage.REDUCED)
    request = parse_request(encode_request(PartRequest(envelope=stated.raw)))
    assert request == PartRequest(envelope=stated.raw)
    assert parse_part(open_envelope(stated.raw, SCOPE)) == stated


@pytest.mark.parametrize(
    ("kind", "stage", "body", "reason"),
    [
        (EnvelopeKind.GOODBYE, 0, pack((9,)), Reason.UNKNOWN_KIND),
        (EnvelopeKind.PART, 2, pack((9,)), Reason.MALFORMED),
        (EnvelopeKind.PART, 0, pack((0,)), Reason.MALFORMED),
        (EnvelopeKind.PART, 0, pack((9, 9)), Reason.MALFORMED),
        (EnvelopeKind.PART, 0, pack((1 << 40,)), Reason.MALFORMED),
    ],
)
def test_a_statement_that_is_no_part(kind, stage, body, reason):
    statement = Statement(kind=kind, epoch=1, seq=stage, prev=GROUP.name, payload=NO_DIGEST, body=body)
    with pytest.raises(RemoteError) as caught:
        parse_part(sealed(statement))
    assert caught.value.reason is reason


@given(st.binary(max_size=40), st.integers(0, 5))
def test_no_body_breaks_the_parser(body, stage):
    statement = Statement(kind=EnvelopeKind.PART, epoch=1, seq=stage, prev=GROUP.name, payload=NO_DIGEST, body=body)
    with suppress(RemoteError):
        assert parse_part(sealed(statement)).size > 0


def test_a_vector_that_comes_after_reducing_is_not_held_in_memory():
    exchange = begun()
    exchange.learn(part(BOB, Stage.WHOLE))
    (pull,) = pulls(exchange)
    (work,) = exchange.work(GATHER_UNTIL)
    assert isinstance(work, Reduce)
    assert list(work.vectors) == [A]
    exchange.own_reduced(bytes(GROUP.part_size(A)))
    exchange.pulled(pull, BOB.public_key)
    assert exchange._gathered == {}
