"""Which members of other regions stay connected: those of which one side belongs beside the other."""

from collections.abc import Callable, Collection

from gossip_samples import SCOPE
from gossip_swarm import identity

from gossip.core.api import RegionLayout
from gossip.core.ids import PeerId
from gossip.regions.bridges import MAX_BRIDGES, Bridges
from gossip.regions.region_draw import nearest_after

ME, *EAST = [identity(number).peer_id for number in range(1, 6)]
WEST = [identity(number).peer_id for number in range(6, 130)]
LAYOUT = RegionLayout(own="east", regions=("east", "west"))
NEXT = nearest_after(ME, WEST, SCOPE)


def region_of(peer: PeerId) -> str:
    return "west" if peer in WEST else "east"


def made(is_met: Callable[[PeerId], bool] = lambda peer: True, west: Collection[PeerId] = WEST) -> Bridges:
    it = Bridges(ME, SCOPE, LAYOUT, region_of, is_met)
    it.look_round([*EAST, *west], lambda peer: True)
    return it


def beside_us() -> list[PeerId]:
    return [peer for peer in WEST if peer != NEXT and nearest_after(peer, [ME, *EAST], SCOPE) == ME]


def others() -> list[PeerId]:
    return [peer for peer in WEST if peer != NEXT and nearest_after(peer, [ME, *EAST], SCOPE) != ME]


def filled(it: Bridges) -> list[PeerId]:
    """Let as many come as may, none of which belongs beside us; return them."""
    come = others()[:MAX_BRIDGES]
    for at, peer in enumerate(come):
        assert it.admit(peer, float(at)) is None
    assert not it.takes(others()[MAX_BRIDGES])
    return come


def test_who_belongs_beside_us_takes_the_place_of_who_does_not():
    it = made()
    come = filled(it)
    kept = nearest_after(ME, come, SCOPE)
    unneeded = [peer for peer in come[1:] if peer != kept]
    for at, peer in enumerate(beside_us()[:3]):
        assert it.takes(peer)
        assert it.admit(peer, 100.0) == unneeded[at], "the one that was greeted longest ago"
        it.lose(unneeded[at])
        assert len(it.table) == MAX_BRIDGES
    assert kept in it.table, "while nobody is there that we belong beside, one stays"
    assert come[0] in it.table, "and who came first"


def test_those_that_belong_beside_us_keep_their_places():
    it = made()
    for peer in beside_us()[:MAX_BRIDGES]:
        assert it.admit(peer, 0.0) is None
    assert not it.takes(beside_us()[MAX_BRIDGES])
    assert it.takes(NEXT), "there is always room for whom we belong beside"
    assert it.admit(NEXT, 0.0) is None


def test_made_up_members_of_our_region_put_nobody_out():
    it = made(is_met=lambda peer: False)
    filled(it)
    assert not any(it.takes(peer) for peer in beside_us()), "all may belong beside us"


def test_one_is_kept_until_the_one_is_there_that_we_belong_beside():
    it = made()
    first, *later = others()[:3]
    assert it.keeps(first)
    for peer in (first, *later):
        it.admit(peer, 0.0)
    near = nearest_after(ME, [first, *later], SCOPE)
    assert {peer for peer in (first, *later) if it.keeps(peer)} == {first, near}
    assert it.seeks(NEXT)
    assert not it.seeks(others()[3])
    it.admit(NEXT, 0.0)
    assert it.keeps(NEXT)
    assert not any(it.keeps(peer) for peer in later)


def test_newcomers_whose_keys_stand_next_to_ours_do_not_end_what_was_there_before():
    """A crowd that grinds a key for each member of two regions is what all of them belong beside."""
    first, second = others()[:2]
    it = made(west=[first, second])
    it.admit(first, 0.0)
    it.admit(second, 0.0)
    it.look_round([*EAST, first, second, NEXT], lambda peer: True)
    it.admit(NEXT, 1.0)
    assert it.wanted == {NEXT}
    assert it.keeps(first)
    assert not it.keeps(second)
