"""Who gets a place at whose cost: the decision alone, over tables made by hand."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.ids import PeerId
from gossip.updates.mesh_admission import NeighbourAdmission, Newcomer, Occupancy, Occupant

DEGREE, SHARE = 8, 2


def occupant(name: str, group: str | None = None, **changes: bool) -> Occupant:
    """By default: verified, followed, settled, dialled by us, in a network of its own, beside no ring."""
    traits = {
        "verified": True,
        "anchor": False,
        "dialled_us": False,
        "wanted": False,
        "tracked": True,
        "settled": True,
        "idle": False,
        "rich": True,
    }
    return Occupant(peer=PeerId(name), group=group or name, **{**traits, **changes})


def several(name: str, count: int, group: str | None = None, **changes: bool) -> list[Occupant]:
    return [occupant(f"{name} {number}", group, **changes) for number in range(count)]


def newcomer(name: str = "new", group: str | None = None, *, verified: bool = True, **changes: object) -> Newcomer:
    return Newcomer(peer=PeerId(name), group=group or name, verified=verified, **changes)


def held(occupants: list[Occupant], **changes: object) -> Occupancy:
    """The swarm has members in many networks; there is a place for everyone, and nobody else to dial."""
    return replace(
        Occupancy(
            degree=DEGREE,
            staying=6,
            occupants=occupants,
            groups=frozenset(f"elsewhere {number}" for number in range(9)),
            others=0,
            wide=False,
            held=0,
            may_rewire=True,
            may_swap=True,
            rng=random.Random(1),
        ),
        **changes,
    )


WIDE = {"wide": True}


def evicted(made: NeighbourAdmission | None) -> str | None:
    assert made is not None, "it gets in"
    return made.evicts


# -- who only says hello


def test_who_only_says_hello_has_a_free_place():
    assert held(several("a", 7)).admission(newcomer(verified=False)) == NeighbourAdmission()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("here", [{"verified": False}, {"settled": False, "tracked": False}, {"idle": True}])
def test_and_pushes_nobody_out_whatever_it_says_and_whoever_is_there(wide, here):
    hello = newcomer(verified=False, wanted=True, lonely=True)
    assert held(several("a", 8, **here), wide=wide).admission(hello) is None


def test_where_there_would_be_a_place_for_everyone_it_gives_way_to_one_that_was_reached():
    table = [*several("a", 5), *several("hello", 3, verified=False)]
    assert evicted(held(table).admission(newcomer())) == "hello 2"


def test_in_a_wide_swarm_it_gives_way_to_the_rings_own_alone_and_has_half_of_the_places_at_most():
    table = [*several("a", 4), *several("hello", 4, verified=False)]
    assert held(table, **WIDE).admission(newcomer()) is None
    assert evicted(held(table, **WIDE).admission(newcomer(wanted=True))) == "hello 3"
    some = held(several("hello", 4, verified=False), **WIDE)
    assert some.admission(newcomer(verified=False)) is None
    assert some.admission(newcomer()) == NeighbourAdmission()


def test_a_swarm_of_members_that_nobody_can_dial_fills_the_one_that_can_be():
    assert held(several("hello", 7, verified=False)).admission(newcomer(verified=False)) == NeighbourAdmission()


# -- networks


def test_one_network_has_its_share_and_then_what_leaves_two_places_to_others():
    for here, gets_in in ((0, True), (1, True), (2, True), (5, True), (6, False), (7, False)):
        crowd = several("s", here, "S")
        assert (held(crowd).admission(newcomer(group="S", known=20)) is not None) is gets_in
    assert held([*several("a", 5), *several("s", 1, "S")]).admission(newcomer(group="S")) == NeighbourAdmission()
    assert held([*several("a", 4), *several("s", 2, "S")]).admission(newcomer(group="S")) is None


def test_what_is_beyond_it_gives_way_to_any_verified_newcomer_of_another_network_the_newest_first():
    table = [*several("s", 5, "S"), *several("a", 3)]
    assert evicted(held(table, **WIDE).admission(newcomer())) == "s 4"
    crowded = newcomer(group="T", known=20)
    assert evicted(held(table, **WIDE).admission(crowded)) == "s 4", "also of a crowded one"
    assert held(table, **WIDE).admission(newcomer(verified=False)) is None
    assert held(table, **WIDE).admission(newcomer(group="S", wanted=True)) is None


def test_in_surplus_those_that_only_said_hello_go_first():
    table = [occupant("hello", "S", verified=False), *several("s", 3, "S"), *several("a", 4)]
    assert [it.peer for it in held(table).surplus()] == ["s 2", "hello"]


def test_where_all_are_of_one_network_nobody_is_bounded():
    alone = {"groups": frozenset({"S"})}
    assert held(several("s", 7, "S"), **alone).admission(newcomer(group="S", known=9)) == NeighbourAdmission()
    assert held(several("s", 8, "S"), **alone).surplus() == []
    assert evicted(held(several("s", 8, "S"), **alone).admission(newcomer())) == "s 7", "until another one comes"


def test_two_networks_have_half_each():
    table = [*several("s", 4, "S"), *several("t", 4, "T")]
    two = {"groups": frozenset({"S", "T"})}
    assert held(table, **two).surplus() == []
    assert held([*several("s", 5, "S"), *several("t", 3, "T")], **two).surplus()[-1].peer == "s 4"


def test_a_crowded_network_pushes_nobody_out_by_the_rings_or_by_being_lonely():
    """Twenty keys of one host pushed out honest neighbours by merely saying hello, for a place on the rings."""
    table = several("a", 8, settled=False)
    for changes in ({"wanted": True}, {"lonely": True}):
        made = held(table, **WIDE)
        assert made.admission(newcomer(group="S", known=SHARE + 1, **changes)) is None
        assert made.admission(newcomer(group="S", known=SHARE, **changes)) is not None


def test_nor_takes_the_place_of_one_that_only_said_hello():
    table = [*several("a", 5), *several("hello", 3, verified=False)]
    assert held(table).admission(newcomer(group="S", known=SHARE + 1)) is None
    assert evicted(held(table).admission(newcomer(group="S", known=SHARE))) == "hello 2"


def test_one_beyond_its_networks_share_takes_no_place_of_anothers_surplus():
    table = [*several("s", SHARE, "S"), *several("t", SHARE + 1, "T"), *several("a", 3)]
    assert held(table).admission(newcomer(group="S", known=SHARE + 1)) is None
    assert evicted(held(table).admission(newcomer())) == f"t {SHARE}"


def test_a_lonely_one_of_a_crowded_network_may_have_the_place_of_one_of_the_same():
    table = [*several("a", 7), occupant("s", "S")]
    assert evicted(held(table, **WIDE).admission(newcomer(group="S", known=20, lonely=True))) == "s"


def test_surplus_that_came_before_others_were_known_is_trimmed_unless_it_has_settled():
    fresh = [*several("s", 5, "S", settled=False), *several("a", 3)]
    assert held(fresh).to_trim() == ["s 4", "s 3"], "until two places are open"
    assert held([*several("s", 5, "S"), *several("a", 3)]).to_trim() == []
    assert held(several("a", 8, settled=False)).to_trim() == []


def test_the_operators_peers_are_no_surplus():
    table = [*several("s", 4, "S", anchor=True), *several("a", 4)]
    assert held(table).surplus() == []
    assert held(table, others=4).admission(newcomer(group="S", anchor=True)) is not None


# -- speed


def test_who_calls_first_and_most_often_has_half_of_the_places_while_we_dial_others():
    callers = several("call", 4, dialled_us=True)
    call = newcomer(dialled_us=True)
    assert held(callers, others=4).admission(call) is None
    assert held(callers, others=4).admission(newcomer()) == NeighbourAdmission(), "one that we have dialled"
    assert held([*callers, *several("ours", 3)], others=4).admission(call) is None
    assert held([*callers, *several("ours", 4)][1:], others=4).admission(call) == NeighbourAdmission()


def test_a_place_kept_for_those_whom_we_dial_goes_to_a_caller_that_the_rings_put_beside_us():
    callers = held(several("call", 4, dialled_us=True), others=4)
    assert callers.admission(newcomer(dialled_us=True, wanted=True)) == NeighbourAdmission()


@pytest.mark.parametrize("others", [0, 1, 3])
def test_nothing_is_kept_for_those_who_are_not_there(others):
    """Five callers of nine members: the other three fit as well."""
    table = several("call", DEGREE - 1 - others, dialled_us=True)
    assert held(table, others=others).admission(newcomer(dialled_us=True)) == NeighbourAdmission()


# -- age


def test_the_longest_standing_stay_whoever_the_rings_put_there():
    table = several("a", 8)
    assert evicted(held(table, **WIDE).admission(newcomer(wanted=True))) == "a 7"
    assert evicted(held([*table[:7], occupant("b", wanted=True)], **WIDE).admission(newcomer(wanted=True))) == "a 6"
    full = [*table[:6], *several("b", 2, wanted=True)]
    assert held(full, **WIDE).admission(newcomer(wanted=True)) is None


def test_before_they_have_settled_the_rings_are_set_right_at_their_cost():
    table = [*several("a", 5, settled=False), *several("b", 3, wanted=True, settled=False)]
    assert evicted(held(table, **WIDE).admission(newcomer(wanted=True))) == "a 4"


def test_but_no_lonely_newcomer_has_their_places():
    table = several("a", 8, settled=False)
    chosen = {evicted(replace(held(table), rng=random.Random(n)).admission(newcomer(lonely=True))) for n in range(50)}
    assert chosen == {"a 6", "a 7"}


def test_nor_that_of_one_whom_the_rings_put_beside_us_while_another_may_go():
    table = [*several("a", 6), occupant("ring", wanted=True), occupant("loose")]
    draws = [replace(held(table, **WIDE), rng=random.Random(n)) for n in range(50)]
    assert {evicted(each.admission(newcomer(lonely=True))) for each in draws} == {"loose"}
    only = held([*several("a", 6), *several("ring", 2, wanted=True)], **WIDE)
    assert evicted(only.admission(newcomer(lonely=True))) in {"ring 0", "ring 1"}


def test_neither_goes_faster_than_its_rate():
    table = several("a", 8, settled=False)
    assert held(table, may_rewire=False, **WIDE).admission(newcomer(wanted=True)) is None
    assert held(table, may_swap=False, **WIDE).admission(newcomer(lonely=True)) is None


def test_an_anchor_has_the_place_of_whoever_has_least_claim_to_it():
    anchor = newcomer(anchor=True, verified=False)
    table = [*several("s", 3, "S"), occupant("hello", verified=False), occupant("idle", idle=True), *several("a", 3)]
    for expected in ("s 2", "hello", "idle", "a 2"):
        assert evicted(held(table).admission(anchor)) == expected
        table = [*(it for it in table if it.peer != expected), occupant(f"for {expected}")]
        if expected == "idle":
            table = [*table[-3:], *table[:-3]]
    assert held(several("anchor", 8, anchor=True)).admission(anchor) is None


# -- whatever the table


TRAITS = ("verified", "dialled_us", "wanted", "tracked", "settled", "idle", "rich")


@st.composite
def tables(draw: st.DrawFn) -> list[Occupant]:
    count = draw(st.integers(0, DEGREE))
    return [
        occupant(f"o {n}", draw(st.sampled_from(["S", "T", f"own {n}"])), **{k: draw(st.booleans()) for k in TRAITS})
        for n in range(count)
    ]


@given(
    table=tables(),
    wide=st.booleans(),
    others=st.integers(0, 9),
    known=st.integers(1, 30),
    wanted=st.booleans(),
    lonely=st.booleans(),
    verified=st.booleans(),
    group=st.sampled_from(["S", "own"]),
)
def test_nobody_goes_for_one_that_was_not_reached_nor_but_surplus_for_one_of_a_crowd(
    table, wide, others, known, wanted, lonely, verified, group
):
    here = held(table, wide=wide, others=others)
    made = here.admission(
        newcomer(group=group, known=known, wanted=wanted, lonely=lonely, verified=verified, dialled_us=True)
    )
    if made is None:
        return
    if made.evicts is None:
        assert len(table) < DEGREE
        return
    victim = next(it for it in table if it.peer == made.evicts)
    assert verified
    assert len(table) == DEGREE
    if known > SHARE:
        assert victim in here.surplus() or victim.group == group
    if not (victim in here.surplus() or not victim.verified):
        lasting = [it for it in table if it.verified and it not in here.surplus() and (it.tracked or not it.idle)]
        settled = [it for it in lasting if it.settled]
        assert victim not in settled[: here.staying] or not wanted
