"""The attacks that were shown to win once, each as the shortest plan that does: what the random ones have to find.

And what seeds have found since, kept as plans: a new kind of move changes what every seed draws.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from adversary_move import ALL, Move
from adversary_plan import CROWD_FROM_S, Plan
from adversary_run import play
from adversary_scenario import Scenario
from moves_layers import ASKS, TIMES
from sim_swarm import key_of
from sizes import thorough_but

from gossip.updates.layer_places import LayerPlaces
from p2ptrain.sync.refinements import Refinements


def holds(scenario: Scenario, *moves: Move) -> None:
    outcome = play(Plan(seed=1, scenario=scenario, moves=moves))
    assert not outcome.violations, "\n".join(outcome.violations)


PLANS = sorted(Path(__file__).with_name("plans").glob("*.json"))


@pytest.mark.thorough
@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_what_a_seed_has_found(path: Path) -> None:
    outcome = play(Plan.load(path))
    assert not outcome.violations, "\n".join(outcome.violations)


# -- 1: starts, joins and resumes


@pytest.mark.thorough
def test_a_liar_of_six_that_claims_a_billion_rounds_ends_nobody() -> None:
    holds(Scenario(kind="start", honest=5, f=1), Move(kind="claim", at=0.0, variant="far", seconds=60.0))


@pytest.mark.thorough
def test_a_liar_of_six_with_a_model_of_its_own_for_round_20_is_followed_by_nobody() -> None:
    scenario = Scenario(kind="start", honest=5, f=1, rounds=30)
    holds(scenario, Move(kind="claim", at=0.0, variant="own", amount=20, seconds=60.0))


@pytest.mark.parametrize("variant", thorough_but({"last"}, ["near", "far", "last"]))
def test_the_first_neighbour_of_a_newcomer_does_not_choose_its_model(variant: str) -> None:
    scenario = Scenario(kind="join", honest=5, f=1, hostile_first=True)
    holds(scenario, Move(kind="first", at=50.0, variant=variant, amount=4, seconds=60.0))


@pytest.mark.thorough
@pytest.mark.parametrize("killed", [False, True])
def test_the_first_neighbour_of_a_resumed_node_does_not_make_it_jump(killed: bool) -> None:
    scenario = Scenario(kind="resume", honest=5, f=1, hostile_first=True, killed=killed, away_s=10.0, rounds=20)
    holds(scenario, Move(kind="first", at=50.0, variant="far", amount=10, seconds=100.0))


@pytest.mark.thorough
def test_who_comes_through_a_bootstrap_node_does_not_follow_the_first_that_it_finds() -> None:
    scenario = Scenario(kind="bootstrap", honest=6, f=2)
    holds(scenario, Move(kind="claim", at=0.0, actor=ALL, variant="own", amount=13, seconds=120.0))


# -- 2: observers


@pytest.mark.thorough
@pytest.mark.parametrize("amount", [2, 5])
def test_names_that_say_that_all_is_done_and_leave_capture_no_observer(amount: int) -> None:
    scenario = Scenario(kind="observer", honest=5, f=1)
    holds(scenario, Move(kind="done", at=30.0, variant="huge", amount=amount, seconds=6.0))


# -- 3: memory, and work


@pytest.mark.thorough
def test_forty_names_in_turn_leave_nothing_behind() -> None:
    holds(Scenario(kind="steady", honest=4, f=1), Move(kind="in_turn", at=30.0, amount=40, seconds=20.0))


@pytest.mark.thorough
def test_a_hundred_epochs_are_not_a_hundred_models_read() -> None:
    holds(Scenario(kind="steady", honest=4, f=1), Move(kind="epochs", at=30.0, amount=120, seconds=5.0))


# -- 4: sybils


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ["flip", "huge", "mean"])
def test_twenty_names_of_one_host_have_f_seats_together(variant: str) -> None:
    holds(
        Scenario(kind="open", honest=6, f=1),
        Move(kind="sybils", at=CROWD_FROM_S, variant=variant, amount=20, seconds=90.0),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["ground", "lonely"])
def test_names_that_were_made_to_be_neighbours_take_nobody_s_place(kind: str) -> None:
    variant = "flip" if kind == "ground" else ""
    holds(
        Scenario(kind="open", honest=6, f=1), Move(kind=kind, at=CROWD_FROM_S, variant=variant, amount=12, seconds=90.0)
    )


# -- 5: bootstrap nodes


@pytest.mark.thorough
def test_invented_runs_do_not_push_out_the_real_one() -> None:
    holds(Scenario(kind="bootstrap", honest=6, f=1), Move(kind="bootstrap.runs", at=40.0, amount=11, seconds=20.0))


# -- 12: plug-ins


@pytest.mark.thorough
def test_a_plug_in_codec_that_refuses_for_a_reason_of_its_own_ends_nobody() -> None:
    scenario = Scenario(kind="steady", honest=4, f=1)
    holds(scenario, Move(kind="payload.codec", at=40.0, variant="plugged_in", amount=2))


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ["claim", "forged"])
def test_a_member_that_says_of_all_that_they_are_out_stops_nobody(variant: str) -> None:
    scenario = Scenario(kind="private", honest=5, f=1)
    holds(scenario, Move(kind="members.revoke", at=20.0, variant=variant, amount=6, seconds=120.0))


@pytest.mark.thorough
def test_a_member_that_lies_to_newcomers_with_an_invite_misleads_none() -> None:
    """Three newcomers each time, each of which hears one of nine lies, as the seed has it."""
    scenario = Scenario(kind="private", honest=4, f=1)
    lies = [Move(kind="members.revoke", at=10.0 + 20 * at, variant="visit", amount=9, seed=at) for at in range(6)]
    holds(scenario, *lies)


# -- refinements

NEVER_IN_A_ROUND = ("late", "torn")
"""To nobody in time."""


@pytest.mark.thorough
@pytest.mark.parametrize("variant", thorough_but({"some"}, TIMES))
def test_refinements_held_back_in_any_way_gain_nothing(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which refine an edge where they come in time: who serves them takes those of the honest."""
    of_liar = []
    depths = Refinements.depths

    def noted(self: Refinements, members: Sequence[str]) -> dict[str, int]:
        found = depths(self, members)
        of_liar.append(found.get(str(key_of("hostile-0").peer_id), 0))
        return found

    monkeypatch.setattr(Refinements, "depths", noted)
    scenario = Scenario(kind="layers", honest=5, f=1)
    holds(scenario, Move(kind="layers.serve", at=0.0, actor=ALL, variant=variant, amount=3, seconds=220.0))
    assert (1 in of_liar) == (variant not in NEVER_IN_A_ROUND)


def _breaks_off(variant: str) -> Plan:
    moves = (Move(kind="layers.places", at=0.0, actor=ALL, variant=variant, seconds=220.0),)
    return Plan(seed=1, scenario=Scenario(kind="layers", honest=5, f=1), moves=moves)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ASKS)
def test_who_breaks_refinements_off_takes_no_places_but_its_own(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where one neighbour's late ones alone take a link's places, the honest are left without refinements."""
    assert not play(_breaks_off(variant)).violations
    begin = LayerPlaces.__init__
    monkeypatch.setattr(LayerPlaces, "__init__", lambda places, liars: begin(places, liars=0))
    assert play(_breaks_off(variant)).names == ("coarse",)


# -- regions


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ["nobody", "itself"])
def test_members_that_a_liar_makes_up_do_not_publish_in_the_place_of_those_that_there_are(variant: str) -> None:
    scenario = Scenario(kind="regions", honest=8, f=1)
    holds(scenario, Move(kind="regional.members", at=20.0, variant=variant, amount=120, seconds=100.0))
