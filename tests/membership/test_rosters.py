"""Rosters: whatever the order and the grouping in which items arrive, the same bytes; bounded; exact on disk."""

import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples
from swarms import (
    ADMIN,
    ADMINS,
    CHAIN,
    NOW,
    SWARM,
    appointment,
    certificate,
    chain_of,
    invite,
    items_of,
    peer,
)

from gossip.core.digests import DIGEST_BYTES, digest_of
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.membership_limits import MAX_ITEM_BYTES, MAX_PAGE_BYTES
from gossip.membership import (
    Roster,
    buckets,
    differing,
    dump_roster,
    load_roster,
    pack_item,
    pages,
    parse_item,
    parse_page,
    revoke_grant,
    revoke_peer,
    roster_digest,
    rotate,
    rotated,
)
from gossip.membership.roster import Item

BOARD = ADMINS[:2]
KEYS = [each.public_key for each in BOARD]


def population() -> list[Item]:
    """Members by counted and uncounted invites, twice and under new keys, appointments and revocations."""
    invites = [invite(number, uses=uses) for number, uses in enumerate((1, 2, 3, None, None))]
    members = [
        certificate(peer(who), granted, number, at=NOW + (who * 7 + number * 3 + again) % 11)
        for number, granted in enumerate(invites)
        for who in range(5)
        for again in range(2)
    ]
    followers = [
        rotated(each, rotate(peer(who), peer(50 + who).peer_id, issued_at=NOW))
        for who, each in enumerate(members[::2][:5])
    ]
    rivals = [rotated(members[0], rotate(peer(0), peer(60 + at).peer_id, issued_at=NOW)) for at in range(2)]
    out = [revoke_peer(admin, SWARM, peer(who).peer_id, issued_at=NOW - who) for who in range(4) for admin in BOARD]
    out += [
        revoke_grant(ADMIN, SWARM, each.id, issued_at=NOW - at, reason="lost") for at, each in enumerate(invites[2:])
    ]
    return [*members, *followers, *rivals, *out, *(appointment(peer(who)) for who in range(3))]


ITEMS = population()


def roster_of(items, most: int = 9, most_revocations: int = 5) -> Roster:
    roster = Roster(SWARM, KEYS, most=most, most_revocations=most_revocations)
    for item in items:
        roster.put(item)
    return roster


def bytes_of(roster: Roster) -> bytes:
    return dump_roster(roster)


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from(ITEMS), max_size=30), min_size=1, max_size=5), st.randoms())
@settings(max_examples=examples(300))
def test_any_order_and_grouping_of_merges_gives_the_same_bytes(groups, rng):
    whole = bytes_of(roster_of(item for group in groups for item in group))
    shuffled = [item for group in groups for item in group]
    rng.shuffle(shuffled)
    assert bytes_of(roster_of(shuffled)) == whole
    rosters = [roster_of(group) for group in groups]
    rng.shuffle(rosters)
    merged = roster_of(())
    for each in rosters:
        merged.merge(each)
    assert bytes_of(merged) == whole

    def joined(left: Roster, right: Roster) -> Roster:
        both = roster_of(right.all())
        both.merge(left)
        return both

    assert bytes_of(reduce(joined, rosters)) == whole
    assert not merged.merge(rosters[0])
    assert bytes_of(merged) == whole


@given(st.permutations(ITEMS))
@settings(max_examples=examples(50))
def test_a_large_enough_roster_is_the_same_too(items):
    assert bytes_of(roster_of(items, 4096, 4096)) == bytes_of(roster_of(ITEMS, 4096, 4096))


def test_the_earliest_redemptions_hold():
    two = invite(1, uses=2)
    late, early, first = (certificate(peer(who), two, 1, at=NOW + at) for who, at in ((1, 9), (2, 5), (3, 1)))
    roster = roster_of(())
    assert [roster.add(item) for item in items_of(late, early, first)] == [True, True, True]
    assert roster.certificates == (first, early)
    assert roster.taken(two.id) == 2
    assert roster.held(late.key) is None
    assert not roster.put(late)


def test_one_peer_takes_one_use():
    two = invite(1, uses=2)
    roster = roster_of(certificate(peer(1), two, 1, at=NOW + at) for at in range(5))
    assert roster.taken(two.id) == 1


def test_revocations_have_places_of_their_own_and_the_first_stay():
    out = [revoke_peer(ADMIN, SWARM, peer(who).peer_id, issued_at=NOW + who) for who in range(7)]
    roster = roster_of([*ITEMS[:50], *out])
    assert [each.target for each in roster.revocations] == [peer(who).peer_id for who in range(5)]
    assert len(roster.certificates) == 9
    assert not roster.put(out[6])
    assert roster.revoked_peer(peer(6).peer_id) is None


def test_a_stolen_unlimited_invite_pushes_out_no_counted_member():
    counted = [certificate(peer(who), invite(who), who) for who in range(3)]
    stolen = invite(99, uses=None)
    flood = [certificate(peer(100 + who), stolen, 99, at=NOW - 50) for who in range(20)]
    roster = roster_of([*flood, *counted])
    assert set(counted) <= set(roster.certificates)
    assert len(roster) == 9


def test_an_item_needs_its_swarm_an_admin_and_its_signatures():
    roster = Roster(SWARM, [ADMIN.public_key])
    other = chain_of(nonce=b"m" * 16)
    for item, reason in (
        (appointment(peer(1), ADMINS[1]), Reason.FORGED),
        (revoke_peer(ADMINS[1], SWARM, peer(1).peer_id, issued_at=NOW), Reason.FORGED),
        (certificate(peer(1), invite(chain=other)), Reason.WRONG_SWARM),
        (revoke_peer(ADMIN, other.swarm, peer(1).peer_id, issued_at=NOW), Reason.WRONG_SWARM),
    ):
        with pytest.raises(RemoteError) as caught:
            roster.add(pack_item(item))
        assert caught.value.reason is reason
    assert len(roster) == 0


@pytest.mark.parametrize(
    "item", ITEMS[:1] + ITEMS[50:52] + ITEMS[57:60] + ITEMS[-1:], ids=lambda item: type(item).__name__
)
def test_items_come_back(item):
    assert parse_item(pack_item(item)) == item
    assert len(pack_item(item)) <= MAX_ITEM_BYTES


def test_a_roster_comes_back_from_the_disk():
    roster = roster_of(ITEMS, 4096, 4096)
    data = dump_roster(roster)
    assert dump_roster(load_roster(data, SWARM, KEYS)) == data
    fewer = load_roster(data, SWARM, KEYS[:1])
    assert {each.admin for each in fewer.revocations} == set(KEYS[:1])
    with pytest.raises(LocalError, match="another swarm"):
        load_roster(data, chain_of(nonce=b"m" * 16).swarm, KEYS)


def test_a_damaged_roster_is_refused_wherever_it_is_damaged():
    data = dump_roster(roster_of(ITEMS[:2]))
    rng = random.Random(5)
    for _ in range(300):
        at = rng.randrange(len(data))
        hurt = bytearray(data)
        hurt[at] ^= 1 << rng.randrange(8)
        for each in (bytes(hurt), data[:at]):
            with pytest.raises(LocalError):
                load_roster(each, SWARM, KEYS)


@pytest.mark.parametrize("body", [b"\x00\x00\x00\x05abc", b"\x00\x00\x00\x03abc", b"\x00\x00\x00"])
def test_a_roster_with_a_true_digest_is_parsed_as_strictly(body):
    whole = dump_roster(roster_of(()))[:-DIGEST_BYTES] + body
    with pytest.raises(LocalError, match="never signed"):
        load_roster(whole + digest_of(whole), SWARM, KEYS)


@given(st.lists(st.sampled_from(ITEMS)), st.lists(st.sampled_from(ITEMS)))
@settings(max_examples=examples(60))
def test_two_rosters_become_one_by_exchanging_what_differs(mine, theirs):
    one, other = roster_of(mine, 4096, 4096), roster_of(theirs, 4096, 4096)
    parts = differing(buckets(one), buckets(other))
    assert (not parts) == (roster_digest(one) == roster_digest(other))
    sent, back = list(pages(one, parts)), list(pages(other, parts))
    assert all(len(page) <= MAX_PAGE_BYTES for page in sent + back)
    for page in sent:
        for item in parse_page(page):
            other.add(item)
    for page in back:
        for item in parse_page(page):
            one.add(item)
    assert roster_digest(one) == roster_digest(other)
    assert dump_roster(one) == dump_roster(other)


def test_what_is_no_list_of_parts_is_refused():
    mine = buckets(roster_of(()))
    with pytest.raises(RemoteError):
        differing(mine, mine[:-1])
    assert CHAIN.swarm == SWARM
