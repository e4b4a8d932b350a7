"""What a member is drawn into groups by: nothing that it can choose, whatever keys and certificates it makes."""

from pathlib import Path

import pytest
from swarms import ADMIN, ADMINS, CHAIN, NOW, SWARM, appointment, certificate, invite, peer, secret

from gossip.core.errors import RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId
from gossip.membership import (
    Certificate,
    MembershipAdmission,
    Role,
    Roster,
    appoint,
    appointed,
    pack_item,
    parse_certificate,
    redeem,
    revoke_peer,
    rotate,
    rotated,
)
from gossip.membership.anti_entropy import AntiEntropy
from gossip.membership.membership_files import MembershipFiles
from gossip.membership.placement import placement
from gossip.membership.private_swarm import PrivateMembership
from node.config.schema import Config, from_raw
from node.roles.secure_check import check_draw
from node.system.errors import UsageError

ORDER_OF_THE_GROUP = 2**252 + 27742317777372353535851937790883648493


def known(*certificates: Certificate, revoked: PeerId | None = None) -> AntiEntropy:
    """A member that has heard of these certificates."""
    roster = Roster(SWARM, CHAIN.newest.terms.admins)
    for each in certificates:
        roster.put(each)
    if revoked is not None:
        roster.add(pack_item(revoke_peer(ADMIN, SWARM, revoked, issued_at=NOW, reason="it left")))
    own = certificate(peer(99), number=99)
    return AntiEntropy(
        MembershipAdmission(peer=peer(99).peer_id, certificate=own, chain=CHAIN, roster=roster, now=lambda: NOW)
    )


def placed(*certificates: Certificate, of: Identity, revoked: PeerId | None = None) -> Digest | None:
    return known(*certificates, revoked=revoked).placement_of(of.peer_id)


def test_whatever_key_takes_up_an_invite_its_placement_is_the_same() -> None:
    found = {placement(certificate(peer(number), invite(1), 1, at=NOW - number)) for number in range(50)}
    assert len(found) == 1
    assert found != {placement(certificate(peer(1), invite(2), 2))}


def test_of_an_appointment_the_placement_is_nothing_that_its_peer_can_work_out() -> None:
    """The same peer, role, name and second, signed by another admin: all that the peer knows, and another place."""
    how = {"role": Role.TRAINER, "issued_at": NOW, "name": "home"}
    found = {placement(appointed(appoint(admin, SWARM, peer(1).peer_id, **how))) for admin in ADMINS}  # type: ignore[arg-type]
    assert len(found) == len(ADMINS)


def test_a_signature_has_no_second_form_that_would_be_another_placement() -> None:
    """s + L signs the same for a verifier that does not ask for the least form."""
    raw = certificate(peer(1)).grant.raw
    s = int.from_bytes(raw[-32:], "little") + ORDER_OF_THE_GROUP
    again = raw[:-32] + s.to_bytes(32, "little")
    shown = certificate(peer(1)).raw
    assert shown.count(raw) == 1
    with pytest.raises(RemoteError, match="does not verify"):
        parse_certificate(shown.replace(raw, again))


def test_a_successor_has_its_forerunners_placement() -> None:
    before = certificate(peer(1))
    after = rotated(before, rotate(peer(1), peer(2).peer_id, issued_at=NOW))
    assert placed(after, of=peer(2)) == placement(before) == placed(before, of=peer(1))


@pytest.mark.parametrize("uses", [2, None])
def test_who_came_by_an_invite_for_several_has_none(uses: int | None) -> None:
    shared = invite(3, uses=uses)
    assert placed(certificate(peer(1), shared, 3), of=peer(1)) is None
    own = certificate(peer(1), invite(4), 4)
    assert placed(certificate(peer(1), shared, 3), own, of=peer(1)) == placement(own), "it may be given one of its own"


def test_of_two_grants_one_counts_whichever_is_heard_of_first() -> None:
    two = certificate(peer(1), invite(1), 1), appointment(peer(1))
    found = {placed(*order, of=peer(1)) for order in (two, two[::-1])}
    assert found == {min(placement(each) for each in two)}  # type: ignore[type-var]


def test_an_invite_redeemed_earlier_and_earlier_moves_a_placement_each_time() -> None:
    """A known limit: between two placements, and no third one."""
    first, second = sorted((1, 2), key=lambda number: placement(certificate(peer(1), invite(number), number)) or b"")
    places = [placement(certificate(peer(1), invite(number), number)) for number in (first, second)]
    held, found = [certificate(peer(1), invite(second), second)], []
    for step in range(6):
        taker = peer(1) if step % 2 == 0 else peer(7)
        held.append(certificate(taker, invite(first), first, at=NOW - step))
        found.append(placed(*held, of=peer(1)))
    assert found == places * 3


def test_an_invite_for_one_that_two_take_up_places_one_of_them() -> None:
    first, second = (certificate(peer(number), invite(1), 1, at=NOW - 10 * number) for number in (1, 2))
    it = known(first, second)
    found = [it.placement_of(each.peer_id) for each in (peer(1), peer(2))]
    assert sorted(found, key=lambda each: each is None) == [placement(first), None]


def test_former_members_observers_and_strangers_have_none() -> None:
    assert placed(certificate(peer(1)), of=peer(1), revoked=peer(1).peer_id) is None
    watching = redeem(invite(5, role=Role.OBSERVER), secret(5), peer(1).peer_id, issued_at=NOW, nonce=b"n" * 16)
    assert placed(watching, of=peer(1)) is None
    assert placed(of=peer(1)) is None


def member_of(folder: Path, shown: Certificate) -> PrivateMembership:
    roster = Roster(SWARM, CHAIN.newest.terms.admins)
    admission = MembershipAdmission(
        peer=peer(1).peer_id, certificate=shown, chain=CHAIN, roster=roster, now=lambda: NOW
    )
    return PrivateMembership(admission=admission, files=MembershipFiles(folder))


def test_a_node_that_would_be_in_no_group_does_not_start(tmp_path: Path) -> None:
    def settings(role: str = "trainer", **sync: str) -> Config:
        return from_raw(
            {"task": {"name": "digits"}, "sync": {"strategy": "secure_average", **sync}, "node": {"role": role}}
        )

    by_grant = settings(draw="grants")
    with pytest.raises(UsageError, match="this node is in no private swarm"):
        check_draw(by_grant, None)
    with pytest.raises(UsageError, match="came by no invite of its own, and would be in no group"):
        check_draw(by_grant, member_of(tmp_path, certificate(peer(1), invite(2, uses=10), 2)))
    check_draw(by_grant, member_of(tmp_path, certificate(peer(1), invite(2), 2)))
    check_draw(settings("observer", draw="grants"), None)
    check_draw(settings(), None)
