"""The pure parts of watching for shift: what is usual, what is told, of whom, and what comes back after a restart."""

import json
import math
import random
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.config.schema import from_raw
from node.config.shift_section import ShiftConfig
from node.shift.base import ShiftDetector
from node.shift.moment_distance import ROUNDS, MomentDistance
from node.shift.newcomer import differs
from node.shift.shift_verdict import ShiftVerdict
from node.shift.signal_stream import REFERENCE, SignalStream
from node.shift.watch import ShiftWatch
from node.system.errors import UsageError
from node.training.node import Node
from node.training.shift_watching import Shifts, resume_shifts
from p2ptrain.training.data_looks import FEATURES, PIECES, DataLook

SETTLE, WINDOW, K = 3, 20, FEATURES


class Beyond:
    """Alarms at one value that is six standard deviations away."""

    def update(self, value: float) -> bool:
        return abs(value) > 6


def look(rng: random.Random, *, loss: float = 1.0, moment: float = 0.0) -> DataLook:
    return DataLook(
        losses_n=torch.tensor([rng.gauss(loss, 0.1) for _ in range(PIECES)], dtype=torch.float64),
        moments_nk=torch.tensor(
            [[rng.gauss(moment, 0.1) for _ in range(K)] for _ in range(PIECES)], dtype=torch.float64
        ),
    )


def watch(*signals: str) -> ShiftWatch:
    made: type[ShiftDetector] = Beyond
    return ShiftWatch(made, signals or ("loss", "moments"), settle=SETTLE)


def run(it: ShiftWatch, rng: random.Random, rounds: int, **how: float) -> list[tuple[int, list[str]]]:
    found = []
    for number in range(rounds):
        if it.settled(lambda: torch.ones(2)) and (by := it.add(look(rng, **how), None)):
            found.append((number, by))
    return found


QUIET = SETTLE + ROUNDS + REFERENCE + 5


def test_a_shift_of_loss_or_of_inputs_is_told_by_its_name_and_all_is_learned_anew() -> None:
    for how, by in (({"loss": 3.0}, ["loss"]), ({"moment": 3.0}, ["moments"])):
        it, rng = watch(), random.Random(1)
        assert run(it, rng, QUIET) == []
        assert it.kept_d is not None
        assert run(it, rng, 1, **how) == [(0, by)]
        assert it.kept_d is None
        assert it.deviations == {}
        assert run(it, rng, QUIET, **how) == [], "what has shifted is usual from then on"
        assert it.shifts == 1


def test_the_model_is_kept_once_rounds_have_settled_it_and_not_changed() -> None:
    it = watch("loss")
    kept = [it.settled(lambda number=number: torch.full((2,), float(number))) for number in range(6)]
    assert kept == [False] * SETTLE + [True] * 3
    assert it.kept_d is not None
    assert it.kept_d.tolist() == [SETTLE, SETTLE]


def test_its_state_is_json_and_goes_on_as_if_nothing_had_been() -> None:
    rng = random.Random(2)
    looks = [look(rng) for _ in range(QUIET)] + [look(rng, loss=3.0)]
    for cut in (1, SETTLE + 2, SETTLE + ROUNDS, QUIET - 1):
        one, other = watch(), watch()
        for each in looks[:cut]:
            if one.settled(lambda: torch.ones(2)):
                assert not one.add(each, None)
        other.load(json.loads(json.dumps(one.state())), one.kept_d)
        told = [other.add(each, None) for each in looks[cut:] if other.settled(lambda: torch.ones(2))]
        assert [by for by in told if by] == [["loss"]], cut


EMPTY: dict[str, object] = {"age": 1, "shifts": 0, "signals": {}, "moments": []}


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"age": "x"},
        {"age": 1},
        *(
            EMPTY | changed
            for changed in (
                {"signals": []},
                {"age": -1},
                {"age": math.nan},
                {"signals": {"loss": [math.inf] * REFERENCE}},
                {"signals": {"loss": [1.0] * REFERENCE + [math.nan]}},
                {"moments": [[1.0] * 3] * 4},
                {"moments": [[1.0] * K] * 3},
                {"moments": [[1.0] * K, [1.0]]},
                {"moments": [[1.0] * K] * (2 * ROUNDS + 2)},
                {"moments": [[math.nan] * K] * 4},
            )
        ),
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        watch().load(state, torch.ones(2))


@pytest.mark.parametrize("changed", [{"signals": {"loss": [1.0]}}, {"moments": [[1.0] * K] * 2}])
def test_what_was_learned_about_a_kept_model_that_is_lost_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        watch().load(EMPTY | changed, None)
    watch().load(EMPTY, None)
    watch().load(EMPTY | changed, torch.ones(2))


@pytest.mark.parametrize(("round_", "factor"), [(13, 3.0), (14, 3.0), (15, 1.0)])
def test_a_restarted_node_goes_on_with_the_learning_rate_that_it_had(round_: int, factor: float) -> None:
    pytest.importorskip("river")
    settings = ShiftConfig(detector="page_hinkley", action="learning_rate", rate_factor=3.0, rate_rounds=4)
    before, after = Shifts(settings), Shifts(settings)
    before.rate_until = 15
    node = SimpleNamespace(shifts=after, state=SimpleNamespace(shift_factor=1.0))
    resume_shifts(cast(Node, node), {"shift": before.state()}, None, round_)
    assert node.state.shift_factor == factor


def test_a_restarted_node_that_is_only_to_tell_raises_no_learning_rate() -> None:
    pytest.importorskip("river")
    before = Shifts(ShiftConfig(detector="page_hinkley", action="learning_rate"))
    after = Shifts(ShiftConfig(detector="page_hinkley"))
    before.rate_until = 15
    node = SimpleNamespace(shifts=after, state=SimpleNamespace(shift_factor=1.0))
    resume_shifts(cast(Node, node), {"shift": before.state()}, None, 13)
    assert node.state.shift_factor == 1.0


def test_a_restarted_node_does_not_tell_the_same_shift_everywhere_again() -> None:
    pytest.importorskip("river")
    before, after = (Shifts(ShiftConfig(detector="page_hinkley")) for _ in range(2))
    before.verdict.note_own(30)
    assert before.verdict.is_everywhere(31, {"a": 30}, 3)
    after.load(json.loads(json.dumps(before.state())), None)
    assert not after.verdict.is_everywhere(33, {"a": 30}, 3)
    older = {name: value for name, value in before.state().items() if name != "everywhere"}
    after.load(older, None)
    assert after.verdict.is_everywhere(33, {"a": 30}, 3), "as a state of an earlier release leaves it"
    with pytest.raises(ValueError, match="none"):
        after.load({**before.state(), "everywhere": "x"}, None)


def test_a_divergence_that_falls_is_no_shift() -> None:
    it = SignalStream(Beyond, rises=True)
    for number in range(REFERENCE):
        it.add(1.0 + 0.01 * (number % 2))
    assert not it.add(0.1)
    for number in range(REFERENCE):
        assert not it.add(0.1 + 0.01 * (number % 2))
    assert it.add(1.0)


def test_a_signal_that_hardly_moves_does_not_alarm_at_its_last_digit() -> None:
    it = SignalStream(Beyond)
    assert not any(it.add(100.0) for _ in range(REFERENCE))
    assert not it.add(100.5)
    assert it.add(101.0)


def test_what_is_no_number_is_left_out() -> None:
    it = SignalStream(Beyond)
    assert not any(it.add(value) for value in [math.nan, math.inf] * REFERENCE)
    assert it.state() == []


def test_moments_that_no_chance_explains_are_far() -> None:
    it, rng = MomentDistance(), random.Random(3)
    assert [it.add(look(rng).moments_nk) for _ in range(ROUNDS)] == [None] * ROUNDS
    usual = [it.add(look(rng).moments_nk) for _ in range(20)]
    assert max(value for value in usual if value is not None) < 3
    far = it.add(look(rng, moment=1.0).moments_nk)
    assert far is not None
    assert far > 10
    assert it.add(torch.empty(PIECES, 0, dtype=torch.float64)) is None


def test_one_batch_with_what_is_no_number_does_not_end_the_watch_of_moments() -> None:
    rng, it = random.Random(7), MomentDistance()
    broken = look(rng).moments_nk.clone()
    broken[0, 0] = math.nan
    assert it.add(broken) is None
    assert it.add(torch.full((PIECES, K), math.inf, dtype=torch.float64)) is None
    assert it.add(look(rng).moments_nk[:1]) is None, "one piece does not tell how far chance goes"
    for _ in range(ROUNDS):
        assert it.add(look(rng).moments_nk) is None
    assert it.add(broken) is None
    found = it.add(look(rng).moments_nk)
    assert found is not None
    assert 0.2 < found < 5
    MomentDistance().load(it.state())


def test_losses_that_are_all_alike_but_for_rounding_make_no_newcomer_different() -> None:
    """As of a model whose last layer is still zeros."""
    rng = random.Random(8)
    moments_nk = look(rng).moments_nk
    own, held_out = (
        DataLook(losses_n=torch.full((PIECES,), value, dtype=torch.float64), moments_nk=moments_nk)
        for value in (math.log(10), math.log(10) * (1 + 1e-7))
    )
    assert differs(own, held_out) == []
    assert differs(own, look(rng, loss=9.0, moment=0.0)) == ["loss"]


def test_a_newcomers_data_are_compared_by_both_and_chance_is_no_difference() -> None:
    rng = random.Random(4)
    alike = sum(bool(differs(look(rng), look(rng))) for _ in range(500))
    assert alike <= 2
    assert differs(look(rng, loss=2.0), look(rng)) == ["loss"]
    assert differs(look(rng, moment=1.0), look(rng)) == ["moments"]
    one_piece = DataLook(losses_n=torch.ones(1), moments_nk=torch.ones(1, K))
    assert differs(one_piece, look(rng)) == []


@given(
    neighbours=st.integers(1, 12), liars=st.integers(0, 12), rounds=st.lists(st.integers(0, 60), min_size=1, max_size=9)
)
def test_fewer_than_half_that_lie_make_no_shift_everywhere(neighbours: int, liars: int, rounds: list[int]) -> None:
    """However often, of whatever rounds, alone or as a crowd; and by silence they prevent none."""
    liars = min(liars, neighbours // 2)  # fewer than half of all, this node included
    it = ShiftVerdict(WINDOW)
    for round_ in range(60):
        claims = {f"liar-{number}": rounds[number % len(rounds)] for number in range(liars)}
        assert not it.is_everywhere(round_, claims, neighbours + 1)
    honest = {f"honest-{number}": 60 for number in range(neighbours - liars)}
    it.note_own(60)
    assert it.is_everywhere(60, honest, neighbours + 1)
    assert not it.is_everywhere(61, honest, neighbours + 1), "it is told once"


def test_what_was_said_long_ago_counts_no_more_and_a_shift_is_told_again_once_it_is_another_one() -> None:
    it = ShiftVerdict(WINDOW)
    it.note_own(5)
    assert not it.is_everywhere(5 + WINDOW + 1, {"a": 5 + WINDOW}, 2)
    assert it.claim is None
    for at in (50 - WINDOW - 1, 50 + WINDOW + 1):
        assert not it.is_everywhere(50, {"a": at, "b": at}, 3)
    assert it.is_everywhere(60, {"a": 60, "b": 59}, 3)
    assert not it.is_everywhere(60 + WINDOW, {"a": 79, "b": 79}, 3)
    assert it.is_everywhere(61 + WINDOW, {"a": 81, "b": 80}, 3)


def test_alone_nothing_is_everywhere() -> None:
    it = ShiftVerdict(WINDOW)
    it.note_own(3)
    assert not it.is_everywhere(3, {}, 1)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"shift": {"detector": "pagehinkley"}}, "page_hinkley"),
        ({"shift": {"detector": "adwin", "signals": []}}, "each signal once"),
        ({"shift": {"detector": "adwin", "signals": ["loss", "loss"]}}, "each signal once"),
        ({"shift": {"detector": "adwin"}, "privacy": {"privatizer": "example"}}, "no epsilon covers"),
        ({"shift": {"action": "panic"}}, "shift.action"),
    ],
)
def test_settings_that_cannot_be_are_refused(sections: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        from_raw(sections)


def test_a_private_node_may_compare_predictions_on_held_out_data() -> None:
    pytest.importorskip("river")
    shift = {"detector": "page_hinkley", "signals": ["predictions"]}
    assert from_raw({"shift": shift, "privacy": {"privatizer": "example"}}).shift.on
