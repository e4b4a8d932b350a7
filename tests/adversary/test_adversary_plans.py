"""What the adversary draws: every kind of move there is, every message of the wire, and plans that can be kept."""

import inspect
from collections import Counter

import pytest
from adversary_move import MOVES
from adversary_plan import Plan, draw
from adversary_scenario import KINDS, LATER, MEETINGS
from adversary_shrink import shrink
from hostile_peer import ANSWERED, FAULTS
from sizes import thorough_but

from gossip.core import member_messages, messages
from gossip.core.envelope import EnvelopeKind

DEFAULT_SEEDS = (
    8,
    9,
    11,
    12,
    14,
    22,
    47,
    56,
    69,
    85,
    112,
    115,
    163,
    221,
    291,
    346,
    348,
    381,
    438,
    741,
    777,
    1000,
    1003,
    2000,
    3000,
    4000,
    4002,
    5000,
    5001,
    5002,
    6000,
    6001,
    7000,
    7002,
    8000,
    8001,
    9000,
    9001,
    10007,
    10008,
    11000,
    11013,
    12000,
    12001,
    13005,
    13018,
)
"""Few that together draw all there is; `make soak` plays the first 500, and meetings of the next 300."""


def test_the_default_seeds_draw_every_kind_of_move_and_of_scenario() -> None:
    plans = [draw(seed) for seed in DEFAULT_SEEDS]
    drawn = Counter(made.kind for plan in plans for made in plan.moves)
    assert set(drawn) == set(MOVES)
    assert {plan.scenario.kind for plan in plans} == {*KINDS, *LATER}
    assert {plan.scenario.strategy for plan in plans if plan.scenario.kind == "meeting"} == set(MEETINGS)
    assert {made.actor < 0 for plan in plans for made in plan.moves} == {True, False}, "alone and colluding"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", thorough_but({100}, [100, 500]))
def test_every_move_fits_the_scenario_that_it_is_drawn_for(seeds: int) -> None:
    for seed in range(seeds):
        plan = draw(seed)
        assert all(plan.scenario.kind in MOVES[made.kind].among for made in plan.moves)


def test_every_request_every_statement_and_every_protocol_has_a_move() -> None:
    """A new message without a move fails here."""
    spoken = frozenset().union(*(spec.speaks for spec in MOVES.values()))
    assert set(messages._PARSERS) <= spoken
    assert {kind.value for kind in EnvelopeKind} <= spoken
    assert {"dialback", "hop", "stop"} <= spoken
    requests = {name for name, _ in inspect.getmembers(messages, inspect.isclass) if name.endswith("Request")}
    of_members = {name for name, _ in inspect.getmembers(member_messages, inspect.isclass) if name.endswith("Request")}
    floods = {kind.removeprefix("flood.") for kind in MOVES if kind.startswith("flood.")}
    assert {request.__name__ for request in ANSWERED} == requests | of_members
    assert set(ANSWERED.values()) <= floods


def test_what_honest_nodes_ask_is_answered_wrongly_in_every_way() -> None:
    asked = set(messages._PARSERS) - {
        "membership",
        "buckets",
        "roster",
        "terms",
        "pause",
        "secure",
        "shift",
        "statistics",
    }
    assert set(ANSWERED.values()) == set(messages._PARSERS)
    for how in FAULTS:
        assert asked <= set(MOVES[f"answer.{how}"].variants)
    assert set(messages._PARSERS) - asked - {"pause", "secure", "shift", "statistics"} == set(
        MOVES["members.answer"].variants
    )
    for of in ("pauses", "shifts", "statistics"):
        assert set(FAULTS) == set(MOVES[f"{of}.answer"].variants)


def test_a_plan_is_kept_and_read_again() -> None:
    for seed in DEFAULT_SEEDS:
        assert Plan.from_json(draw(seed).to_json()) == draw(seed)


def test_a_plan_shrinks_to_what_it_fails_by() -> None:
    plan = next(draw(seed) for seed in range(500) if len(draw(seed).moves) == 8)
    guilty = plan.moves[5]

    def fails(less: Plan) -> bool:
        return any(made.kind == guilty.kind and made.seed == guilty.seed for made in less.moves)

    (left,) = shrink(plan, fails).moves
    assert left.kind == guilty.kind
    assert (left.amount, left.at, left.seconds) == (1, 0.0, min(1.0, guilty.seconds))
    assert left.actor == max(0, guilty.actor)
