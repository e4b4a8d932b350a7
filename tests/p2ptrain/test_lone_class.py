"""A class that the slowest member alone has, under a robust rule and beside a liar: what decision 115 says of it.

scripts/lone_class.py drives the strategies: five honest members, 60 rounds, every payload at once, one seed.
"""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORRECTED = "heloco, clipped_gossip, 1.5"


@cache
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lone_class", ROOT / "scripts" / "lone_class.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def recall(row: str, liar: str = "none", rounds: int = 60) -> dict[str, float]:
    module = script()
    found: dict[str, float] = module.play(module.ROWS[row], liar, module.FIVE, rounds, 0)
    return found


@pytest.mark.thorough
def test_what_one_member_alone_has_is_kept_within_five_points_of_the_mean() -> None:
    assert recall(CORRECTED)["nines"] > recall("mean")["nines"] - 0.05
    assert recall("trimmed_mean")["nines"] == 0, "what trims values keeps nothing of it"
    assert recall("clipped_gossip")["nines"] < recall(CORRECTED)["nines"]


@pytest.mark.thorough
@pytest.mark.parametrize("liar", ["sign_flip", "searched_ipm", "orthogonal"])
def test_a_liar_beside_it_does_no_more_harm_than_under_the_trimmed_mean(liar: str) -> None:
    corrected = recall(CORRECTED, liar)
    assert corrected["others"] > recall("trimmed_mean", liar)["others"] - 0.02
    assert corrected["nines"] > 0.5
    assert corrected["loss"] < recall("trimmed_mean", liar)["loss"]


@pytest.mark.thorough
def test_without_the_correction_the_same_bound_lets_a_liar_through() -> None:
    assert recall("clipped_gossip, 1.5", "sign_flip")["others"] < recall(CORRECTED, "sign_flip")["others"] - 0.1


def test_a_few_rounds_of_each_liar_come_to_an_end_with_a_model() -> None:
    for liar in ("none", "sign_flip", "orthogonal", "opposes_lone", "lone_lie"):
        found = recall(CORRECTED, liar, rounds=2)
        assert found["loss"] < 2.5
        assert 0 < found["others"] <= 1
