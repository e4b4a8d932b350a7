import pytest
from gossip_samples import ALICE, GENESIS, SCOPE

from gossip.blobs.blob import blob_manifest_of
from gossip.core.api import Head
from gossip.core.digests import digest_of
from gossip.core.envelope import open_envelope
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.limits import MARK_EVERY
from gossip.core.statements import UpdateHeader, parse_update_header
from gossip.updates.neighbour import Neighbour
from gossip.updates.publisher import REUSE_WITHIN, SNAPSHOTS_HELD, Payload, Publisher


def payload(data: bytes) -> Payload:
    return Payload(manifest=blob_manifest_of(data), data=data)


def extend(it: Publisher, round: int) -> UpdateHeader:
    data = f"delta {round}".encode()
    return it.extend(round=round, codec="q2", payload=payload(data), steps=10, tokens=640)


@pytest.fixture
def it() -> Publisher:
    made = Publisher(ALICE, SCOPE, history=4, max_payload_bytes=1000)
    made.begin(epoch=7, round=0, base=GENESIS)
    return made


def test_the_chain_is_what_a_neighbour_can_verify(it):
    links = [it.newest, *(extend(it, n) for n in (1, 2))]
    raws = it.links(7, 0, 8)
    assert [parse_update_header(open_envelope(raw, SCOPE)) for raw in raws] == links
    assert [link.prev for link in links[1:]] == [link.digest for link in links[:2]]
    assert it.head() == Head(epoch=7, seq=2, digest=links[2].digest)


def test_history_is_bounded_with_its_payloads(it):
    for n in range(1, 50):
        extend(it, n)
    assert len(it.blobs) == 4
    assert it.links(7, 0, 8) == []
    assert len(it.links(7, 46, 8)) == 4
    assert len(it.links(7, 47, 2)) == 2
    assert it.links(6, 46, 8) == []


def test_snapshots_are_reused_while_they_lead_to_the_head_and_are_bounded(it):
    extend(it, 1)
    first = it.offer(it.head(), payload(b"estimate at 1"))
    assert it.held_offer(7, 0) == first
    extend(it, 2)
    assert it.held_offer(7, 1) == first
    assert it.held_offer(7, 2) is None
    for n in range(3, 6):
        extend(it, n)
    assert it.held_offer(7, 0) is None
    for n in range(6, 20):
        extend(it, n)
        it.offer(it.head(), payload(b"estimate at %d" % n))
    assert len(it.blobs) == 4 + SNAPSHOTS_HELD


def test_what_is_not_there_yet_cannot_be_offered(it):
    with pytest.raises(RemoteError) as caught:
        it.held_offer(7, 1)
    assert caught.value.reason is Reason.UNAVAILABLE
    with pytest.raises(LocalError):
        it.offer(Head(epoch=7, seq=0, digest=digest_of(b"?")), payload(b"x"))


def test_a_new_epoch_lets_everything_old_go(it):
    extend(it, 1)
    it.offer(it.head(), payload(b"estimate"))
    it.begin(epoch=8, round=5, base=payload(b"the base"))
    assert len(it.blobs) == 1
    assert it.newest.body.kind == "snapshot"
    assert it.newest.body.round == 5
    assert it.is_offer(it.newest.address)


@pytest.mark.parametrize("epoch", [6, 7])
def test_an_epoch_must_be_later(it, epoch):
    with pytest.raises(LocalError):
        it.begin(epoch=epoch, round=0, base=GENESIS)


def test_users_mistakes_are_said():
    fresh = Publisher(ALICE, SCOPE, history=4, max_payload_bytes=1000)
    with pytest.raises(LocalError):
        fresh.head()
    with pytest.raises(LocalError):
        extend(fresh, 1)
    fresh.begin(epoch=1, round=0, base=GENESIS)
    for codec, data in (("", b"x"), ("c" * 33, b"x"), ("q2", b"")):
        with pytest.raises(LocalError):
            fresh.extend(round=1, codec=codec, payload=payload(data), steps=1, tokens=1)


def marked(it: Publisher, seqs: range) -> None:
    for seq in seqs:
        state = payload(b"state %d" % seq) if it.may_mark else None
        assert (state is not None) == (seq % MARK_EVERY == 0)
        data = payload(b"delta %d" % seq)
        it.extend(round=seq, codec="q2", payload=data, steps=10, tokens=640, state=state)


def test_the_newest_mark_is_offered_until_the_next_and_held_alone_while_nobody_asks():
    it = Publisher(ALICE, SCOPE, history=8, max_payload_bytes=1000)
    it.begin(epoch=7, round=0, base=GENESIS)
    marked(it, range(1, 12 * MARK_EVERY))
    assert len(it.blobs) == 8 + 1
    first = it.held_offer(7, 0)
    assert (first.seq, first.address) == (11 * MARK_EVERY, blob_manifest_of(b"state %d" % (11 * MARK_EVERY)).address)
    marked(it, range(12 * MARK_EVERY, 12 * MARK_EVERY + 2))
    assert it.held_offer(7, 0).seq == 12 * MARK_EVERY
    assert first.address in it.blobs, "somebody may still be reading it"
    marked(it, range(12 * MARK_EVERY + 2, 13 * MARK_EVERY + 1))
    assert first.address not in it.blobs
    assert len(it.blobs) == 8 + SNAPSHOTS_HELD


def test_a_later_snapshot_takes_no_marks_place_for_those_who_asked_from_before_it():
    it, neighbour = Publisher(ALICE, SCOPE, history=8, max_payload_bytes=1000), Neighbour(ALICE.peer_id, 0.0)
    follow(neighbour, it.begin(epoch=7, round=0, base=GENESIS))

    def agreed(seq: int) -> int:
        """The seq of what is offered from `seq` on; a witness finds nothing wrong with it."""
        offer = it.held_offer(7, seq) or it.offer(it.head(), payload(b"state %d" % it.newest.seq))
        assert neighbour.witness(7, offer.seq, seq) in (None, offer.address)
        return offer.seq

    for seq in range(1, 2 * MARK_EVERY + 1):
        state = payload(b"state %d" % seq) if seq == MARK_EVERY else None
        data = payload(b"delta %d" % seq)
        follow(neighbour, it.extend(round=seq, codec="q2", payload=data, steps=10, tokens=640, state=state))
        if seq > MARK_EVERY:
            assert agreed(seq) == seq, "a liar may ask for the newest at every link"
            assert [agreed(least) for least in range(MARK_EVERY + 1)] == [MARK_EVERY] * (MARK_EVERY + 1)
    follow(neighbour, extend(it, 2 * MARK_EVERY + 1))
    assert agreed(MARK_EVERY + 1) == 2 * MARK_EVERY, "its mark is too old, and nobody owes that any more"
    assert agreed(MARK_EVERY) == 2 * MARK_EVERY + 1, "what was cut beside the mark is not for who may expect the mark"
    assert len(it.blobs) == 8 + SNAPSHOTS_HELD
    marked(it, range(it.newest.seq + 1, 3 * MARK_EVERY + 1))
    it.begin(epoch=8, round=0, base=GENESIS)
    extend(it, 1)
    later = it.offer(it.head(), payload(b"state 1"))
    assert it.held_offer(7, 0) == later, "a new chain owes nothing of the old one"


def follow(neighbour: Neighbour, link: UpdateHeader) -> None:
    neighbour.chain.learn(link)
    neighbour.accepted(link)
    if link.body.state is not None:
        neighbour.marked(link.place, link.body.state)


def test_who_holds_too_few_links_for_a_mark_to_lead_on_names_none():
    it = Publisher(ALICE, SCOPE, history=REUSE_WITHIN, max_payload_bytes=1000)
    it.begin(epoch=7, round=0, base=GENESIS)
    for round_ in range(1, 2 * MARK_EVERY):
        assert not it.may_mark
        extend(it, round_)
