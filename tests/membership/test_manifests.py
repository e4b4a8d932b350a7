"""Manifests come back as they were; chains take up what enough admins signed, in order, and nothing else."""

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples
from swarms import ADMIN, ADMINS, CHAIN, HOME, PSK, TYPICAL, after, bootstrap, chain_of, founding, peer, terms

from gossip.core import membership_limits as bounds
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.limits import MAX_BLOB_BYTES, MAX_COUNTER
from gossip.core.wire import pack
from gossip.membership import (
    ManifestBody,
    ManifestChain,
    Policy,
    create_manifest,
    load_own_chain,
    next_version,
    pack_manifests,
    parse_manifest,
    psk_fingerprint,
)
from gossip.membership.manifest import swarm_id_of
from gossip.membership.manifest_chain import load_chain
from gossip.membership.settings import pack_settings, parse_settings
from gossip.membership.signed import SignedKind, domain, keys_of

ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=64)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_COUNTER, MAX_COUNTER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ASCII
)
TABLES = st.dictionaries(
    ASCII.filter(bool), st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=8), max_size=8
).filter(lambda table: depth_of(table) <= bounds.MAX_SETTINGS_DEPTH)
PEERS = st.frozensets(st.integers(0, 10**6).map(lambda number: peer(number).peer_id), max_size=4)
TERMS = st.builds(
    ManifestBody,
    name=ASCII.filter(bool),
    admins=st.just(tuple(sorted(each.public_key for each in ADMINS))),
    threshold=st.integers(1, 4),
    run=ASCII,
    policy=st.just(Policy.ALLOW),
    allow=PEERS,
    bootstrap=st.lists(st.integers(0, 255).map(lambda number: bootstrap(number)[0]), max_size=16).map(tuple),
    min_protocol=st.integers(0, MAX_COUNTER),
    min_app=ASCII.map(lambda text: text[:32]),
    max_payload_bytes=st.integers(0, MAX_BLOB_BYTES),
    max_members=st.integers(0, MAX_COUNTER),
    settings=TABLES,
    psk_fingerprint=st.none() | st.binary(min_size=16, max_size=16),
)


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((depth_of(each) for each in inner), default=0) + isinstance(value, dict | list)


def refused(chain: ManifestChain, manifest) -> Reason:
    with pytest.raises(RemoteError) as caught:
        chain.accept(manifest)
    return caught.value.reason


@pytest.mark.slow
@given(TERMS, st.binary(min_size=16, max_size=16), st.integers(0, MAX_COUNTER))
@settings(max_examples=examples(60))
def test_manifests_come_back(said, nonce, applies_at):
    first = create_manifest(said, nonce).signed_by(*ADMINS)
    assert parse_manifest(first.raw) == first
    assert first.terms == said
    second = next_version(first, said, applies_at=applies_at).signed_by(ADMIN)
    assert parse_manifest(second.raw) == second
    assert (second.version, second.previous, second.swarm) == (2, first.digest, first.swarm)


@given(TABLES)
def test_settings_come_back_whatever_their_order(table):
    assert parse_settings(pack_settings(table)) == table
    assert pack_settings(dict(reversed(table.items()))) == pack_settings(table)


@pytest.mark.parametrize(
    "table",
    [
        {"x": float("nan")},
        {"x": float("inf")},
        {"x": 2**60},
        {"x": b"bytes"},
        {"x": "line\nfeed"},
        {"": 1},
        {"k" * 65: 1},
        {"x": "y" * 4097},
        {"x": [[[[1]]]]},
        {"x": list(range(256))},
        {str(number): number for number in range(257)},
        {str(number): "y" * 4000 for number in range(5)},
        {1: 1},
        {"x": {1, 2}},
    ],
    ids=str,
)
def test_settings_out_of_bounds(table):
    with pytest.raises(LocalError):
        create_manifest(terms(settings=table), bytes(16))


def test_settings_at_their_bounds():
    table = {"x": [[[1]]], **{f"{number:064}": number for number in range(252)}}
    with pytest.raises(LocalError):  # 252 + 4 + x's own is one too many
        create_manifest(terms(settings={**table, "one": 1}), bytes(16))
    assert create_manifest(terms(settings={key: table[key] for key in list(table)[:200]}), bytes(16)).terms.settings[
        "x"
    ]


@pytest.mark.parametrize(
    "raw", [b"\x81\xa1a\x01\x00", b"\x82\xa1a\x01\xa1a\x02", b"\x82\xa1b\x01\xa1a\x02", b"\x90", b"\xc0"]
)
def test_settings_have_one_spelling(raw):
    with pytest.raises(RemoteError):
        parse_settings(raw)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": ""},
        {"name": "n" * 65},
        {"name": "Schw\u00e4rme"},
        {"threshold": 0},
        {"threshold": 2},
        {"run": "r" * 65},
        {"allow": frozenset({HOME.peer_id})},
        {"policy": Policy.ALLOW, "allow": frozenset({"12D3KooW"})},
        {"bootstrap": bootstrap(*range(17))},
        {"bootstrap": ("/ip4/198.51.100.1/tcp/4001",)},
        {"bootstrap": (f"198.51.100.1/p2p/{HOME.peer_id}",)},
        {"bootstrap": ("/dns4/" + "x" * 250 + bootstrap(1)[0],)},
        {"min_app": "1" * 33},
        {"max_payload_bytes": MAX_BLOB_BYTES + 1},
        {"max_members": -1},
        {"psk_fingerprint": b"short"},
    ],
    ids=str,
)
def test_terms_out_of_bounds(changed):
    with pytest.raises(LocalError):
        create_manifest(terms(**changed), bytes(16))


@pytest.mark.parametrize("keys", ["ba", "aa", "abc", "a?"])
def test_a_list_of_keys_rises_names_none_twice_and_keeps_to_its_bound(keys):
    packed = b"".join(b"?" if each == "?" else each.encode() * 32 for each in keys)
    with pytest.raises(RemoteError):
        keys_of(packed, 2)
    assert keys_of(b"a" * 32 + b"b" * 32, 2) == (b"a" * 32, b"b" * 32)


def test_the_largest_manifest_fits():
    many = tuple(Identity(bytes([number]) * 32) for number in range(1, bounds.MAX_ADMINS + 1))
    large = create_manifest(
        ManifestBody(
            name="n" * 64,
            run="r" * 64,
            admins=tuple(each.public_key for each in many),
            threshold=16,
            policy=Policy.ALLOW,
            allow=frozenset(peer(number).peer_id for number in range(bounds.MAX_ALLOWED)),
            bootstrap=tuple("/dns4/" + "x" * (250 - len(each)) + each for each in bootstrap(*range(16))),
            min_app="9" * 32,
            settings={str(number): "y" * 3270 for number in range(5)},
            psk_fingerprint=psk_fingerprint(PSK),
        ),
        b"n" * 16,
    ).signed_by(*many)
    assert bounds.MAX_MANIFEST_BYTES * 0.9 < len(large.raw) <= bounds.MAX_MANIFEST_BYTES
    assert parse_manifest(large.raw) == large


def test_a_swarms_id_is_its_founders():
    one = founding()
    assert founding(nonce=b"m" * 16).swarm != one.swarm
    assert founding(name="other").swarm != one.swarm
    assert founding((ADMIN, ADMINS[1])).swarm != one.swarm
    assert founding((ADMIN, ADMINS[1]), threshold=2).swarm != founding((ADMIN, ADMINS[1])).swarm
    assert founding(run="second").swarm == one.swarm


@pytest.mark.parametrize(
    ("version", "place", "value"),
    [
        (1, 0, b"s" * 16),  # another swarm's id
        (1, 1, 0),
        (1, 1, 2),
        (1, 2, b"p" * 32),
        (1, 3, b""),
        (1, 3, b"n" * 15),
        (1, 4, 7),
        (2, 1, 0),
        (2, 1, 1),
        (2, 2, bytes(32)),
        (2, 3, b"n" * 16),
    ],
)
def test_a_versions_number_and_what_is_before_it_agree(version, place, value):
    manifest = founding() if version == 1 else after(CHAIN, ADMIN)
    fields = msgpack.unpackb(manifest.fields)
    fields[place] = value
    if place == 3:  # a swarm's id that fits its nonce: the fault is the nonce alone
        fields[0] = swarm_id_of(manifest.terms, value) if version == 1 else fields[0]
    with pytest.raises(RemoteError) as caught:
        parse_manifest(pack((pack(fields), ())))
    assert caught.value.reason is Reason.MALFORMED


def test_k_of_n_admins_must_sign():
    three = ADMINS[:3]
    chain = chain_of(three, threshold=2)
    wanted = next_version(chain.newest, terms(three, threshold=2), applies_at=5)
    stranger = Identity(b"\x09" * 32)
    assert refused(chain, wanted) is Reason.FORGED
    assert refused(chain, wanted.signed_by(three[0])) is Reason.FORGED
    assert refused(chain, wanted.signed_by(three[0], three[0])) is Reason.FORGED  # one admin is one
    assert refused(chain, wanted.signed_by(three[0], stranger, ADMINS[3])) is Reason.FORGED  # others are none
    one, two = wanted.signed_by(three[0]), wanted.signed_by(three[2])
    assert chain.accept(one.with_signatures_of(two))
    with pytest.raises(LocalError, match="two manifests"):
        one.with_signatures_of(founding())


def test_a_signature_that_stands_twice_is_malformed():
    manifest = after(CHAIN, ADMIN)
    pair = (ADMIN.public_key, ADMIN.sign(domain(SignedKind.MANIFEST) + manifest.fields))
    with pytest.raises(RemoteError) as caught:
        parse_manifest(pack((manifest.fields, (pair, pair))))
    assert caught.value.reason is Reason.MALFORMED


def test_a_chain_begins_with_a_signed_first_version():
    for first in (create_manifest(terms(), bytes(16)), after(CHAIN, ADMIN)):
        with pytest.raises(RemoteError):
            ManifestChain(first)


def test_the_admins_of_the_version_before_must_sign():
    chain = chain_of()
    handed = after(chain, ADMIN, admins=(ADMINS[1],))
    assert chain.accept(handed)
    assert refused(chain, after(chain, ADMIN)) is Reason.FORGED
    assert chain.accept(after(chain, ADMINS[1], admins=(ADMINS[1],)))
    assert not chain.accept(handed)


def test_settings_hold_from_their_round_on():
    chain = chain_of()
    second = after(chain, ADMIN, applies_at=10, run="second")
    chain.accept(second)
    third = after(chain, ADMIN, applies_at=20, run="third")
    chain.accept(third)
    assert [chain.at_round(at).terms.run for at in (0, 9, 10, 19, 20)] == [
        "first",
        "first",
        "second",
        "second",
        "third",
    ]


def test_a_fork_is_reported_the_first_stays_and_a_later_version_heals_it():
    here, there = chain_of(), chain_of()
    one, other = after(here, ADMIN, run="one"), after(here, ADMIN, run="other")
    here.accept(one)
    there.accept(other)
    assert refused(here, other) is Reason.EQUIVOCATION
    assert here.conflicts == {2: other}
    assert refused(there, after(here, ADMIN)) is Reason.EQUIVOCATION  # follows a version not ours
    assert (here.newest, there.newest) == (one, other)
    assert (here.forked, here.next_number) == (True, 4)
    healing = next_version(here.newest, terms(run="whole"), applies_at=9, version=here.next_number).signed_by(ADMIN)
    here.accept(healing)
    assert (here.forked, here.next_number) == (False, 5)
    with pytest.raises(RemoteError) as caught:
        there.extend(here.dump())
    assert caught.value.reason is Reason.EQUIVOCATION
    assert there.newest == healing


def test_what_follows_the_other_side_of_a_fork_is_a_conflict_and_not_forged():
    """Two admins have removed each other, and each goes on alone; a third one's members know both sides."""
    three = (ADMIN, ADMINS[1], ADMINS[2])
    here, there = chain_of(three), chain_of(three)
    here.accept(after(here, ADMIN, admins=(ADMIN, ADMINS[2])))
    there.accept(after(there, ADMINS[1], admins=(ADMINS[1], ADMINS[2])))
    assert refused(here, there.newest) is Reason.EQUIVOCATION
    for number in range(3):
        there.accept(after(there, ADMINS[1], admins=(ADMINS[1],), run=f"on {number}"))
        assert refused(here, there.newest) is Reason.EQUIVOCATION
    here.accept(after(here, ADMIN, admins=(ADMIN,)))
    assert [refused(here, each) for each in tuple(there)[1:]] == [Reason.EQUIVOCATION] * 4
    forged = next_version(there.newest, terms((ADMINS[3],)), applies_at=9).signed_by(ADMINS[3])
    assert refused(here, forged) is Reason.FORGED
    stranger = next_version(founding(three), terms(three), applies_at=1).signed_by(ADMINS[3])
    assert refused(here, stranger) is Reason.FORGED


def test_so_many_forks_are_remembered_and_no_more(monkeypatch):
    monkeypatch.setattr("gossip.membership.manifest_chain.MAX_CONFLICTS", 1)
    chain = chain_of()
    for number in (2, 3):
        other = after(chain, ADMIN, run=f"other {number}")
        chain.accept(after(chain, ADMIN, run=f"one {number}"))
        assert refused(chain, other) is Reason.EQUIVOCATION
    assert list(chain.conflicts) == [2]


def test_a_forged_fork_is_no_conflict():
    chain = chain_of()
    chain.accept(after(chain, ADMIN, run="one"))
    assert (
        refused(chain, next_version(founding(), terms(run="other"), applies_at=1).signed_by(ADMINS[1])) is Reason.FORGED
    )
    assert not chain.conflicts


def test_the_manifest_of_another_swarm():
    assert refused(chain_of(), after(chain_of(nonce=b"m" * 16), ADMIN)) is Reason.WRONG_SWARM


def test_a_chain_comes_back_and_keeps_what_is_needed():
    chain = chain_of()
    for version in range(2, 3 * bounds.MAX_CHAIN):
        admins = (ADMIN,) if version < 9 else (ADMINS[1],)
        assert chain.accept(after(chain, ADMIN if version <= 9 else ADMINS[1], admins=admins, run=str(version)))
    held = [each.version for each in chain]
    assert len(held) == bounds.MAX_CHAIN
    assert (held[:2], held[-1]) == ([1, 9], 3 * bounds.MAX_CHAIN - 1)
    assert [each.version for each in chain.spine()] == [1, 9, held[-1]]
    assert list(load_chain(chain.dump())) == list(chain)
    newcomer = chain_of()
    assert newcomer.extend(pack_manifests(chain.spine())) == 2
    assert newcomer.newest == chain.newest


def test_what_shows_that_an_admin_was_removed_is_the_way_to_it_and_nothing_after_it():
    chain = chain_of((ADMIN, ADMINS[1]))
    assert chain.removal_of(ADMIN.public_key) == ()
    steps = [
        (ADMIN, (ADMIN, ADMINS[1]), "settings alone"),
        (ADMIN, (ADMIN, ADMINS[1], ADMINS[2]), "one comes"),
        (ADMIN, (ADMIN, ADMINS[1], ADMINS[2]), "settings again"),
        (ADMINS[2], (ADMINS[1], ADMINS[2]), "the first goes"),
        (ADMINS[2], (ADMINS[2],), "and the second"),
        (ADMINS[2], (ADMINS[2],), "settings after it"),
    ]
    for signer, admins, run in steps:
        assert chain.accept(after(chain, signer, admins=admins, run=run))
    assert [it.terms.run for it in chain.removal_of(ADMIN.public_key)] == ["one comes", "the first goes"]
    assert [it.terms.run for it in chain.removal_of(ADMINS[1].public_key)][-1] == "and the second"
    for never in (ADMINS[2], ADMINS[3]):
        assert chain.removal_of(never.public_key) == ()
    for known in range(1, 5):  # whatever a member knew while it was an admin, it can follow
        behind = chain_of((ADMIN, ADMINS[1]))
        behind.extend(pack_manifests(tuple(chain)[:known]))
        behind.extend(pack_manifests(chain.removal_of(ADMIN.public_key)))
        assert behind.newest.terms.run == "the first goes"
    assert chain.accept(after(chain, ADMINS[2], admins=(ADMIN, ADMINS[2]), run="back"))
    assert chain.removal_of(ADMIN.public_key) == ()


def test_a_chain_of_nothing_but_new_admins_ends(monkeypatch):
    monkeypatch.setattr("gossip.membership.manifest_chain.MAX_CHAIN", 3)
    chain = chain_of()
    for at in (1, 2):
        chain.accept(after(chain, ADMINS[at - 1], admins=(ADMINS[at],)))
    assert refused(chain, after(chain, ADMINS[2], admins=(ADMINS[3],))) is Reason.OVERSIZE


def test_a_damaged_chain_of_our_own_is_named():
    chain = chain_of()
    chain.accept(after(chain, ADMIN))
    whole = chain.dump()
    for data in (whole[:-1], pack(()), pack_manifests((chain.newest,)), pack_manifests((*chain, chain.newest))):
        with pytest.raises(LocalError, match="damaged"):
            load_own_chain(data)
    assert load_own_chain(whole).newest.terms.settings == TYPICAL
