"""What privacy costs and holds back, by the scripts that measure it, a small cell of each (docs/benchmarks.md)."""

import importlib.util
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from p2ptrain.privacy.example_level import ExampleLevel

ROOT = Path(__file__).resolve().parents[2]


@cache
def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_eight_nodes_learn_more_than_each_alone_under_the_same_noise() -> None:
    """The gain is 0.3 and its spread over noise some 0.03."""
    found = script("scripts/private_digits.py").play(2.0, 0, lone=2)
    assert found["gain"] >= 0.05
    assert found["gain_over_best"] < found["gain"], "the best one alone is better than the mean"


def test_settings_are_chosen_by_other_digits_and_seeds_than_figures_are_of() -> None:
    digits = script("scripts/private_digits.py")
    held_out = range(359)
    assert not set(held_out[digits.TUNED_ON]) & set(held_out[digits.MEASURED_ON])
    assert not set(digits.TUNING_SEEDS) & {0, 1, 2, 3, 4}
    for sides in digits.SETTINGS.values():
        assert {sides.alone, replace(sides.together, steps_a_round=2)} <= set(digits.TRIED)


def test_twice_as_many_right_guesses_as_epsilon_allows_disprove_it() -> None:
    audit = script("scripts/canary_audit.py")
    included = np.tile([True, False], 100)
    right, guesses, bound = audit.lower_bound(np.where(included, 1.0, -1.0), included)
    assert (right, guesses) == (80, 80)
    assert bound == pytest.approx(-math.log(math.exp(-math.log(0.05) / 80) - 1), rel=0.05), "without delta: 0.05^(1/80)"
    right, _, bound = audit.lower_bound(np.zeros(200), included)
    assert bound == 0, f"{right} of 80 are what guessing gives"


@pytest.mark.thorough
def test_an_audit_convicts_a_privatizer_that_adds_no_noise_and_not_one_that_does() -> None:
    audit = script("scripts/canary_audit.py")
    found = {kind: audit.audited(1.0, kind, 200, 0) for kind in (ExampleLevel, audit.Noiseless)}
    assert found[ExampleLevel]["at_least"] < found[ExampleLevel]["ledger"]
    assert found[audit.Noiseless]["at_least"] > 2 * found[audit.Noiseless]["ledger"]


def test_likelihood_ratios_find_members_of_models_that_know_them_by_heart() -> None:
    lira, rng = script("scripts/membership_inference.py"), np.random.default_rng(0)
    members = rng.random((33, 50)) < 0.5
    confidence = rng.normal(size=(33, 50)) + 4 * members
    scores = np.stack([lira.likelihood_ratios(confidence, members, target) for target in range(33)])
    assert scores[members].min() > np.median(scores[~members])
    blind = np.stack([lira.likelihood_ratios(rng.normal(size=(33, 50)), members, target) for target in range(33)])
    assert abs(lira.roc_auc_score(members.ravel(), blind.ravel()) - 0.5) < 0.05


@pytest.mark.parametrize("digits", [90, 180])
def test_no_node_has_more_digits_than_are_asked_for_and_none_has_those_of_the_attacked_one(digits: int) -> None:
    pool, beside = script("scripts/membership_inference.py").dealt(np.arange(1438), 8, digits)
    assert len(pool) == 2 * digits, "the first node has half of it"
    assert [len(part) for part in beside] == [min(digits, 154)] * 7
    assert len({*pool, *np.concatenate(beside)}) == 2 * digits + sum(len(part) for part in beside)
