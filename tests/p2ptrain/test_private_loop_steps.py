"""Private steps of a user's own loop: its gradients are the Trainer's, and whatever else moves its model is refused."""

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from p2ptrain import privacy
from p2ptrain.privacy.allowance import BLOCK, unaccounted
from p2ptrain.privacy.base import BudgetSpentError, Release, Spend
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.tasks import Shard, TaskError
from p2ptrain.tasks.base import Batch
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer, UserModel
from p2ptrain.training.private_loop_steps import LoopExamples
from p2ptrain.training.private_training import PrivateTraining
from p2ptrain.training.trainer import UNTRAINED_PREFIX
from tests.seeded_bytes import seeded_bytes

SHARD = Shard(index=0, count=8)
RATE = 0.1
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, generator=GENERATOR)
Y = X[:, :3].argmax(1)


class Chosen(SecretRandom):
    """Draws these examples, and noise from a seed."""

    def __init__(self, chosen: list[int], seed: int = 0) -> None:
        super().__init__(seeded_bytes(seed))
        self.chosen = chosen

    def drawn(self, count: int, rate: float) -> npt.NDArray[np.int64]:
        return np.array(self.chosen, np.int64)


def model_of(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    inputs, labels = batch
    return cross_entropy(model(inputs.to(next(model.parameters()).dtype)), labels)


def rows_at(rows: list[int]) -> Batch:
    return X[rows], Y[rows]


class Loop:
    """A user's loop, with the hooks of `p2ptrain.join` called by hand."""

    def __init__(
        self,
        model: nn.Module,
        *,
        noise: float = 1e-9,
        spend: Spend = unaccounted,
        source: SecretRandom | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **more: Any,
    ) -> None:
        self.model = model
        self.optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5)
        self.learner = UserModel(model, self.optimizer, TrainConfig(), Shard(), data_seed=3)
        privatizer = privacy.get("example", noise=noise)
        given = {"privatizer": privatizer, "spend": spend, "rate": RATE, "source": source or SecretRandom(), **more}
        self.learner.protect(PrivateTraining(**given), self.learner.vector())
        assert self.learner.private_steps is not None
        self.steps = self.learner.private_steps

    def examples(self, loss: Callable[..., torch.Tensor] = loss_of) -> LoopExamples:
        return self.steps.examples(loss, rows_at, len(X))

    def step(self, *, has_closure: bool = False) -> None:
        self.steps.check_step(has_closure=has_closure)
        self.optimizer.step()
        self.steps.step_taken()
        self.learner.take_step()


def test_a_step_is_the_trainers_with_the_same_draws_and_the_same_noise() -> None:
    """Bit for bit, over several steps: one mechanism, whoever loops."""
    task, config = Digits(), TrainConfig(device="cpu", warmup_steps=0, optimizer="sgd", clip_norm=0)
    chosen = [3, 17, 60, 61, 120]
    protection = {"privatizer": privacy.get("example", noise=0.7, clip=0.5), "rate": RATE}
    model = copy.deepcopy(Trainer(task, config, SHARD).model)
    trainer = Trainer(task, config, SHARD, privacy=PrivateTraining(**protection, source=Chosen(chosen)))
    loop = Loop(model, source=Chosen(chosen), privatizer=protection["privatizer"])
    examples = loop.steps.examples(task.loss, lambda rows: task.examples_at(SHARD, rows), task.example_count(SHARD))
    for _ in range(3):
        _, expected_d = trainer.gradient()
        assert loop.learner.fill_gradient(examples)
        found_d = torch.cat([each.grad.flatten() for each in model.parameters()])  # type: ignore[union-attr]
        assert torch.equal(found_d, expected_d)
        before_d = loop.learner.vector()
        loop.step()
        torch.testing.assert_close(loop.learner.vector(), before_d - 0.5 * expected_d)
        trainer.apply_gradient(expected_d)
        loop.learner.load_vector(trainer.vector())  # its optimizer is another


def test_what_may_leave_is_the_model_after_the_last_step_that_was_accounted_for() -> None:
    loop = Loop(model_of())
    examples, before_d = loop.examples(), loop.learner.vector()
    loop.learner.begin_round()
    assert loop.learner.ask_ahead(2)
    loop.learner.fill_gradient(examples)
    loop.step()
    after_d = loop.learner.vector()
    assert not torch.equal(after_d, before_d)
    with torch.no_grad():
        loop.model[0].weight.fill_(9.0)  # type: ignore[index, union-attr, operator]
    for shown_d in (loop.learner.vector(), loop.learner.state_dict()["parameters"]):
        assert torch.equal(shown_d, after_d)
    loop.learner.end_round()
    assert torch.equal(loop.learner.vector(), after_d)
    assert float(nn.utils.parameters_to_vector(loop.learner.model_with().parameters()).detach().max()) < 9.0
    with pytest.raises(TaskError, match="moved by something else"):
        loop.learner.fill_gradient(examples)


def moved(loop: Loop) -> None:
    with torch.no_grad():
        loop.model[0].bias.add_(1.0)  # type: ignore[index, operator]


def moved_unseen(loop: Loop) -> None:
    loop.model[0].weight.data[0, 0] += 1e-6  # type: ignore[index, union-attr]


def added_a_gradient(loop: Loop) -> None:
    loss_of(loop.model, rows_at([0])).backward()  # type: ignore[no-untyped-call]


SHORT = 1e-30
"""Shorter than the noise alone, which is all that a step of no examples has: one of sixty draws none."""


def clipped(loop: Loop) -> None:
    nn.utils.clip_grad_norm_(loop.model.parameters(), SHORT)


def clipped_unseen(loop: Loop) -> None:
    for each in loop.model.parameters():
        each.grad.data.clamp_(-SHORT, SHORT)  # type: ignore[union-attr]


def zeroed(loop: Loop) -> None:
    loop.optimizer.zero_grad()


def with_a_stranger(loop: Loop) -> None:
    stranger = nn.Parameter(torch.zeros(2))
    stranger.grad = torch.ones(2)
    loop.optimizer.add_param_group({"params": [stranger]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (moved, "moved by something else"),
        (moved_unseen, "moved by something else"),
        (added_a_gradient, "is not the private one"),
        (clipped, "is not the private one"),
        (clipped_unseen, "is not the private one"),
        (zeroed, "is not the private one"),
        (with_a_stranger, "a parameter that is not shared"),
    ],
)
def test_a_step_by_anything_but_the_private_gradient_is_refused_before_it_moves(
    change: Callable[[Loop], None], words: str
) -> None:
    loop = Loop(model_of())
    loop.learner.fill_gradient(loop.examples())
    change(loop)
    with pytest.raises(TaskError, match=words) as refused:
        loop.step()
    assert "\n" not in str(refused.value)
    with pytest.raises(TaskError, match="not looked at"):
        loop.steps.step_taken()


def test_a_gradient_is_for_one_step_and_closures_have_none() -> None:
    loop = Loop(model_of())
    with pytest.raises(TaskError, match="has no private gradient"):
        loop.step()
    loop.learner.fill_gradient(loop.examples())
    with pytest.raises(TaskError, match="a closure"):
        loop.step(has_closure=True)
    loop.step()
    with pytest.raises(TaskError, match="has no private gradient"):
        loop.step()


class Counts(nn.Module):
    """Counts its calls in a buffer while it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.counts = nn.Linear(6, 3), False
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))

    calls: torch.Tensor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.counts:
            self.calls += 1
        found: torch.Tensor = self.inner(inputs)
        return found


def test_what_changes_beside_the_parameters_is_refused_at_the_next_gradient() -> None:
    model = Counts()
    loop = Loop(model)
    examples = loop.examples()
    model.counts = True
    model(X)
    model.counts = False
    with pytest.raises(TaskError, match="a buffer or a frozen parameter"):
        loop.learner.fill_gradient(examples)
    loop = Loop(model_of())
    examples = loop.examples()
    loop.model[0].weight.requires_grad_(False)  # type: ignore[index, union-attr, operator]
    with pytest.raises(TaskError, match="frozen or thawed"):
        loop.learner.fill_gradient(examples)


def counted(model: Counts) -> None:
    model.calls += 1


def counted_unseen(model: Counts) -> None:
    model.calls.data += 1


def replaced(model: Counts) -> None:
    model.calls = model.calls + 1


def thawed_and_moved(model: Counts) -> None:
    with torch.no_grad():
        model.frozen.add_(1.0)


@pytest.mark.parametrize("change", [counted, counted_unseen, replaced, thawed_and_moved])
def test_what_is_not_trained_leaves_as_it_was_at_the_join(change: Callable[[Counts], None]) -> None:
    """Also where it has changed between two loops, or after the last gradient."""
    model = Counts()
    loop = Loop(model, optimizer=torch.optim.SGD(model.inner.parameters(), lr=0.5))
    before = loop.learner.state_dict()
    assert loop.learner.fill_gradient(loop.examples())
    loop.step()
    for _ in range(2):  # twice: a new tensor may lie where the first one did
        change(model)
    after = loop.learner.state_dict()
    for name in (f"{UNTRAINED_PREFIX}calls", f"{UNTRAINED_PREFIX}frozen"):
        assert torch.equal(after[name], before[name])
    with pytest.raises(TaskError, match="a buffer or a frozen parameter"):
        loop.learner.fill_gradient(loop.examples())
    loop.learner.load_state_dict(after)
    assert model.calls == 0
    assert loop.learner.fill_gradient(loop.examples())


def test_bits_that_fp32_has_no_room_for_are_looked_at_too() -> None:
    loop = Loop(model_of(torch.float64))
    loop.learner.fill_gradient(loop.examples())
    loop.model[0].weight.data *= 1 + 1e-12  # type: ignore[index, union-attr, operator]
    with pytest.raises(TaskError, match="moved by something else"):
        loop.step()


def test_an_optimizer_that_has_stepped_before_is_refused_but_with_the_state_that_a_checkpoint_kept() -> None:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    loss_of(model, rows_at([0, 1])).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    loop = Loop(model, optimizer=optimizer)
    with pytest.raises(TaskError, match="has a state already"):
        loop.learner.fill_gradient(loop.examples())
    other = model_of()
    before = Loop(other, optimizer=torch.optim.Adam(other.parameters()))
    before.learner.fill_gradient(before.examples())
    loop.learner.load_state_dict(before.learner.state_dict())
    assert loop.learner.fill_gradient(loop.examples())


@pytest.mark.parametrize("begins_at", [0.0, 0.5])
def test_an_optimizer_that_begins_with_a_state_is_taken_until_its_first_step(begins_at: float) -> None:
    model = model_of()
    adagrad = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=begins_at)
    loop = Loop(model, optimizer=adagrad)
    assert loop.learner.fill_gradient(loop.examples()), "one number everywhere says nothing of the data"
    adagrad.step()
    loop = Loop(model, optimizer=adagrad)
    with pytest.raises(TaskError, match="has a state already"):
        loop.learner.fill_gradient(loop.examples())


def test_a_state_of_zero_steps_that_something_has_filled_is_refused() -> None:
    model = model_of()
    adagrad = torch.optim.Adagrad(model.parameters())
    adagrad.state[model[0].weight]["sum"][0, 0] = 1.0
    loop = Loop(model, optimizer=adagrad)
    with pytest.raises(TaskError, match="has a state already"):
        loop.learner.fill_gradient(loop.examples())


def test_a_state_that_nothing_is_known_of_is_in_no_checkpoint_and_is_none_after_it() -> None:
    """Else a restart would take its word for the optimizer's."""
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    loss_of(model, rows_at([0, 1])).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    loop = Loop(model, optimizer=optimizer)
    state = loop.learner.state_dict()
    assert not [name for name in state if name.startswith("optimizer.")]
    loop.learner.load_state_dict(state)
    with pytest.raises(TaskError, match="has a state already"):
        loop.learner.fill_gradient(loop.examples())


def test_an_optimizer_of_private_rounds_is_none_of_private_steps() -> None:
    """It has seen each gradient as it was: its momentum would be in the next model."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    by_rounds = UserModel(model, optimizer, TrainConfig(), Shard(), data_seed=3)
    by_rounds.protect(PrivateTraining(privatizer=privacy.get("update")), by_rounds.vector())
    loss_of(model, rows_at([0, 1])).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    other = model_of()
    loop = Loop(other, optimizer=torch.optim.SGD(other.parameters(), lr=0.5, momentum=0.9))
    with pytest.raises(ValueError, match="gradients that were not private"):
        loop.learner.load_state_dict(by_rounds.state_dict())
    assert not loop.optimizer.state


class ByBatch(nn.Module):
    """Computes another function where several examples come together."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(6, 3), 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found: torch.Tensor = self.inner(inputs) * self.calls
        return found


OTHER = model_of()


@pytest.mark.parametrize(
    ("model", "loss", "words"),
    [
        (
            lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
            loss_of,
            "batch|more than 1 value",
        ),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), loss_of, "vmap cannot compute them"),
        (ByBatch, loss_of, "differ from a loop's"),
        (model_of, lambda model, batch: loss_of(OTHER, batch), "no parameter of the model that it is given"),
    ],
    ids=["batch norm", "dropout", "by batch", "another model"],
)
def test_a_loss_without_right_gradients_of_examples_is_refused(
    model: Callable[[], nn.Module], loss: Callable[..., torch.Tensor], words: str
) -> None:
    loop = Loop(model())
    with pytest.raises((TaskError, ValueError), match=words):
        loop.examples(loss)


def test_a_model_that_is_put_into_another_mode_is_looked_at_again() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).eval()
    loop = Loop(model, source=Chosen([1, 2]))
    examples = loop.examples()
    assert loop.learner.fill_gradient(examples)
    loop.step()
    model.train()
    with pytest.raises(TaskError, match="vmap cannot compute them"):
        loop.learner.fill_gradient(examples)


def test_a_batch_of_another_size_is_refused() -> None:
    """Two rows for a number would count twice what is clipped once."""
    with pytest.raises(TaskError, match=r"3 examples were asked for, and a tensor of shape \(6, 6\) came"):
        Loop(model_of()).steps.examples(loss_of, lambda rows: (X[rows * 2], Y[rows * 2]), len(X))
    with pytest.raises(TaskError, match="no example to draw"):
        Loop(model_of()).steps.examples(loss_of, rows_at, 0)
    with pytest.raises(TaskError, match="no integer"):
        Loop(model_of()).steps.examples(loss_of, rows_at, 40.0)  # type: ignore[arg-type]


def test_a_gradient_whose_examples_failed_to_load_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is summed then, without noise; and the one before it is gone as well."""
    loop = Loop(model_of(), source=Chosen([1, 2, 3]), chunk=1)
    examples = loop.examples()
    assert loop.learner.fill_gradient(examples)
    left = 2

    def failing(rows: list[int]) -> Batch:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("the disk is gone")
        return rows_at(rows)

    monkeypatch.setattr(examples, "_examples_at", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        loop.learner.fill_gradient(examples)
    with pytest.raises(TaskError, match="has no private gradient"):
        loop.step()
    monkeypatch.setattr(examples, "_examples_at", rows_at)
    assert loop.learner.fill_gradient(examples)
    loop.step()


@pytest.mark.parametrize(
    ("batch", "word"),
    [
        (lambda rows: X[rows].numpy(), "ndarray"),
        (lambda rows: (X[rows], None), "NoneType"),
        (lambda rows: (), "nothing"),
    ],
)
def test_a_batch_of_other_things_than_tensors_is_refused(batch: Callable[[list[int]], Any], word: str) -> None:
    with pytest.raises(TaskError, match=f"tensors in tuples, lists or dicts, and here is {word}"):
        Loop(model_of()).steps.examples(loss_of, batch, len(X))


@pytest.mark.parametrize(
    ("loss", "word"),
    [
        (lambda model, batch: 0.5, "is float"),
        (lambda model, batch: None, "is NoneType"),
        (lambda model, batch: loss_of(model, batch)[None], r"is shape \(1,\)"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused(loss: Callable[..., Any], word: str) -> None:
    with pytest.raises(TaskError, match=f"a scalar tensor, and {word}"):
        Loop(model_of()).examples(loss)


def test_a_loss_without_a_gradient_is_refused() -> None:
    with pytest.raises(TaskError, match="the loss has no gradient"):
        Loop(model_of()).examples(lambda model, batch: loss_of(model, batch).detach())


def test_a_loop_within_no_grad_is_refused() -> None:
    for mode in (torch.no_grad, torch.inference_mode):
        with pytest.raises(TaskError, match=r"within torch\.no_grad"), mode():
            Loop(model_of()).examples()


def test_a_step_that_drew_nobody_has_noise_alone_and_asks_for_no_examples() -> None:
    asked: list[list[int]] = []

    def at(rows: list[int]) -> Batch:
        asked.append(rows)
        return rows_at(rows)

    loop = Loop(model_of(), noise=2.0, source=Chosen([]))
    examples = loop.steps.examples(loss_of, at, len(X))
    asked.clear()
    assert loop.learner.fill_gradient(examples)
    gradient_d = torch.cat([each.grad.flatten() for each in loop.model.parameters()])  # type: ignore[union-attr]
    assert float(gradient_d.std()) == pytest.approx(2.0 / (RATE * len(X)), rel=0.3)
    assert asked == []


def test_examples_are_loaded_by_the_chunk_and_chunks_do_not_change_a_step() -> None:
    found = []
    for chunk in (2, 5):
        sizes: list[int] = []

        def at(rows: list[int], sizes: list[int] = sizes) -> Batch:
            sizes.append(len(rows))
            return rows_at(rows)

        loop = Loop(model_of(), source=Chosen([1, 4, 9, 20, 33]), chunk=chunk)
        loop.learner.fill_gradient(loop.steps.examples(loss_of, at, len(X)))
        assert sizes[1:] == ([2, 2, 1] if chunk == 2 else [5])
        found.append(torch.cat([each.grad.flatten() for each in loop.model.parameters()]))  # type: ignore[union-attr]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-8)


def test_a_chunk_that_does_not_fit_is_halved_for_later_examples_too_and_is_told() -> None:
    sizes: list[int] = []

    def full_beyond_two(model: nn.Module, batch: Batch) -> torch.Tensor:
        if sizes and sizes[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.50 MiB.")
        return loss_of(model, batch)

    def at(rows: list[int]) -> Batch:
        if len(rows) != 3:  # those that are compared with a loop's
            sizes.append(len(rows))
        return rows_at(rows)

    loop, uncut = (Loop(model_of(), source=Chosen([1, 4, 9, 20]), chunk=chunk) for chunk in (8, 2))
    assert loop.learner.micro_batch is None
    loop.learner.fill_gradient(loop.steps.examples(full_beyond_two, at, len(X)))
    uncut.learner.fill_gradient(uncut.examples())
    pairs = zip(loop.model.parameters(), uncut.model.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)  # type: ignore[arg-type]
    assert sizes == [4, 4, 2, 2], "of 8 allowed, then of 4, then of 2"
    assert loop.learner.micro_batch == 2
    loop.step()
    loop.learner.fill_gradient(loop.steps.examples(full_beyond_two, at, len(X)))
    assert sizes[4:] == [2, 2]


def test_only_what_is_trained_has_a_gradient_and_the_frozen_base_stays() -> None:
    model = model_of()
    model[0].requires_grad_(False)
    loop = Loop(model, optimizer=torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5))
    frozen, before_d = model[0].weight.clone(), loop.learner.vector()
    loop.learner.fill_gradient(loop.examples())
    loop.step()
    assert model[0].weight.grad is None
    assert torch.equal(model[0].weight, frozen)
    assert loop.learner.numel == 5 * 3 + 3
    assert not torch.equal(loop.learner.vector(), before_d)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_others_add_is_no_step_and_the_loop_goes_on(dtype: torch.dtype) -> None:
    loop = Loop(model_of(dtype))
    examples = loop.examples()
    for turn in range(3):
        before_d = loop.learner.vector()
        added_d = torch.full((loop.learner.numel,), 0.3**turn)
        loop.learner.correct(added_d)
        torch.testing.assert_close(loop.learner.vector(), before_d + added_d, rtol=1e-2, atol=1e-2)
        assert loop.learner.fill_gradient(examples)
        loop.step()


def test_gradients_are_of_the_parameters_wherever_they_lie() -> None:
    """A program may move the numbers of a parameter to other memory: the gradient is of the model as it is."""
    found = []
    for moves in (False, True):
        loop = Loop(model_of(), source=Chosen([1, 4, 9]))
        examples = loop.examples()
        for each in loop.model.parameters() if moves else ():
            each.data = each.data.clone()
        for _ in range(2):
            loop.learner.fill_gradient(examples)
            loop.step()
        found.append(loop.learner.vector())
    assert torch.equal(*found)


def test_releases_are_asked_for_by_the_round_and_none_is_made_without() -> None:
    entries: list[Release] = []

    def spend(release: Release) -> None:
        if sum(each.count for each in entries) + release.count > 15:
            raise BudgetSpentError
        entries.append(release)

    loop = Loop(model_of(), noise=0.7, spend=spend)
    examples = loop.examples()
    assert entries == [], "nothing is drawn by the comparison with a loop"
    assert loop.learner.release_of(5) == Release(mechanism="example", noise=0.7, rate=RATE, count=5)
    loop.learner.ask_ahead(5)
    for _ in range(5 + BLOCK):
        assert loop.learner.fill_gradient(examples)
        loop.step()
    assert [each.count for each in entries] == [5, BLOCK], "more steps than were planned"
    before_d, counted = loop.learner.vector(), loop.learner.global_step
    assert not loop.learner.fill_gradient(examples)
    assert loop.learner.budget_spent
    assert loop.learner.take_step() is None
    assert torch.equal(loop.learner.vector(), before_d)
    assert loop.learner.global_step == counted
    with pytest.raises(TaskError, match="has no private gradient"):
        loop.step()


def test_noise_and_draws_are_the_systems_at_every_step() -> None:
    found = []
    for _ in range(3):
        loop = Loop(model_of(), noise=1.0)
        loop.learner.fill_gradient(loop.examples())
        found.append(loop.model[0].weight.grad.clone())  # type: ignore[index, union-attr, operator]
    assert all(not torch.equal(one, other) for one, other in pairwise(found))


def test_what_is_wanted_of_the_loop_is_said_in_a_line() -> None:
    learner = UserModel(model_of(), None, TrainConfig(), Shard(), data_seed=3)
    with pytest.raises(TaskError, match="give the optimizer"):
        learner.protect(PrivateTraining(privatizer=privacy.get("example"), rate=0.1), learner.vector())
    with pytest.raises(TaskError, match=r"privacy\.rate"):
        Loop(model_of(), rate=None)
    model = model_of()
    with pytest.raises(TaskError, match=r"LBFGS computes its own in step\(closure\)"):
        Loop(model, optimizer=torch.optim.LBFGS(model.parameters()))


def test_it_learns() -> None:
    loop = Loop(model_of(), noise=0.5)
    examples = loop.examples()
    before = float(loss_of(loop.model, (X, Y)).detach())
    for _ in range(60):
        loop.learner.fill_gradient(examples)
        loop.step()
    assert float(loss_of(loop.model, (X, Y)).detach()) < 0.8 * before
