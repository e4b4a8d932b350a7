"""What membership does not promise, each shown by an attack that succeeds (docs/security.md says so), and what is shown
on terminals. Where an attack succeeds no more, the page is to say so."""

import pytest
from swarms import (
    ADMIN,
    HOME,
    NOW,
    SWARM,
    Door,
    certificate,
    founding,
    invite,
    items_of,
    peer,
    secret,
)

from gossip.core.errors import LocalError, Reason
from gossip.membership import make_invite, redeem, revoke_peer, rotate, rotated
from gossip.membership.invite import Role

OLD, NEW, THIEF, FRIEND = (peer(number) for number in range(1, 5))


def renewed() -> Door:
    """A swarm that knows that OLD has become NEW."""
    door = Door()
    renewal = rotated(certificate(OLD), rotate(OLD, NEW.peer_id, issued_at=NOW))
    assert door.refusal(NEW.peer_id, renewal) is None
    assert door.refusal(OLD.peer_id, certificate(OLD)) is Reason.REVOKED
    return door


def test_a_member_that_has_the_line_undoes_a_rotation() -> None:
    """An earlier redemption for the same peer, with no successor, takes the place of the one with a successor."""
    door = renewed()
    earlier = redeem(invite(), secret(), OLD.peer_id, issued_at=NOW - 1, nonce=bytes(16))
    assert door.admission.apply(items_of(earlier)).error is None
    assert door.refusal(OLD.peer_id, earlier) is None


def test_who_has_an_old_key_succeeds_to_it_where_a_member_passes_it_on() -> None:
    """At the door the first successor stays; of two that members tell, the one with more rotations."""
    door = renewed()
    stolen = rotated(certificate(OLD), rotate(OLD, THIEF.peer_id, issued_at=NOW))
    stolen = rotated(stolen, rotate(THIEF, FRIEND.peer_id, issued_at=NOW))
    assert door.refusal(FRIEND.peer_id, stolen) is Reason.REVOKED
    assert door.admission.apply(items_of(stolen)).cut == {NEW.peer_id}
    assert door.refusal(FRIEND.peer_id, stolen) is None


def test_who_revokes_the_newest_key_alone_leaves_the_old_one_another_successor() -> None:
    """So `swarm revoke` revokes the first key as well."""
    door = renewed()
    door.admission.roster.put(revoke_peer(ADMIN, SWARM, NEW.peer_id, issued_at=NOW))
    assert door.admission.role_of(NEW.peer_id) is None
    other = rotated(certificate(OLD), rotate(OLD, THIEF.peer_id, issued_at=NOW))
    other = rotated(other, rotate(THIEF, FRIEND.peer_id, issued_at=NOW))
    door.admission.apply(items_of(other))
    assert door.refusal(FRIEND.peer_id, other) is None
    door.admission.roster.put(revoke_peer(ADMIN, SWARM, OLD.peer_id, issued_at=NOW))
    assert door.refusal(FRIEND.peer_id, other) is Reason.REVOKED


def test_and_an_admin_ends_both_by_revoking_the_first_key() -> None:
    door = renewed()
    door.admission.roster.put(revoke_peer(ADMIN, SWARM, OLD.peer_id, issued_at=NOW))
    earlier = redeem(invite(), secret(), OLD.peer_id, issued_at=NOW - 1, nonce=bytes(16))
    assert door.refusal(OLD.peer_id, earlier) is Reason.REVOKED
    assert door.admission.role_of(NEW.peer_id) is None


def test_a_thief_of_a_used_up_line_takes_its_members_place_with_a_member_that_passes_it_on() -> None:
    door = Door()
    assert door.refusal(OLD.peer_id, certificate(OLD)) is None
    backdated = certificate(THIEF, at=NOW - 30)
    assert door.refusal(THIEF.peer_id, backdated) is Reason.USED_UP
    assert door.admission.apply(items_of(backdated)).cut == {OLD.peer_id}
    assert door.refusal(THIEF.peer_id, backdated) is None


def test_who_has_not_heard_of_a_revocation_lets_the_revoked_in_until_it_has() -> None:
    newcomer = Door()
    assert newcomer.refusal(OLD.peer_id, certificate(OLD)) is None
    out = revoke_peer(ADMIN, SWARM, OLD.peer_id, issued_at=NOW)
    assert newcomer.admission.roster.put(out)
    assert newcomer.admission.cut() == {OLD.peer_id}


def test_a_clock_that_is_turned_back_forgives_an_expiry_and_no_revocation() -> None:
    door = Door(now=NOW + 100_000)
    assert door.refusal(OLD.peer_id, certificate(OLD)) is Reason.EXPIRED
    door.now = NOW
    assert door.refusal(OLD.peer_id, certificate(OLD)) is None
    door.admission.roster.put(revoke_peer(ADMIN, SWARM, OLD.peer_id, issued_at=NOW))
    assert door.refusal(OLD.peer_id, certificate(OLD)) is Reason.REVOKED


@pytest.mark.parametrize("text", ["\x1b[2J", "a\nb", "\u202emoc", "\u2028", "\x9b31m", "\u200b"])
def test_nothing_that_is_shown_steers_a_terminal(text: str) -> None:
    for say in (
        lambda: founding(name=text),
        lambda: founding(run=text),
        lambda: founding(min_app=text),
        lambda: founding(settings={"model": {"prompt": text}}),
        lambda: founding(settings={text: 1}),
        lambda: founding(bootstrap=(f"/dns4/{text}/tcp/1/p2p/{HOME.peer_id}",)),
        lambda: make_invite(ADMIN, SWARM, secret(), role=Role.TRAINER, issued_at=NOW, name=text),
        lambda: revoke_peer(ADMIN, SWARM, OLD.peer_id, issued_at=NOW, reason=text),
    ):
        with pytest.raises(LocalError):
            say()
