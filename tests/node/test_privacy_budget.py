"""The privacy budget: accounted for ahead, written before it is allowed, and never exceeded."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.privacy_section import PrivacyConfig
from node.events.event_types import PrivacyBudgetSpent
from node.events.lines import describe
from node.privacy.budget import PrivacyBudget
from node.privacy.ledger import PrivacyLedger, read_ledger
from node.system.errors import RunError
from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.base import BudgetSpentError, Release

DELTA = 1e-5


def release(count: int = 20, *, noise: float = 1.0, rate: float = 0.01) -> Release:
    return Release(mechanism="example", noise=noise, rate=rate, count=count)


def budget(path: Path, epsilon: float | None = 2.0) -> PrivacyBudget:
    return PrivacyBudget(PrivacyConfig(privatizer="example", epsilon=epsilon, delta=DELTA), PrivacyLedger(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "privacy.jsonl"


def until_refused(it: PrivacyBudget, each: Release) -> int:
    for blocks in range(10_000):
        try:
            it.spend(each)
        except BudgetSpentError:
            return blocks
    raise AssertionError("it never ends")


def test_it_ends_before_the_block_that_would_exceed_it(path: Path) -> None:
    it = budget(path)
    blocks = until_refused(it, release())
    it.close()
    spent = epsilon_of(read_ledger(path).all_releases(), DELTA)
    assert spent <= 2.0
    assert math.isclose(spent, it.epsilon)
    assert epsilon_of([release(20 * (blocks + 1))], DELTA) > 2.0
    assert it.refused is not None
    assert math.isclose(it.refused.epsilon, epsilon_of([release(20 * (blocks + 1))], DELTA))
    assert read_ledger(path).mark.entries == blocks, "a refused block is not written"


def test_a_restart_goes_on_from_what_was_spent_and_a_larger_budget_lets_it_go_on(path: Path) -> None:
    first = budget(path)
    blocks = until_refused(first, release())
    first.close()
    again = budget(path)
    assert math.isclose(again.epsilon, first.epsilon)
    assert again.refused is None
    assert until_refused(again, release()) == 0
    again.close()
    raised = budget(path, 3.0)
    more = until_refused(raised, release())
    assert more > 0
    raised.close()
    assert epsilon_of([release(20 * (blocks + more + 1))], DELTA) > 3.0


def test_without_a_budget_what_is_spent_is_counted(path: Path) -> None:
    it = budget(path, None)
    for _ in range(500):
        it.spend(release())
    assert math.isclose(it.epsilon, epsilon_of([release(10_000)], DELTA))


def test_what_a_cut_line_may_have_covered_counts_before_anything_is_allowed(path: Path) -> None:
    it = budget(path)
    it.spend(release(500))
    it.close()
    path.write_bytes(path.read_bytes() + b'{"entry"')
    again = budget(path, it.epsilon * 1.01)
    assert again.torn == 1
    assert math.isclose(again.epsilon, epsilon_of([release(1000)], DELTA))
    with pytest.raises(BudgetSpentError):
        again.spend(release(1))
    assert path.read_bytes().endswith(b'{"entry"'), "nothing was written"


def test_what_could_not_be_written_is_neither_allowed_nor_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = budget(path)
    monkeypatch.setattr("os.write", lambda descriptor, data: 0)
    with pytest.raises(RunError, match="no private step may be taken"):
        it.spend(release())
    assert (it.epsilon, it.refused) == (0.0, None)


@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.sampled_from([0.7, 1.0, 4.0]), st.sampled_from([0.01, 0.1, 1.0])), max_size=30
    ),
    st.floats(0.1, 10),
)
def test_whatever_is_asked_for_the_ledger_never_exceeds_the_budget(asked, epsilon: float) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "privacy.jsonl"
        it = budget(path, epsilon)
        allowed = []
        for count, noise, rate in asked:
            try:
                it.spend(release(count, noise=noise, rate=rate))
            except BudgetSpentError:
                continue
            allowed.append(release(count, noise=noise, rate=rate))
        it.close()
        spent = epsilon_of(read_ledger(path).all_releases(), DELTA)
        assert math.isclose(spent, epsilon_of(allowed, DELTA), rel_tol=1e-9)
        assert spent <= epsilon * (1 + 1e-8)


def test_a_budget_too_small_for_any_round_says_what_one_would_take() -> None:
    """With "epsilon 0 of 2" alone it would seem that nothing is spent, and yet all."""
    (line,) = describe(PrivacyBudgetSpent(round=0, epsilon=0.0, budget=2.0, delta=DELTA, would_be=2.61))
    assert "epsilon 0 of 2 at delta 1e-05, 2.61 with the next" in line.plain
