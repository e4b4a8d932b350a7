"""What a node pays for its class statistics: once, whatever becomes of its settings, its folder and its disk."""

import errno
from pathlib import Path
from typing import Any

import pytest

from node.config.privacy_section import PrivacyConfig
from node.config.schema import from_raw
from node.config.warm_up_section import WarmUpConfig
from node.privacy.budget import PrivacyBudget
from node.privacy.disclosures import Coverage, disclosures
from node.privacy.ledger import PrivacyLedger
from node.system.errors import RunError
from node.training import warming_up
from node.training.warming_up import WarmUp
from p2ptrain.privacy.base import Release
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.warm_up import parse_statistics
from p2ptrain.warm_up.class_statistics import release_of

ROUND = Release(mechanism="example", noise=1.0, rate=0.05, count=20)


def warm_up(folder: Path, noise: float | None = 4.0, file: str | None = "class-statistics") -> WarmUp:
    trainer = Trainer(Digits(), TrainConfig(device="cpu"), Shard(index=0, count=8))
    settings = WarmUpConfig(share=True, noise=noise)
    return WarmUp(settings, trainer, noise, None if file is None else folder / file, first_round=ROUND)


def budget_of(folder: Path, epsilon: float | None = None, ledger: str = "privacy.jsonl") -> PrivacyBudget:
    settings = PrivacyConfig(privatizer="example", epsilon=epsilon, delta=1e-4)
    return PrivacyBudget(settings, PrivacyLedger(folder / ledger))


def test_a_statement_that_leaves_no_first_round_is_not_shared(tmp_path: Path) -> None:
    paper = budget_of(tmp_path, ledger="paper")
    alone, both = paper.with_release(release_of(4.0)), paper.with_release(release_of(4.0), ROUND)
    assert alone < both
    tight = budget_of(tmp_path, (alone + both) / 2, "tight")
    assert warm_up(tmp_path).statement(tight) is None
    assert tight.is_new
    assert not (tmp_path / "class-statistics").exists()
    assert warm_up(tmp_path).statement(budget_of(tmp_path, both, "enough")) is not None


def test_a_kept_statement_has_the_noise_that_it_was_made_with_and_costs_nothing(tmp_path: Path) -> None:
    budget = budget_of(tmp_path)
    first = warm_up(tmp_path).statement(budget)
    assert first is not None
    spent = budget.epsilon
    assert spent > 0
    again = warm_up(tmp_path, noise=1.0).statement(budget)
    assert again is not None
    assert again == first
    assert again.noise == 4.0
    assert budget.epsilon == spent


def test_a_lost_ledger_is_told_of_the_statement_that_is_kept(tmp_path: Path) -> None:
    first = warm_up(tmp_path).statement(budget_of(tmp_path))
    lost = budget_of(tmp_path, ledger="another")
    assert warm_up(tmp_path).statement(lost) == first
    assert lost.has_paid_for(release_of(4.0))
    assert warm_up(tmp_path).statement(budget_of(tmp_path, 0.1, "small")) is None, "nor is it shared beyond a budget"


def test_a_full_disk_is_found_before_anything_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(warming_up, "write_atomic", full)
    budget = budget_of(tmp_path)
    for _ in range(3):  # starts
        with pytest.raises(RunError, match="No space left"):
            warm_up(tmp_path).statement(budget)
    assert budget.is_new


def test_a_start_that_was_killed_between_room_and_payment_pays_once(tmp_path: Path) -> None:
    it, budget = warm_up(tmp_path), budget_of(tmp_path)
    (tmp_path / "class-statistics").write_bytes(bytes(10_000))
    assert it.statement(budget) is not None
    assert warm_up(tmp_path).statement(budget) is not None
    assert budget.has_paid_for(release_of(4.0))
    assert not budget.has_paid_for(Release(mechanism=release_of(4.0).mechanism, noise=4.0, rate=1.0, count=2))


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "class-statistics").mkdir()
    with pytest.raises(RunError, match="cannot read"):
        warm_up(tmp_path).statement(budget_of(tmp_path))


def test_in_a_simulation_nobody_counts_and_it_is_noised_all_the_same(tmp_path: Path) -> None:
    stated = warm_up(tmp_path, file=None).statement(None)
    plain = warm_up(tmp_path, noise=None, file=None).statement(None)
    assert stated is not None
    assert plain is not None
    assert (stated.noise, plain.noise) == (4.0, None)
    counts_k = parse_statistics(stated.payload, classes=10, coordinates=64).counts_k
    assert any(count != int(count) for count in counts_k.tolist())


def test_what_an_unprotected_node_tells_is_named(tmp_path: Path) -> None:
    def told(**sections: Any) -> dict[str, Coverage]:
        return {it.what: it.coverage for it in disclosures(from_raw({"task": {"name": "digits"}, **sections}))}

    share = {"share": True}
    assert told(warm_up=share)["class statistics"] is Coverage.UNCOVERED
    assert told(warm_up=share, privacy={"privatizer": "example"})["class statistics"] is Coverage.COVERED
    assert "class statistics" not in told()
