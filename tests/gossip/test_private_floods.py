"""Members of a private swarm that lie about its roster and manifests: what they cost, and what it costs them."""

from contextlib import suppress
from dataclasses import replace

import pytest
import trio
from gossip_swarm import identity, until
from private_liars import insider, items, reasons
from private_swarm import (
    NOW,
    OTHER_ADMIN,
    certificate,
    chain,
    invite,
    met,
    private_swarm,
    revocation,
    rosters,
    version,
)

from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.errors import Reason
from gossip.core.ids import SwarmId
from gossip.core.member_messages import BucketsRequest, MembershipRequest, RosterRequest, TermsRequest, known_fields
from gossip.core.membership_limits import BUCKET_BYTES, BUCKETS, TOLERANCE_S
from gossip.core.messages import Refused, encode_answer
from gossip.membership import pack_item, revoke_peer
from gossip.membership.anti_entropy import NEWS_BURST, NEWS_PER_S, PULLS_BURST, PULLS_PER_S
from gossip.membership.membership_sync_task import LOOK_S
from gossip.membership.roster_sync import paged
from gossip.session import ask_once
from gossip.transport.base import TransportError

OPEN = invite(90, uses=None)
"""One that whoever has it can take up without end."""


@pytest.mark.slow
async def test_whoever_makes_members_without_end_is_bounded_and_banned(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        nodes = await it.enter_all(1, 2)
        liar = await insider(it, nursery, 66)
        await liar.transport.dial(nodes[0].address)
        await until(lambda: liar.peer in rosters(nodes[1]))
        before, began = len(rosters(nodes[0])), trio.current_time()
        for at, each in enumerate(items(*(certificate(1000 + at, OPEN, of=90, at=NOW - at) for at in range(900)))):
            with suppress(Refused, TransportError):
                await liar.tells(nodes[0], each)
            if not met(nodes[0], liar.peer):
                break
            assert at >= NEWS_BURST or not reasons(nodes[0], liar)
        most = NEWS_BURST + NEWS_PER_S * (trio.current_time() - began)
        assert NEWS_BURST <= len(rosters(nodes[0])) - before <= most + 1
        assert liar.peer in {event.peer for event in nodes[0].told("banned")}
        assert set(reasons(nodes[0], liar)) <= {Reason.FLOODED, Reason.BANNED}
        await until(lambda: len(rosters(nodes[1])) == len(rosters(nodes[0])), 60)  # what is taken is everybody's,
        assert not any(reasons(node, other) for node in nodes for other in nodes)  # and passing it on is no offence
        nursery.cancel_scope.cancel()


FORGED = bytearray(pack_item(certificate(70)))
FORGED[-2] ^= 1  # of the redemption's signature


def foreign(swarm: SwarmId) -> bytes:
    return pack_item(revoke_peer(OTHER_ADMIN, swarm, identity(1).peer_id, issued_at=NOW, reason=""))


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (bytes(FORGED), Reason.FORGED),
        (pack_item(certificate(70, invite(70, admin=OTHER_ADMIN))), Reason.FORGED),
        (foreign(chain().swarm), Reason.FORGED),
        (foreign(SwarmId(b"x" * 16)), Reason.WRONG_SWARM),
        (b"\xc1", Reason.MALFORMED),
    ],
)
async def test_what_nobody_may_say_is_charged_to_who_says_it(autojump_clock, tmp_path, item, reason):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        nodes = await it.enter_all(1, 2)
        liar = await insider(it, nursery, 66)
        await liar.transport.dial(nodes[0].address)
        liar.known = nodes[0].service._membership_sync.anti_entropy.known()
        before = rosters(nodes[0])
        with pytest.raises(Refused, match=reason):
            await liar.tells(nodes[0], item)
        assert reasons(nodes[0], liar) == {reason: 1}
        assert nodes[0].service._engine.peer_scores.scores.points(liar.peer, trio.current_time()) > 0
        assert rosters(nodes[0]) == before
        nursery.cancel_scope.cancel()


async def test_under_another_manifest_an_unknown_admin_is_nobodys_fault(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        node = await it.enter(1)
        ahead = await insider(it, nursery, 66)
        ahead.known = replace(ahead.known, version=2, manifest=digest_of(b"not held here"))
        await ahead.transport.dial(node.address)
        before = rosters(node)
        await ahead.tells(node, pack_item(certificate(70, invite(70, admin=OTHER_ADMIN))))
        assert not reasons(node, ahead)
        assert rosters(node).keys() - {ahead.peer} == before.keys() - {ahead.peer}
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_liar_cannot_undo_a_revocation(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        nodes = await it.enter_all(1, 2, 3)
        liar = await insider(it, nursery, 66)
        stale = pack_item(certificate(3))
        for node in nodes[:2]:
            await liar.transport.dial(node.address)
        nodes[0].service.submit([revocation(nodes[2].peer)])
        await until(lambda: all(rosters(node)[nodes[2].peer] is Reason.REVOKED for node in nodes[:2]))

        def answer(request):  # its roster is always another, and has the revoked alone
            if isinstance(request, MembershipRequest):
                return encode_answer(*known_fields(replace(liar.known, roster=NO_DIGEST)))
            if isinstance(request, BucketsRequest):
                return encode_answer(bytes(BUCKETS * BUCKET_BYTES))
            return encode_answer(next(paged([stale])) if request.page == 0 else b"")

        liar.answer = answer
        for node in nodes[:2]:
            await liar.tells(node, stale, pack_item(certificate(3, at=NOW - 3000)))
        await trio.sleep(60)
        assert all(rosters(node)[nodes[2].peer] is Reason.REVOKED for node in nodes[:2])
        assert not any(met(node, nodes[2].peer) for node in nodes[:2])
        nursery.cancel_scope.cancel()


async def test_whoever_always_has_another_roster_is_asked_rarely(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        node = await it.enter(1)
        liar = await insider(it, nursery, 66)
        told = 0

        def answer(request):
            nonlocal told
            if isinstance(request, MembershipRequest):
                told += 1
                return encode_answer(*known_fields(replace(liar.known, roster=digest_of(told.to_bytes(4, "big")))))
            return encode_answer(bytes(BUCKETS * BUCKET_BYTES) if isinstance(request, BucketsRequest) else b"")

        liar.answer = answer
        await liar.transport.dial(node.address)
        began = trio.current_time()
        for at in range(100):
            liar.known = replace(liar.known, roster=digest_of(at.to_bytes(8, "big")))
            request = MembershipRequest.of(liar.known)
            await trio.sleep(0.1)
            with suppress(Refused):
                await ask_once(liar.transport, node.peer, request, 10.0, 1024)
        asked = sum(isinstance(each, BucketsRequest) for each in liar.asked)
        assert 2 <= asked <= PULLS_BURST + PULLS_PER_S * (trio.current_time() - began) + 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("what", ["page", "buckets", "manifest", "forged manifest"])
async def test_what_is_pulled_from_a_liar_is_held_against_it(autojump_clock, tmp_path, what):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        node = await it.enter(1)
        liar = await insider(it, nursery, 66)
        forged = version(chain().newest, OTHER_ADMIN)
        manifest = what in ("manifest", "forged manifest")

        def answer(request):
            if isinstance(request, MembershipRequest):
                digest = forged.digest if manifest else chain().newest.digest
                told = replace(liar.known, roster=NO_DIGEST, version=1 + manifest, manifest=digest)
                return encode_answer(*known_fields(told))
            if isinstance(request, TermsRequest):
                return encode_answer(forged.raw if what == "forged manifest" else b"\x90")
            if isinstance(request, BucketsRequest):
                return encode_answer(b"?" if what == "buckets" else bytes(BUCKETS * BUCKET_BYTES))
            assert isinstance(request, RosterRequest)
            return encode_answer(next(paged([bytes(FORGED)])))

        liar.answer = answer
        await liar.transport.dial(node.address)
        await trio.sleep(1)
        expected = {"page": Reason.FORGED, "forged manifest": Reason.FORGED}.get(what, Reason.MALFORMED)
        assert reasons(node, liar)[expected] >= 1
        assert not it.applied[node.peer]
        await until(lambda: what == "forged manifest" or not met(node, liar.peer), 300)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_silent_member_beyond_the_gate_s_memory_is_cut_off_when_its_time_ends(
    autojump_clock, tmp_path, monkeypatch
):
    monkeypatch.setattr("gossip.membership.admission.MAX_REMEMBERED", 1)
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        first = await it.enter(1)
        silent = await insider(it, nursery, 66, expires=NOW + 100)
        await silent.transport.dial(first.address)
        await it.enter(2, (first,))  # whom the gate remembers instead
        await trio.sleep(100)
        assert silent.peer in first.transport.peers
        await trio.sleep(TOLERANCE_S + 3 * LOOK_S)
        assert silent.peer not in first.transport.peers
        nursery.cancel_scope.cancel()
