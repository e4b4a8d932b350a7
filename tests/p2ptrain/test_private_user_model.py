"""A user's own model whose data are protected: whatever its loop does, the node is shown released moves alone."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from p2ptrain import privacy
from p2ptrain.privacy.allowance import unaccounted
from p2ptrain.privacy.base import BudgetSpentError, Release, Spend
from p2ptrain.tasks import Shard, TaskError
from p2ptrain.training import TrainConfig, UserModel
from p2ptrain.training.private_training import PrivateTraining


def model_of(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 3)).to(dtype)


def protected(
    model: nn.Module, *, noise: float = 1e-9, clip: float = 0.1, spend: Spend = unaccounted, **more: Any
) -> UserModel:
    learner = UserModel(model, None, TrainConfig(), Shard(), data_seed=3, **more)
    privatizer = privacy.get("update", noise=noise, clip=clip)
    learner.protect(PrivateTraining(privatizer=privatizer, spend=spend), learner.vector())
    return learner


def moved(model: nn.Module, by: float = 1.0) -> None:
    """Move the parameters as a loop's step does."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(by)


def live(model: nn.Module) -> torch.Tensor:
    return torch.cat([it.detach().float().flatten() for it in model.parameters() if it.requires_grad])


def a_round(learner: UserModel, *, steps: int = 2) -> None:
    learner.begin_round()
    assert learner.ask_ahead(steps)
    for _ in range(steps):
        moved(learner.model)
        learner.take_step()
    learner.end_round()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_round_is_released_clipped_and_the_live_model_is_what_was_released(dtype: torch.dtype) -> None:
    model = model_of(dtype)
    learner = protected(model)
    for _ in range(3):
        before_d = learner.vector()
        a_round(learner)
        assert float((learner.vector() - before_d).norm()) == pytest.approx(0.1, rel=1e-3)
        rounded = 0.0 if dtype != torch.bfloat16 else 2e-3
        torch.testing.assert_close(live(model), learner.vector(), rtol=0, atol=rounded)


def test_the_noise_is_the_rounds_and_once_however_many_steps_it_has() -> None:
    quiet, noisy = protected(model_of(), clip=1e4), protected(model_of(), clip=1e4, noise=1e-6)
    for learner in (quiet, noisy):
        a_round(learner, steps=7)
    assert float((noisy.vector() - quiet.vector()).std()) == pytest.approx(1e-2, rel=0.05)
    torch.testing.assert_close(quiet.vector(), live(model_of()) + 7, rtol=0, atol=1e-3)


def test_nothing_shows_the_steps_of_a_round_before_it_is_released() -> None:
    seen: list[torch.Tensor] = []

    def evaluate(model: nn.Module) -> float:
        seen.append(live(model))
        return 1.0

    model = model_of(torch.float64)
    learner = protected(model, evaluate=evaluate)
    learner.begin_round()
    before_d = learner.vector()
    learner.ask_ahead(1)
    moved(model, 1 / 3)
    learner.tell(loss=0.5, tokens=7)
    told = learner.take_step()
    assert told is not None
    assert math.isnan(told), "nor does the loss that the loop tells"
    assert learner.tokens == 0
    learner.measure()
    state = learner.state_dict()
    for shown_d in (learner.vector(), state["parameters"], live(learner.model_with()), *seen):
        assert torch.equal(shown_d, before_d)
    assert not any(name.startswith("finer.") for name in state), "nor the bits that fp32 has no room for"
    assert not torch.equal(live(model), before_d), "the loop's own model has them"


def test_what_others_add_is_not_clipped_and_is_no_own_move() -> None:
    learner = protected(model_of())
    before_d, added_d = learner.vector(), torch.full((learner.numel,), 0.5)
    learner.begin_round()
    learner.ask_ahead(1)
    moved(learner.model)
    learner.correct(added_d)
    assert torch.equal(learner.vector(), before_d + added_d)
    learner.take_step()
    learner.end_round()
    assert float((learner.vector() - before_d - added_d).norm()) == pytest.approx(0.1, rel=1e-3)


def test_a_state_that_the_program_loads_in_the_midst_of_a_round_is_a_move_of_the_round() -> None:
    model = model_of()
    learner = protected(model)
    before_d = learner.vector()
    learner.begin_round()
    learner.ask_ahead(1)
    model.load_state_dict({name: torch.full_like(it, 9.0) for name, it in model.state_dict().items()})
    learner.take_step()
    learner.end_round()
    assert float((learner.vector() - before_d).norm()) == pytest.approx(0.1, rel=1e-3)


def test_a_round_that_is_left_before_its_end_is_not_in_the_next_one() -> None:
    learner = protected(model_of())
    before_d = learner.vector()
    learner.begin_round()
    learner.ask_ahead(1)
    moved(learner.model)
    learner.take_step()
    learner.begin_round()
    assert torch.equal(live(learner.model), before_d)


def test_a_model_that_is_not_public_is_replaced_by_the_one_that_is() -> None:
    model = model_of()
    learner = UserModel(model, None, TrainConfig(), Shard(), data_seed=3)
    public_d = learner.vector()
    moved(model)
    learner.protect(PrivateTraining(privatizer=privacy.get("update")), public_d)
    assert torch.equal(live(model), public_d)
    assert torch.equal(learner.vector(), public_d)


def test_a_round_whose_model_is_not_finite_moves_by_noise_alone() -> None:
    learner = protected(model_of(), noise=0.1)
    before_d = learner.vector()
    learner.begin_round()
    learner.ask_ahead(1)
    moved(learner.model, math.inf)
    learner.take_step()
    learner.end_round()
    assert float((learner.vector() - before_d).std()) == pytest.approx(1e-2, rel=0.05)
    assert torch.isfinite(live(learner.model)).all()


def test_a_round_is_one_release_and_none_is_made_without() -> None:
    entries: list[Release] = []

    def spend(release: Release) -> None:
        if len(entries) == 2:
            raise BudgetSpentError
        entries.append(release)

    learner = protected(model_of(), noise=0.5, spend=spend)
    for _ in range(2):
        a_round(learner)
    assert entries == [Release(mechanism="update", noise=0.5, rate=1.0, count=1)] * 2
    before_d = learner.vector()
    assert not learner.ask_ahead(2)
    assert learner.budget_spent
    moved(learner.model)
    assert learner.take_step() is None
    with pytest.raises(BudgetSpentError):
        learner.end_round()
    assert torch.equal(learner.vector(), before_d)
    assert torch.equal(live(learner.model), before_d)


def test_adapters_alone_are_clipped_and_the_frozen_base_stays() -> None:
    model = model_of()
    model[0].requires_grad_(False)
    learner = protected(model)
    frozen = model[0].weight.clone()
    before_d = learner.vector()
    a_round(learner)
    assert learner.numel == 40 * 3 + 3
    assert float((learner.vector() - before_d).norm()) == pytest.approx(0.1, rel=1e-3)
    assert torch.equal(model[0].weight, frozen)


def test_what_a_loop_of_ones_own_cannot_have_is_refused() -> None:
    learner = UserModel(model_of(), None, TrainConfig(), Shard(), data_seed=3)
    with pytest.raises(TaskError, match="take update or example") as refused:
        learner.protect(PrivateTraining(privatizer=privacy.get("secure_update")), learner.vector())
    assert "\n" not in str(refused.value)


def test_a_learner_that_protects_nothing_is_as_before() -> None:
    learner = UserModel(model_of(), None, TrainConfig(), Shard(), data_seed=3)
    assert learner.ask_ahead(3)
    assert learner.release_of(3) is None
    before_d = live(learner.model)
    moved(learner.model)
    learner.tell(loss=0.5, tokens=7)
    assert learner.take_step() == 0.5
    learner.end_round()
    assert (learner.tokens, learner.changes) == (7, 0)
    assert torch.equal(learner.vector(), before_d + 1)
