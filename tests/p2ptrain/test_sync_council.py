"""With how large an f a round is aggregated: never with a smaller one than a round before it had."""

import itertools

import pytest
import torch

from p2ptrain.sync import ModelAveraging, SyncConfig, build
from p2ptrain.sync.fault_tolerance import FaultTolerance

D = 50
GENESIS = torch.zeros(D)


def levels(fault_tolerance: FaultTolerance, members: list[int]) -> list[int | None]:
    """The f of each round; None where nothing is aggregated."""
    return [None if (rule := fault_tolerance.rule(count)[0]) is None else rule.f for count in members]


def test_few_members_from_the_start_are_averaged_with_what_they_allow() -> None:
    assert levels(FaultTolerance("trimmed_mean", 2), [1, 2, 3, 4, 5, 9]) == [0, 0, 1, 1, 2, 2]


def test_an_f_once_held_does_not_fall() -> None:
    assert levels(FaultTolerance("trimmed_mean", 2), [2, 3, 2, 1, 4, 5, 4, 3, 6]) == [
        0,
        1,
        None,
        None,
        1,
        2,
        None,
        None,
        2,
    ]


def test_it_says_when_the_promise_holds() -> None:
    fault_tolerance = FaultTolerance("trimmed_mean", 1)
    assert [fault_tolerance.rule(members)[1] for members in (2, 3, 2, 4)] == [False, True, False, True]


@pytest.mark.parametrize("f", [0, 1])
def test_the_mean_holds_nothing_and_never_stops(f: int) -> None:
    fault_tolerance = FaultTolerance("mean", f)
    assert levels(fault_tolerance, [3, 2, 1, 5, 2]) == [0, 0, 0, 0, 0]
    assert fault_tolerance.rule(9)[1] == (f == 0)


def tracking(models: dict[str, float], **options: object) -> ModelAveraging:
    node = build(SyncConfig(**options), GENESIS, "own")  # type: ignore[arg-type]
    assert isinstance(node, ModelAveraging)
    for peer, value in models.items():
        node.track(peer, torch.full((D,), value).numpy().tobytes())
    return node


def test_honest_neighbours_kept_away_do_not_hand_the_model_to_a_liar() -> None:
    node = tracking({"a": 1.0, "b": 1.0, "liar": -1e6})
    theta_d = torch.full((D,), 0.5)
    assert node.aggregate(theta_d, {"a": 0, "b": 0, "liar": 0}, round=0).correction_d.abs().max() < 1
    node.forget("a")
    for round, staleness in enumerate([{"liar": 0}, {"liar": 0, "a": 0}], start=1):
        result = node.aggregate(theta_d, staleness, round=round)
        assert not result.correction_d.any(), "own model, rather than a mean with whoever is left"
        assert (result.members, result.robust) == (2, False)
    result = node.aggregate(theta_d, {"b": 0, "liar": 0}, round=3)
    assert result.robust, "enough again"
    assert 0 <= float(result.correction_d.max()) < 1


def test_two_from_the_start_average() -> None:
    node = tracking({"a": 1.0})
    result = node.aggregate(GENESIS, {"a": 0}, round=0)
    assert not result.robust
    torch.testing.assert_close(result.correction_d, torch.full((D,), 0.5))


def test_what_was_held_survives_a_restart() -> None:
    node = tracking({"a": 1.0, "b": 2.0})
    node.aggregate(GENESIS, {"a": 0, "b": 0}, round=0)
    again = tracking({"liar": -1e6})
    again.load_state_dict(node.state_dict())
    theta_d = again.anchor_d.clone()
    assert not again.aggregate(theta_d, {"liar": 0}, round=1).correction_d.any()
    again.load_state_dict({"anchor": GENESIS})
    assert again.aggregate(GENESIS, {"liar": 0}, round=1).correction_d.any(), "a state of before has held nothing"


def test_what_was_held_counts_as_far_as_it_is_asked_for_still() -> None:
    node = tracking({"a": 1.0, "b": 2.0})
    node.aggregate(GENESIS, {"a": 0, "b": 0}, round=0)
    for options in ({"f": 0}, {"aggregator": "mean", "f": 1}):
        again = tracking({"a": 9.0}, **options)
        again.load_state_dict(node.state_dict())
        assert again.aggregate(again.anchor_d.clone(), {"a": 0}, round=1).correction_d.any()


def test_what_was_held_is_kept_over_adopting_a_model() -> None:
    node = tracking({"a": 1.0, "b": 2.0, "c": 3.0})
    node.aggregate(GENESIS, {"a": 0, "b": 0}, round=0)
    node.adopt({"a": 0, "b": 0, "c": 0})
    assert not node.aggregate(node.anchor_d.clone(), {"a": 0}, round=1).correction_d.any()


def test_robust_groups_that_are_too_small_this_round_sit_out() -> None:
    """Five members in groups of four: four and one, or a pair and three alone; f = 1 needs three."""
    names = ["own", "a", "b", "c", "d"]
    node = tracking(dict.fromkeys(names[1:], 1.0), strategy="moshpit", aggregator="trimmed_mean", f=1, group=4)
    seen = set()
    for round in range(60):
        result = node.aggregate(GENESIS, dict.fromkeys(names[1:], 0), round=round)
        seen.add((result.members, result.robust))
        if not result.robust and "held" in node.state_dict():
            assert not result.correction_d.any()
    assert seen == {(1, False), (2, False), (4, True)}


def test_the_order_of_members_does_not_matter() -> None:
    values = {"a": 1.0, "b": -2.0, "c": 5.0, "d": 0.5}
    results = []
    for order in itertools.islice(itertools.permutations(values), 6):
        node = tracking({peer: values[peer] for peer in order})
        results.append(node.aggregate(GENESIS, dict.fromkeys(order, 0), round=0).correction_d)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    "aggregator",
    ["nnm+trimmed_mean", "bucketing+median", "krum", "geometric_median", "cs_plus", "clipped_gossip", "arc+ios"],
)
@pytest.mark.parametrize("strategy", ["tracked_gossip", "sparse_loco", "streaming"])
def test_any_aggregator_holds_a_liar(strategy: str, aggregator: str) -> None:
    """Composed names, rules that look at whole vectors, and gossip rules whose first row is our own."""
    generator = torch.Generator().manual_seed(0)
    node = build(SyncConfig(strategy=strategy, aggregator=aggregator, outer="average"), GENESIS, "own")
    models = {f"n{i}": 1 + 0.1 * torch.randn(D, generator=generator) for i in range(6)} | {
        "liar": torch.full((D,), -1e6)
    }
    for peer, model_d in models.items():
        node.track(peer, model_d.numpy().tobytes())
    theta_d = torch.ones(D)
    for round in range(4):
        node.encode(theta_d, round=round)
        result = node.aggregate(theta_d, dict.fromkeys(models, 0), round=round)
        assert result.robust
        theta_d = theta_d + result.correction_d
        assert (theta_d - 1).abs().max() < 0.5


def test_lots_are_drawn_anew_in_every_round() -> None:
    fault_tolerance = FaultTolerance("bucketing+trimmed_mean", 1)
    rows_nd = torch.randn(9, 20, generator=torch.Generator().manual_seed(0))
    drawn = [fault_tolerance.rule(9)[0](rows_nd) for _ in range(3)]  # type: ignore[misc]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
