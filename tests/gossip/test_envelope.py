import sys

import pytest
from gossip_samples import ALICE, BOB, CAROL, ONE_OF_EACH, SCOPE, chain, link, record, sealed
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.digests import NO_DIGEST, digest_of, swarm_id_of
from gossip.core.envelope import DOMAIN, EnvelopeKind, Scope, Statement, open_envelope, open_from, seal
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import RunId
from gossip.core.limits import MAX_ADDRESSES, PROTOCOL_VERSION
from gossip.core.statements import (
    UpdateHeaderBody,
    parse_record,
    parse_update_header,
    record_statement,
    update_header_statement,
)
from gossip.core.wire import pack


def refusal(raw: bytes, scope: Scope = SCOPE) -> Reason:
    with pytest.raises(RemoteError) as caught:
        open_envelope(raw, scope)
    return caught.value.reason


@given(
    kind=st.sampled_from(EnvelopeKind),
    numbers=st.tuples(st.integers(0, 2**53 - 1), st.integers(0, 2**53 - 1)),
    digests=st.tuples(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32)),
    body=st.binary(max_size=6 * 1024),
)
def test_statements_come_back(kind, numbers, digests, body):
    statement = Statement(kind=kind, epoch=numbers[0], seq=numbers[1], prev=digests[0], payload=digests[1], body=body)
    sent = seal(ALICE, SCOPE, statement)
    assert open_envelope(sent.raw, SCOPE) == sent
    assert sent.statement == statement
    assert sent.sender == ALICE.peer_id


def test_another_key_cannot_sign_for_alice():
    fields = (PROTOCOL_VERSION, SCOPE.swarm, SCOPE.run, "link", ALICE.public_key, 1, 0, NO_DIGEST, NO_DIGEST, b"")
    signed = pack(fields)
    assert refusal(pack((signed, BOB.sign(DOMAIN + signed)))) is Reason.FORGED


def test_a_signature_for_another_purpose_does_not_count():
    fields = (PROTOCOL_VERSION, SCOPE.swarm, SCOPE.run, "link", ALICE.public_key, 1, 0, NO_DIGEST, NO_DIGEST, b"")
    signed = pack(fields)
    assert refusal(pack((signed, ALICE.sign(signed)))) is Reason.FORGED


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_another_swarm_or_run_is_refused(kind):
    other_swarm = Scope(swarm=swarm_id_of("another"), run=SCOPE.run)
    other_run = Scope(swarm=SCOPE.swarm, run=RunId(b"s" * 16))
    assert refusal(ONE_OF_EACH[kind], other_swarm) is Reason.WRONG_SWARM
    assert refusal(ONE_OF_EACH[kind], other_run) is Reason.WRONG_RUN


def signed_with(version: int, kind: str) -> bytes:
    fields = (version, SCOPE.swarm, SCOPE.run, kind, ALICE.public_key, 1, 0, NO_DIGEST, NO_DIGEST, b"")
    signed = pack(fields)
    return pack((signed, ALICE.sign(DOMAIN + signed)))


def test_unknown_kinds_and_versions_are_named():
    assert refusal(signed_with(PROTOCOL_VERSION, "gossip")) is Reason.UNKNOWN_KIND
    assert refusal(signed_with(PROTOCOL_VERSION + 1, "link")) is Reason.PROTOCOL


def test_open_from_takes_one_sender_and_kind_only():
    raw = ONE_OF_EACH[EnvelopeKind.RECORD]
    assert open_from(raw, SCOPE, ALICE.peer_id, EnvelopeKind.RECORD).sender == ALICE.peer_id
    with pytest.raises(RemoteError) as caught:
        open_from(raw, SCOPE, BOB.peer_id, EnvelopeKind.RECORD)
    assert caught.value.reason is Reason.FORGED
    with pytest.raises(RemoteError) as caught:
        open_from(raw, SCOPE, ALICE.peer_id, EnvelopeKind.LINK)
    assert caught.value.reason is Reason.UNKNOWN_KIND


def test_too_much_is_our_own_mistake():
    with pytest.raises(LocalError):
        sealed(Statement(kind=EnvelopeKind.LINK, epoch=1, seq=0, prev=NO_DIGEST, payload=NO_DIGEST, body=bytes(6145)))


def test_links_come_back():
    genesis, delta = chain(2)
    assert parse_update_header(open_envelope(genesis.raw, SCOPE)) == genesis
    assert delta.prev == genesis.digest
    assert delta.body.kind == "delta"


@pytest.mark.parametrize(
    "wrong",
    [
        {"seq": 0, "prev": NO_DIGEST, "kind": "delta", "size": 5},
        {"seq": 1, "prev": digest_of(b"p"), "kind": "snapshot", "size": 5},
        {"seq": 1, "prev": NO_DIGEST, "kind": "delta", "size": 5},
        {"seq": 0, "prev": digest_of(b"p"), "kind": "snapshot", "size": 5},
        {"seq": 0, "prev": NO_DIGEST, "kind": "snapshot", "size": 0},
        {"seq": 0, "prev": NO_DIGEST, "kind": "genesis", "size": 5},
    ],
)
def test_links_that_contradict_themselves_are_refused(wrong):
    body = UpdateHeaderBody(
        round=0, kind=wrong["kind"], size=wrong["size"], genesis=NO_DIGEST if wrong["kind"] == "genesis" else None
    )
    address = digest_of(b"x") if wrong["kind"] != "genesis" else NO_DIGEST
    statement = update_header_statement(epoch=1, seq=wrong["seq"], prev=wrong["prev"], address=address, body=body)
    with pytest.raises(RemoteError) as caught:
        parse_update_header(sealed(statement))
    assert caught.value.reason is Reason.PROTOCOL


def test_an_unknown_kind_of_update_is_named():
    statement = update_header_statement(
        epoch=1, seq=0, prev=NO_DIGEST, address=NO_DIGEST, body=UpdateHeaderBody(round=0, kind="joke")
    )
    with pytest.raises(RemoteError) as caught:
        parse_update_header(sealed(statement))
    assert caught.value.reason is Reason.UNKNOWN_KIND


def test_a_record_may_name_its_signer_only():
    lie = record(addresses=(f"/ip4/198.51.100.7/tcp/1/p2p/{CAROL.peer_id}",))
    with pytest.raises(RemoteError) as caught:
        parse_record(open_envelope(lie, SCOPE))
    assert caught.value.reason is Reason.MALFORMED


def test_records_share_their_regions_label_and_the_process_keeps_none_for_ever():
    said = [record_statement(epoch=1, version=each, addresses=(), region="-".join(["any", "name"])) for each in (1, 2)]
    one, other = (parse_record(sealed(each)) for each in said)
    assert one.region is other.region
    again = "-".join(["any", "name"])
    assert sys.intern(again) is again, "it was not interned before, which Python 3.12 does for good"


def test_a_record_keeps_to_the_bounds_of_the_wire():
    suffix = f"/p2p/{ALICE.peer_id}"
    many = (*tuple(f"/ip4/192.0.2.{n}/tcp/1{suffix}" for n in range(20)), "/dns/" + "x" * 300 + suffix)
    record_ = parse_record(sealed(record_statement(epoch=1, version=1, addresses=many)))
    assert record_.addresses == many[:MAX_ADDRESSES]


def test_equal_links_have_equal_digests_and_others_have_not():
    assert link(seq=0).digest == link(seq=0).digest
    assert link(seq=0).digest != link(seq=0, round=1).digest
