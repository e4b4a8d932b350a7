"""What members show: it comes back, its parts belong together, and the largest fits the handshake."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarms import ADMIN, ADMINS, NOW, SWARM, appointment, certificate, invite, peer, secret

from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_COUNTER, MAX_REGION_CHARS
from gossip.core.membership_limits import MAX_CERTIFICATE_BYTES, MAX_ITEM_BYTES, MAX_ROTATIONS
from gossip.core.wire import pack
from gossip.membership import (
    Role,
    SwarmClaim,
    appoint,
    appointed,
    make_invite,
    pack_item,
    parse_certificate,
    parse_revocation,
    parse_rotation,
    redeem,
    revoke_grant,
    revoke_peer,
    rotate,
    rotated,
)
from gossip.membership.certificate import Certificate, parse_credentials
from gossip.membership.invite import parse_invite
from gossip.membership.revocation import What
from gossip.membership.signed import SignedKind, sign

KEYS = st.binary(min_size=32, max_size=32).map(Identity)
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)


def renewed(shown: Certificate, keys: list[Identity], at: int = NOW) -> Certificate:
    """After rotations from the first key to each next."""
    for old, new in pairwise(keys):
        shown = rotated(shown, rotate(old, new.peer_id, issued_at=at))
    return shown


@given(
    st.lists(KEYS, min_size=1, max_size=1 + MAX_ROTATIONS, unique_by=lambda key: key.peer_id),
    st.integers(NOW, MAX_COUNTER),
    st.binary(min_size=16, max_size=16),
    st.booleans(),
)
def test_certificates_come_back(keys, at, nonce, direct):
    if direct:
        first = appointed(appoint(ADMIN, SWARM, keys[0].peer_id, role=Role.RELAY, issued_at=at))
    else:
        first = redeem(invite(), secret(), keys[0].peer_id, issued_at=at, nonce=nonce)
    shown = renewed(first, keys, at)
    assert parse_certificate(shown.raw) == shown
    assert (shown.root, shown.peer, shown.joined_at) == (keys[0].peer_id, keys[-1].peer_id, at)
    assert shown.lineage == tuple(key.peer_id for key in keys)
    assert all(parse_rotation(each.raw) == each for each in shown.rotations)
    assert shown.key == first.key
    assert (shown.order < first.order) == bool(shown.rotations)


@given(st.booleans(), KEYS, st.integers(0, MAX_COUNTER), ASCII)
def test_revocations_come_back(of_peer, key, at, reason):
    if of_peer:
        out = revoke_peer(ADMIN, SWARM, key.peer_id, issued_at=at, reason=reason)
        assert out.names == (What.PEER, key.peer_id)
    else:
        out = revoke_grant(ADMIN, SWARM, invite().id, issued_at=at, reason=reason)
        assert out.names == (What.GRANT, invite().id)
    assert parse_revocation(out.raw) == out
    assert (out.issued_at, out.reason, out.admin) == (at, reason, ADMIN.public_key)


@pytest.mark.parametrize("reason", ["r" * 201, "line\nfeed", "caf\u00e9"])
def test_a_reason_is_one_short_line(reason):
    with pytest.raises(LocalError):
        revoke_peer(ADMIN, SWARM, peer(1).peer_id, issued_at=NOW, reason=reason)


def test_the_largest_certificate_fits_the_handshake():
    granted = make_invite(
        ADMIN,
        SWARM,
        secret(),
        role=Role.BOOTSTRAP,
        issued_at=MAX_COUNTER - 1,
        name="n" * 64,
        expires=MAX_COUNTER,
        uses=10_000,
        region="r" * MAX_REGION_CHARS,
    )
    first = redeem(granted, secret(), peer(0).peer_id, issued_at=MAX_COUNTER, nonce=b"n" * 16)
    largest = renewed(first, [peer(number) for number in range(MAX_ROTATIONS + 1)], MAX_COUNTER)
    assert len(largest.raw) == 1226
    assert len(pack_item(largest)) <= MAX_ITEM_BYTES < MAX_CERTIFICATE_BYTES
    with pytest.raises(LocalError):
        rotated(largest, rotate(peer(MAX_ROTATIONS), peer(99).peer_id, issued_at=NOW))


@pytest.mark.parametrize("name", ["", "12D3KooW", "x" * 52])
def test_what_is_no_peer_is_our_callers_mistake(name):
    for attempt in (
        lambda: redeem(invite(), secret(), PeerId(name), issued_at=NOW, nonce=b"n" * 16),
        lambda: appoint(ADMIN, SWARM, PeerId(name), role=Role.RELAY, issued_at=NOW),
        lambda: rotate(peer(1), PeerId(name), issued_at=NOW),
        lambda: revoke_peer(ADMIN, SWARM, PeerId(name), issued_at=NOW),
    ):
        with pytest.raises(LocalError, match="no peer"):
            attempt()


def test_rotations_follow_each_other():
    shown = certificate(peer(1))
    for wrong in (rotate(peer(2), peer(3).peer_id, issued_at=NOW), rotate(peer(1), peer(1).peer_id, issued_at=NOW)):
        with pytest.raises(LocalError):
            rotated(shown, wrong)
    there = rotated(shown, rotate(peer(1), peer(2).peer_id, issued_at=NOW))
    with pytest.raises(LocalError, match="follows itself"):
        rotated(there, rotate(peer(2), peer(1).peer_id, issued_at=NOW))


def test_parts_of_two_certificates_do_not_mix():
    one, other = certificate(peer(1), invite(1), 1), certificate(peer(2), invite(2), 2)
    assert one.redemption is not None
    for raw in (
        pack((1, other.grant.raw, one.redemption.raw, ())),
        pack((1, invite(1, role=Role.BOOTSTRAP).raw, one.redemption.raw, ())),  # of the same key
        pack((2, one.grant.raw, ())),
        pack((1, appointment(peer(1)).grant.raw, one.redemption.raw, ())),
    ):
        with pytest.raises(RemoteError):
            parse_certificate(raw)
    with pytest.raises(LocalError, match="another invite"):
        redeem(invite(1), secret(2), peer(1).peer_id, issued_at=NOW, nonce=b"n" * 16)


def test_only_the_old_key_names_its_successor():
    signed = rotate(peer(1), peer(2).peer_id, issued_at=NOW)
    for forged in (
        signed.raw.replace(peer(1).public_key, peer(3).public_key),
        sign(SignedKind.ROTATION, (peer(1).public_key, peer(3).public_key, NOW), peer(3)),
    ):
        with pytest.raises(RemoteError) as caught:
            parse_rotation(forged)
        assert caught.value.reason is Reason.FORGED


def test_an_admins_signature_for_one_thing_is_not_for_another():
    assert parse_invite(invite().raw).admin == ADMIN.public_key
    with pytest.raises(RemoteError) as caught:
        parse_revocation(invite().raw)
    assert caught.value.reason is Reason.FORGED
    assert invite(admin=ADMINS[1]).id != invite().id  # the same words of two admins are two grants


def test_a_name_is_no_certificate():
    plain = SwarmClaim(swarm=SWARM)
    assert parse_credentials(plain.raw) == plain
    with pytest.raises(RemoteError):
        parse_certificate(plain.raw)


def test_longer_msgpack_of_the_same_is_refused():
    raw = certificate(peer(1)).raw
    assert raw[:2] == b"\x94\x01"
    with pytest.raises(RemoteError) as caught:
        parse_credentials(raw[:1] + b"\xcc\x01" + raw[2:])
    assert caught.value.reason is Reason.MALFORMED
