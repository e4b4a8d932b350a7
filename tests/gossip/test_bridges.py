"""Which members of other regions stay connected: those of which one side belongs beside the other."""

import random
from collections.abc import Callable, Collection
from itertools import count

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
    it = Bridges(ME, SCOPE, LAYOUT, region_of, is_met, count().__next__)
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


def kept_by_the_rule(it: Bridges, region_of: Callable[[PeerId], str]) -> set[PeerId]:
    """As `keeps` says it, of each by itself."""
    first = next((peer for peer in it.table if peer not in it.wanted), None)
    kept = set()
    for peer in it.table:
        there = [each for each in it.table if region_of(each) == region_of(peer)]
        next_one = it.wanted.isdisjoint(there) and peer == nearest_after(ME, there, SCOPE)
        if peer in it.wanted or peer == first or next_one:
            kept.add(peer)
    return kept


def test_what_is_kept_is_as_the_rule_says_whoever_comes_goes_moves_or_is_met_meanwhile():
    rng, labels, met, changes = random.Random(1), ("east", "west", "north"), set[PeerId](), count()
    peers, now = WEST[:24], 0
    regions = {peer: rng.choice(labels[1:]) for peer in peers} | dict.fromkeys([ME, *EAST], "east")
    layout = RegionLayout(own="east", regions=labels)
    it = Bridges(ME, SCOPE, layout, regions.__getitem__, met.__contains__, lambda: now)
    dropped = 0
    for _ in range(600):
        peer = rng.choice(peers)
        match rng.randrange(6):
            case 0 | 1:
                it.admit(peer, float(next(changes)))
            case 2:
                it.lose(peer)
            case 3:
                regions[peer] = rng.choice(labels)
            case 4:
                it.look_round([*EAST, *rng.sample(peers, 12)], lambda peer: True)
            case 5:
                met.symmetric_difference_update({rng.choice(EAST)})
                now = next(changes)
        kept = kept_by_the_rule(it, regions.__getitem__)
        assert it.kept() == kept == {peer for peer in it.table if it.keeps(peer)}
        assert it.met() == {each for each in it.members_of("east") if each == ME or each in met}
        dropped += len(it.table) - len(kept)
    assert dropped > 100
