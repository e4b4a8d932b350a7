"""Regions that certificates name: a member is of its certificate's region, whatever its record says."""

from pathlib import Path

import pytest
import trio
from gossip_swarm import FakeRuntime, identity, until
from private_swarm import NOW, SWARM, PrivateSwarm, certificate, chain, invite, private_swarm, revocation
from sizes import thorough_but
from test_regions import as_raw, models_of, publish_models, view_of

from gossip.actions import ActionQueue
from gossip.core.api import RegionLayout
from gossip.core.errors import Reason
from gossip.core.ids import PeerId
from gossip.core.statements import PeerRecord
from gossip.membership import MembershipAdmission, Role, Roster, rotate, rotated
from gossip.membership.anti_entropy import AntiEntropy
from gossip.regions.region_labels import RegionLabels
from gossip.updates.peer_score import PeerScores

LABELS = ("east", "west")


async def bound_regions(it: PrivateSwarm, each: int, *, bound: bool = True) -> list[list[FakeRuntime]]:
    """Two regions; the certificate of each member names its own where `bound`."""
    regions: list[list[FakeRuntime]] = [[], []]
    first: tuple[FakeRuntime, ...] = ()
    for number in range(1, 2 * each + 1):
        at = (number - 1) % 2
        it.enroll(number, region=LABELS[at] if bound else "")
        node = await it.enter(number, first, layout=RegionLayout(own=LABELS[at], regions=LABELS))
        first = first or (node,)
        regions[at].append(node)
    await until(lambda: all(len(node.service.neighbours()) == each - 1 for nodes in regions for node in nodes))
    await until(lambda: all(node.service.regions == {"east": each, "west": each} for x in regions for node in x))
    return regions


async def test_members_of_bound_regions_hear_each_others_models(autojump_clock, tmp_path: Path) -> None:
    async with private_swarm(tmp_path) as it:
        east, west = await bound_regions(it, 3)
        for nodes in (east, west):
            await publish_models(nodes, 8)
        for label in LABELS:
            await models_of([*east, *west], label, 3)
        assert not any(node.service.stats.rejected for node in (*east, *west))


@pytest.mark.parametrize("bound", thorough_but({True}, [True, False]))
async def test_a_member_of_east_that_says_west_is_nobodys_neighbour_there(
    autojump_clock, tmp_path: Path, bound: bool
) -> None:
    """Without a region in its certificate the same member is one of west."""
    async with private_swarm(tmp_path) as it:
        east, west = await bound_regions(it, 3)
        it.enroll(9, region="east" if bound else "")
        liar = await it.enter(9, (west[0],), layout=RegionLayout(own="west", regions=LABELS))
        await trio.sleep(60.0)
        await liar.transport.publish(as_raw(liar, 8, b"a model", "west"))
        await trio.sleep(5.0)
        refused = [node for node in west if node.service.stats.rejected.get((liar.peer, Reason.PROTOCOL))]
        neighbours = [node for node in west if liar.peer in node.service.neighbours()]
        assert neighbours == ([] if bound else west)
        assert bool(refused) == bound
        assert all(node.service.regions["west"] == (3 if bound else 4) for node in west)
        assert not any(view_of(node, "west") for node in (*east, *west))
        assert not any(node.told("banned") for node in (*east, *west)), "the certificate may have come later"


# -- what binds


def bound_by(*certificates: object, revoked: PeerId | None = None) -> AntiEntropy:
    """What a member knows by these certificates."""
    roster = Roster(SWARM, chain().newest.terms.admins)
    for each in certificates:
        roster.put(each)  # type: ignore[arg-type]
    if revoked is not None:
        roster.add(revocation(revoked))
    own = certificate(1)
    it = MembershipAdmission(peer=own.peer, certificate=own, chain=chain(), roster=roster, now=lambda: float(NOW))
    return AntiEntropy(it)


def of(number: int, region: str, *, at: int = 0, role: Role = Role.TRAINER) -> object:
    """A certificate of node `number`; `at`: by which of several invites."""
    return certificate(number, invite(100 * at + number, region=region, role=role), of=100 * at + number)


def test_a_certificate_binds_and_one_without_a_region_does_not() -> None:
    peer = identity(2).peer_id
    assert bound_by(of(2, "east")).regions_of(peer) == {"east"}
    assert bound_by(of(2, "")).regions_of(peer) == frozenset()
    assert bound_by().regions_of(peer) == frozenset()
    assert bound_by(of(2, "east"), of(2, "west", at=1)).regions_of(peer) == {"east", "west"}
    assert bound_by(of(2, "east"), of(2, "", at=1)).regions_of(peer) == frozenset()


def test_what_makes_it_no_trainer_does_not_free_it() -> None:
    peer = identity(2).peer_id
    assert bound_by(of(2, "east"), of(2, "", at=1, role=Role.OBSERVER)).regions_of(peer) == {"east"}
    assert bound_by(of(2, "east"), revoked=peer).regions_of(peer) == frozenset(), "it is no member any more"


def test_what_is_shown_binds_before_the_roster_has_it() -> None:
    known = bound_by()
    known.admission.admit(identity(2).peer_id, of(2, "west").raw)  # type: ignore[attr-defined]
    assert known.regions_of(identity(2).peer_id) == {"west"}


def test_a_successor_is_bound_as_its_key_was() -> None:
    successor = identity(3).peer_id
    held = rotated(of(2, "east"), rotate(identity(2), successor, issued_at=NOW - 30))  # type: ignore[arg-type]
    assert bound_by(held).regions_of(successor) == {"east"}


def record(number: int, region: str) -> PeerRecord:
    return PeerRecord(peer=identity(number).peer_id, epoch=1, version=1, addresses=(), raw=b"", region=region)


@pytest.mark.parametrize(
    ("said", "bound", "region", "taken"),
    [
        ("west", set(), "west", True),
        (None, set(), None, True),
        ("", {"east"}, "east", False),
        (None, {"east"}, "east", False),
        ("east", {"east"}, "east", True),
        ("west", {"east"}, "east", False),
        ("west", {"east", "west"}, "west", True),
        ("north", {"east", "west"}, "east", False),
    ],
)
def test_the_certificate_goes_before_the_record(
    said: str | None, bound: set[str], region: str | None, taken: bool
) -> None:
    scores = PeerScores(ActionQueue())
    labels = RegionLabels(lambda peer: said, lambda peer: frozenset(bound), scores)
    peer = identity(2).peer_id
    assert labels.region_of(peer) == region
    if said is not None:
        assert labels.takes(record(2, said)) == taken
        assert scores.stats.rejected == ({} if taken else {(peer, Reason.PROTOCOL): 1})
