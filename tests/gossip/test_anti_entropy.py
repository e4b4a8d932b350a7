"""The bounds of what one member tells, pulls and asks for again, in a private swarm; no network."""

from dataclasses import replace

import pytest
from gossip_swarm import identity
from private_swarm import NOW, OTHER_ADMIN, certificate, chain, invite, private_swarm, revocation, version

from gossip.core.errors import Reason
from gossip.core.member_messages import Known
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.membership import MembershipAdmission, Roster, pack_item
from gossip.membership.anti_entropy import TOLD_BURST, TOLD_PER_S, AntiEntropy
from gossip.membership.roster_sync import paged, parse_page

PEER = identity(2).peer_id
FLOOD = [pack_item(certificate(1000 + at, invite(90, uses=None), of=90)) for at in range(2 * TOLD_BURST)]


@pytest.fixture
def it():
    roster = Roster(chain().swarm, chain().newest.terms.admins)
    admission = MembershipAdmission(
        peer=identity(1).peer_id, certificate=certificate(1), chain=chain(), roster=roster, now=lambda: float(NOW)
    )
    return AntiEntropy(admission)


def test_what_a_member_tells_has_a_rate_and_revocations_come_first(it):
    word = revocation(PEER)
    first = parse_page(it.news_page([*FLOOD, word], 0.0))
    assert first[0] == word
    pages = [it.news_page(FLOOD, 0.0) for _ in range(8)]
    assert 0 < len(first) - 1 + sum(len(parse_page(page)) for page in pages if page) <= TOLD_BURST
    assert parse_page(it.news_page([*FLOOD, word], 0.0)) == (word,)
    assert len(parse_page(it.news_page(FLOOD, 1.0))) == TOLD_PER_S


def test_what_is_pulled_from_a_member_has_a_bound_but_for_revocations(it):
    it._pulled = KeyedTokenBucket(burst=2, per_s=1)
    word = revocation(PEER)
    applied = it.on_page(PEER, next(paged([*FLOOD[:4], word])), it.known(), 0.0)
    assert applied.error is not None
    assert applied.error.reason is Reason.FLOODED
    assert len(applied.new) == 3
    assert word in applied.new
    again = it.on_page(PEER, next(paged([*FLOOD[:2], word])), it.known(), 0.0)  # known already: no news
    assert again.error is None
    assert not again.new


@pytest.mark.parametrize("signer", [OTHER_ADMIN, None], ids=["forged", "forked"])
def test_a_refused_manifest_is_not_asked_for_again(it, signer):
    if signer is None:
        it.admission.chain.accept(version(chain().newest, run="ours"))
    manifest = version(chain().newest, run="theirs") if signer is None else version(chain().newest, signer)
    theirs = Known(roster=it.known().roster, version=2, manifest=manifest.digest)
    assert it.wants_manifest(PEER, theirs)
    applied = it.on_manifest(PEER, manifest.raw, theirs)
    assert applied.error is not None
    assert not it.wants_manifest(PEER, theirs)


def test_who_offers_a_manifest_and_serves_another_keeps_it_from_nobody(it):
    """A member that hears of a change before us could otherwise hide it: an admin's removal, for example."""
    real = version(chain().newest, run="next")
    theirs = Known(roster=it.known().roster, version=2, manifest=real.digest)
    liar, honest = PEER, identity(3).peer_id
    assert it.on_manifest(liar, version(chain().newest, OTHER_ADMIN).raw, theirs).error is not None
    assert not it.wants_of(liar, theirs, 0.0)
    assert it.wants_of(honest, theirs, 0.0)
    assert it.on_manifest(honest, real.raw, theirs).error is None
    assert it.admission.chain.newest.digest == real.digest


def test_refused_manifests_are_forgotten_oldest_first(it, monkeypatch):
    monkeypatch.setattr("gossip.membership.anti_entropy.MAX_REFUSED", 2)
    forged = version(chain().newest, OTHER_ADMIN)
    theirs = Known(roster=it.known().roster, version=2, manifest=forged.digest)
    for number in (2, 3, 4):
        it.on_manifest(identity(number).peer_id, forged.raw, theirs)
    assert [it.wants_manifest(identity(number).peer_id, theirs) for number in (2, 3, 4)] == [True, False, False]


async def test_only_trainers_stand_on_the_rings(autojump_clock, tmp_path, monkeypatch):
    async with private_swarm(tmp_path) as swarm:
        nodes = await swarm.enter_all(1, 2, 3)
        engine, stranger = nodes[0].service._engine, identity(77).peer_id
        known = engine.peerstore.known()[0]
        engine.peerstore.learn(_of(stranger, known), first_hand=False)
        seen = []
        monkeypatch.setattr(engine.mesh, "look_round", lambda heard_of, now: seen.extend(heard_of))
        engine.look_round(0.0)
        assert known.peer in seen
        assert stranger not in seen
        monkeypatch.undo()


def _of(peer, record):
    return replace(record, peer=peer)
