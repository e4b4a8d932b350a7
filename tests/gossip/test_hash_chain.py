import pytest
from gossip_samples import BOB, SCOPE, chain, link, offer

from gossip.core.digests import digest_of
from gossip.core.envelope import open_envelope
from gossip.core.errors import Reason, RemoteError
from gossip.core.limits import MAX_LINKS
from gossip.updates.hash_chain import MAX_PENDING, RECENT_LINKS, EquivocationError, HashChain, Verdict
from gossip.updates.neighbour import FetchHeaders, FetchPayload, FetchSnapshot, Neighbour, place_of


def following(links) -> HashChain:
    """A chain in which all of `links` have been applied in order."""
    it = HashChain()
    for each in links:
        it.learn(each)
        it.apply(place_of(each))
    return it


def test_links_in_order_are_next_one_by_one():
    it, links = HashChain(), chain(3)
    for each in links:
        assert it.learn(each) is Verdict.NEWS
        assert it.next_link() == each
        it.apply(place_of(each))
        assert it.next_link() is None
    assert [it.learn(each) for each in links] == [Verdict.DUPLICATE] * 3


def test_links_out_of_order_wait_for_the_missing_one():
    it, links = following(chain(1)), chain(4)
    for each in (links[3], links[2]):
        assert it.learn(each) is Verdict.NEWS
        assert it.next_link() is None
    assert it.gap == 1
    assert it.learn(links[1]) is Verdict.NEWS
    for each in links[1:]:
        assert it.next_link() == each
        it.apply(place_of(each))


def test_two_links_at_one_place_are_proof():
    one, other = chain(2)[1], chain(2, content=b"another")[1]
    for it in (HashChain(), following(chain(1))):
        it.learn(one)
        with pytest.raises(EquivocationError) as caught:
            it.learn(other)
        assert [open_envelope(raw, SCOPE).digest for raw in caught.value.proof] == [one.digest, other.digest]


def test_a_successor_of_another_history_is_proof():
    honest, fork = chain(2), chain(3, content=b"another")
    it = following(honest)
    with pytest.raises(EquivocationError) as caught:
        it.learn(fork[2])
    assert caught.value.proof == (honest[1].raw, fork[2].raw)


def test_a_fork_that_was_learned_early_is_found_when_its_turn_comes():
    honest, fork = chain(2), chain(3, content=b"another")
    it = following(honest[:1])
    it.learn(fork[2])
    it.apply(place_of(honest[1]))
    with pytest.raises(EquivocationError):
        it.next_link()


def test_an_earlier_incarnation_is_a_replay_and_a_later_one_begins_anew():
    it = following(chain(3, epoch=5))
    assert it.learn(link(epoch=4)) is Verdict.REPLAYED
    base = link(epoch=6, kind="snapshot", round=9)
    assert it.learn(base) is Verdict.NEWS
    assert it.next_link() == base


def test_old_links_are_late_for_a_while_and_replays_after():
    links = chain(20)
    it = HashChain()
    it.learn(links[15])
    it.apply(place_of(links[15]))
    assert it.learn(links[10]) is Verdict.LATE
    assert it.learn(links[3]) is Verdict.REPLAYED


def test_tables_keep_their_bounds():
    it = HashChain()
    for each in chain(200)[1:]:
        it.learn(each)
    assert len(it._pending) == MAX_PENDING
    assert len(it._recent) == RECENT_LINKS
    assert it.gap == 200 - MAX_PENDING


def test_a_link_that_fell_out_of_the_waiting_ones_is_taken_in_again():
    it, links = following(chain(1)), chain(MAX_PENDING + 3)
    for each in links[1:]:
        it.learn(each)
    assert it.next_link() is None
    assert it.learn(links[-1]) is Verdict.DUPLICATE
    for each in links[1:4]:
        it.learn(each)
    assert it.gap >= 0


def test_an_offer_of_another_state_than_its_link_names_is_proof_of_a_lie():
    links = chain(4)
    marked = link(seq=4, prev=links[3].digest, round=4, state=digest_of(b"snapshot"))
    lying = link(seq=4, prev=links[3].digest, round=4, state=digest_of(b"another"))
    for last, lies in ((marked, False), (lying, True)):
        it = following(links)
        it.learn(last)
        if not lies:
            it.check_offer(offer(last))
            continue
        with pytest.raises(EquivocationError) as caught:
            it.check_offer(offer(last))
        assert caught.value.proof == (last.raw, offer(last).raw)


def test_an_offer_must_fit_what_was_signed():
    links = chain(4)
    it = following(links[:3])
    it.check_offer(offer(links[2]))
    it.check_offer(offer(links[3]))
    with pytest.raises(EquivocationError):
        it.check_offer(offer(links[2], digest=digest_of(b"another")))
    for stale, reason in ((offer(links[1]), Reason.STALE), (offer(link(epoch=0)), Reason.REPLAYED)):
        with pytest.raises(RemoteError) as caught:
            it.check_offer(stale)
        assert caught.value.reason is reason


def test_a_snapshot_jumps_the_gap_and_the_chain_goes_on():
    links = chain(30)
    it = following(links[:2])
    for each in links[25:28]:
        it.learn(each)
    it.apply(place_of(offer(links[25])))
    assert it.next_link() == links[26]


# -- what to fetch


def test_work_for_a_newcomer_near_the_base():
    it, links = Neighbour(BOB.peer_id, 0.0), chain(4)
    assert it.next_work(0.0) is None
    it.chain.learn(links[3])
    assert it.next_work(0.0) == FetchHeaders(epoch=1, first=0, count=3)
    for each in links[:3]:
        it.chain.learn(each)
    it.links_arrived(0.0)
    for each in links:
        assert it.next_work(0.0) == FetchPayload(link=each)
        it.accepted(each)
    assert it.next_work(0.0) is None
    assert (it.tracked, it.applied_round, it.announced_round) == (True, 3, 3)


def test_a_base_has_no_work_of_its_own_round():
    it, links = Neighbour(BOB.peer_id, 0.0), chain(2)
    it.chain.learn(links[0])
    assert (it.applied_round, it.announced_round) == (None, 0)
    it.accepted(links[0])
    assert (it.tracked, it.applied_round, it.announced_round) == (True, -1, 0), "it enters round 0 with this model"
    it.chain.learn(links[1])
    it.accepted(links[1])
    assert (it.applied_round, it.announced_round) == (links[1].body.round, links[1].body.round)


def test_work_for_a_latecomer_is_a_snapshot():
    it, links = Neighbour(BOB.peer_id, 0.0), chain(30)
    it.chain.learn(links[20])
    assert it.next_work(0.0) == FetchSnapshot(epoch=1, seq=20 - MAX_LINKS)
    it.accepted(offer(links[20]))
    it.chain.learn(links[21])
    assert it.next_work(0.0) == FetchPayload(link=links[21])


def test_work_for_a_gap_is_links_then_a_snapshot():
    it, links = Neighbour(BOB.peer_id, 0.0), chain(30)
    it.chain.learn(links[0])
    it.accepted(links[0])
    it.chain.learn(links[5])
    assert it.next_work(0.0) == FetchHeaders(epoch=1, first=1, count=4)
    it.links_arrived(0.0)  # with none of them
    assert it.next_work(0.0) == FetchSnapshot(epoch=1, seq=1)
    it.chain.learn(links[29])
    it.accepted(offer(links[29]))
    assert it.next_work(0.0) is None


def test_a_gone_payload_is_replaced_by_a_snapshot():
    it, links = Neighbour(BOB.peer_id, 0.0), chain(3)
    it.chain.learn(links[0])
    it.accepted(links[0])
    it.chain.learn(links[1])
    it.payload_gone()
    assert it.next_work(0.0) == FetchSnapshot(epoch=1, seq=1)


def test_a_refused_update_needs_something_newer():
    it, links = Neighbour(BOB.peer_id, 0.0), chain(4)
    it.chain.learn(links[0])
    it.accepted(links[0])
    it.chain.learn(links[1])
    it.rejected(links[1], Reason.NONFINITE, 0.0)
    assert not it.tracked
    assert it.next_work(0.0) is None
    assert it.next_work(it.retry_at) == FetchSnapshot(epoch=1, seq=2)
    base = link(epoch=2)
    it.chain.learn(base)
    assert it.next_work(it.retry_at) == FetchPayload(link=base)


def test_failures_wait_longer_each_time_and_a_success_ends_that():
    it, links = Neighbour(BOB.peer_id, 0.0), chain(2)
    it.chain.learn(links[0])
    pauses = []
    for _ in range(8):
        it.failed(0.0)
        pauses.append(it.retry_at)
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.5
    assert pauses[-1] == 10.0
    it.accepted(links[0])
    it.failed(0.0)
    assert it.retry_at == 0.5
