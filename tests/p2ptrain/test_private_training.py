"""Private steps and rounds: what one example, or one round, can change; that noise is never drawn again; what is spent
before it is released; and what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from p2ptrain import privacy
from p2ptrain.privacy.allowance import BLOCK
from p2ptrain.privacy.base import BudgetSpentError, Release
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer, example_gradients
from p2ptrain.training.example_gradients import norms_of
from p2ptrain.training.flat import FlatParameters
from p2ptrain.training.parameter_vector import ParameterVector
from p2ptrain.training.private_moves import PrivateMoves
from p2ptrain.training.private_rounds import PrivateRounds
from p2ptrain.training.private_training import PrivateTraining
from tests.seeded_bytes import seeded_bytes

SHARD = Shard(index=0, count=8)
NEARLY_NONE = 1e-9
"""A noise that no fp32 number shows: what is left is the sum."""


class Chosen(SecretRandom):
    """Draws these examples, and noise from a seed."""

    def __init__(self, chosen, seed=0):
        super().__init__(seeded_bytes(seed))
        self.chosen = list(chosen)

    def drawn(self, count, rate):
        return torch.tensor(self.chosen, dtype=torch.int64).numpy()


class Few(Digits):
    """The digits with other pictures for some of the numbers, and a model of the test's choosing."""

    def __init__(self, model=None, scale=1.0):
        super().__init__()
        self.model, self.scale = model, scale

    def build_model(self):
        return super().build_model() if self.model is None else self.model

    def examples_at(self, shard, numbers):
        images, labels = super().examples_at(shard, numbers)
        return images * self.scale, labels


def trainer(task=None, *, source=None, spend=None, name="example", noise=NEARLY_NONE, clip=1.0, rate=None, **train):
    given = {} if source is None else {"source": source}
    given |= {} if spend is None else {"spend": spend}
    protection = PrivateTraining(privatizer=privacy.get(name, noise=noise, clip=clip), rate=rate, **given)
    config = TrainConfig(**({"device": "cpu", "warmup_steps": 0, "optimizer": "sgd", "clip_norm": 0} | train))
    return Trainer(task or Digits(), config, SHARD, privacy=protection)


def summed(chosen, *, clip, scale=1.0):
    """The sum of the examples' clipped gradients, without the division by what is expected."""
    node = trainer(Few(scale=scale), source=Chosen(chosen), clip=clip, rate=0.1)
    _, grad_d = node.gradient()
    return grad_d.double() * 0.1 * 180


@settings(max_examples=25, deadline=None)
@given(
    others=st.lists(st.integers(0, 179), max_size=20, unique=True),
    one=st.integers(0, 179),
    clip=st.sampled_from([0.01, 1.0, 5.0]),
    scale=st.sampled_from([1.0, 1e3, 1e-3]),
)
def test_adding_an_example_changes_the_sum_by_the_clipping_norm_at_most(others, one, clip, scale):
    others = [each for each in others if each != one]
    change = summed([*others, one], clip=clip, scale=scale) - summed(others, clip=clip, scale=scale)
    rounding = 1e-6 * clip * (len(others) + 1)
    assert float(change.norm()) <= clip + rounding


def test_clipping_is_over_all_parameters_together():
    """Clipped layer by layer the sum of one example's would be longer, by the root of the number of layers."""
    clipped_d = summed([3], clip=0.01)
    assert float(clipped_d.norm()) == pytest.approx(0.01, rel=1e-5)
    plain = Trainer(Digits(), TrainConfig(device="cpu"), SHARD)
    plain.task.loss(plain.model, plain.task.examples_at(SHARD, [3])).backward()
    along_d = plain.flat.grad_d.double()
    torch.testing.assert_close(clipped_d, along_d * (0.01 / float(along_d.norm())), rtol=1e-4, atol=1e-8)


def test_the_sum_is_divided_by_what_is_expected_and_never_by_what_was_drawn():
    """18 of 180 are expected: with 6 drawn the gradient is a third of their mean."""
    few = range(0, 60, 10)
    node = trainer(source=Chosen(few), clip=1e6, rate=0.1)
    _, grad_d = node.gradient()
    plain = Trainer(Digits(), TrainConfig(device="cpu"), SHARD)
    plain.task.loss(plain.model, plain.task.examples_at(SHARD, few)).backward()
    torch.testing.assert_close(grad_d, plain.flat.grad_d * 6 / 18, rtol=1e-4, atol=1e-3)
    assert node._private_steps.tokens == 18


def test_a_step_that_drew_nobody_is_a_step_with_noise():
    node = trainer(source=Chosen([]), noise=2.0, clip=3.0, rate=0.1)
    before_d = node.vector()
    assert math.isnan(node.step())
    _, grad_d = node.gradient()
    assert not torch.equal(node.vector(), before_d)
    assert float(grad_d.std()) == pytest.approx(2.0 * 3.0 / 18, rel=0.05), "9,226 numbers: one percent off, usually"
    assert (node.global_step, node.skipped_steps, node.tokens) == (1, 0, 36)


def test_an_example_whose_gradient_is_not_finite_counts_for_nothing():
    node = trainer(Few(), source=Chosen([1, 2]), noise=1.0)
    node.task.scale = math.nan
    node.step()
    assert torch.isfinite(node.vector()).all()
    assert node.skipped_steps == 0


def test_noise_and_examples_are_drawn_anew_after_a_restart():
    """The same step from the same checkpoint: with the same noise their difference would be without any."""

    def resumed():
        node = trainer(noise=1.0)
        node.load_state_dict(state)
        node.step()
        return node.vector()

    state = {name: it.clone() for name, it in trainer(noise=1.0).state_dict().items()}
    first_d, again_d = resumed(), resumed()
    moved_d = first_d - state["parameters"]
    assert float((first_d - again_d).norm()) > 0.5 * float(moved_d.norm())


def test_chunks_do_not_change_a_step():
    def grad(chunk):
        protection = PrivateTraining(
            privatizer=privacy.get("example", noise=NEARLY_NONE), rate=0.1, chunk=chunk, source=Chosen(range(10))
        )
        return Trainer(Digits(), TrainConfig(device="cpu"), SHARD, privacy=protection).gradient()[1]

    torch.testing.assert_close(grad(3), grad(10), rtol=1e-4, atol=1e-7)
    node = trainer()
    node.take_at_a_time(2)
    assert node._private_steps.draws.chunk == 2


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon", "schedule_free"])
def test_every_optimizer_steps_by_private_gradients(optimizer):
    node = trainer(noise=0.5, rate=0.2, optimizer=optimizer)
    before_d = node.vector()
    for _ in range(3):
        node.step()
    assert torch.isfinite(node.vector()).all()
    assert not torch.equal(node.vector(), before_d)


def test_it_learns():
    node = trainer(noise=0.6, rate=0.3, clip=1.0, learning_rate=0.5, momentum=0.0)
    before = node.evaluate()
    for _ in range(60):
        node.step()
    assert node.evaluate() < 0.8 * before


def test_without_a_privatizer_a_step_is_as_before():
    plain = Trainer(Digits(), TrainConfig(device="cpu"), SHARD)
    unprotected = Trainer(
        Digits(), TrainConfig(device="cpu"), SHARD, privacy=PrivateTraining(privatizer=privacy.get("none"))
    )
    assert [plain.step() for _ in range(4)] == [unprotected.step() for _ in range(4)]
    assert torch.equal(plain.vector(), unprotected.vector())


class Ledger:
    """Allows so many releases."""

    def __init__(self, most=math.inf):
        self.most, self.entries = most, []

    def __call__(self, release):
        if self.spent + release.count > self.most:
            raise BudgetSpentError(f"{release.count} more")
        self.entries.append(release)

    @property
    def spent(self):
        return sum(each.count for each in self.entries)


def test_a_rounds_steps_are_spent_ahead_and_what_is_left_is_kept():
    ledger = Ledger()
    node = trainer(spend=ledger, noise=0.7, rate=0.1)
    node.ask_ahead(5)
    assert ledger.entries == [Release(mechanism="example", noise=0.7, rate=0.1, count=5)]
    for _ in range(3):
        node.take_step()
    node.ask_ahead(5)
    assert [each.count for each in ledger.entries] == [5, 3]
    for _ in range(6):
        node.take_step()
    assert [each.count for each in ledger.entries] == [5, 3, BLOCK], "one step more than planned"


def test_no_step_is_taken_that_was_not_allowed():
    node = trainer(spend=Ledger(4), noise=1.0)
    node.ask_ahead(4)
    for _ in range(4):
        assert node.take_step() is not None
    before_d = node.vector()
    node.ask_ahead(4)
    assert node.budget_spent
    assert node.take_step() is None
    with pytest.raises(BudgetSpentError):
        node.step()
    assert torch.equal(node.vector(), before_d)
    assert node.global_step == 4


def test_no_step_is_taken_where_nobody_asked_and_none_is_allowed():
    node = trainer(spend=Ledger(0))
    assert node.take_step() is None
    assert node.global_step == 0


def test_models_are_judged_on_what_is_held_out():
    class Watched(Digits):
        asked = 0

        def train_batch(self, step, *, seed, shard, size):
            self.asked += 1
            return super().train_batch(step, seed=seed, shard=shard, size=size)

    node = trainer(Watched())
    assert math.isfinite(node.judge(node.vector(), 3))
    node.step()
    assert node.task.asked == 0


class Typed(nn.Module):
    """Computes in fp32 alone, whatever it is made."""

    def __init__(self, wrong=0.0):
        super().__init__()
        self.inner, self.wrong, self.calls = nn.Linear(64, 10), wrong, 0

    def forward(self, x):
        assert self.inner.weight.dtype is torch.float32
        self.calls += 1
        return self.inner(x) * (1 + self.wrong * self.calls)


def test_a_model_with_a_type_of_its_own_is_compared_in_that_and_its_gradients_stay():
    node = trainer(Few(Typed()), source=Chosen([1, 5]), rate=0.1)
    assert float(node.flat.grad_d.abs().sum()) == 0
    assert all(each.grad is not None for each in node.model.parameters())
    assert float(node.gradient()[1].norm()) > 0
    with pytest.raises(TaskError, match="differ from a loop's"):
        trainer(Few(Typed(wrong=0.01)))


# What is refused.


class CompareAll(Digits):
    whole_batches = True


class Nameless:
    """A task without names for its examples."""

    name, metric = "nameless", "nats"

    def __init__(self):
        self._task = Digits()
        for each in ("build_model", "train_batch", "eval_batches", "loss", "tokens"):
            setattr(self, each, getattr(self._task, each))


class Counts(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


class Branches(nn.Module):
    """Decides by its data."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, x):
        return self.inner(x) if float(x.sum()) > 0 else self.inner(-x)


class ByBatch(nn.Module):
    """Computes another function where several examples come together."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x) * self.calls


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (CompareAll, "compares the examples of a batch"),
        (Nameless, "cannot name them: give it example_count"),
        (lambda: Few(Counts()), "changes buffers while it trains"),
        (lambda: Few(Branches()), "torch.func.vmap cannot compute them"),
        (lambda: Few(nn.Sequential(nn.Linear(64, 10), nn.Dropout(0.5))), "torch.func.vmap cannot compute them"),
        (lambda: Few(ByBatch()), "differ from a loop's"),
    ],
    ids=["whole batches", "nameless", "buffers", "branches", "dropout", "differs"],
)
def test_a_task_without_right_gradients_of_examples_is_refused_in_a_line(task, words):
    with pytest.raises(TaskError, match=words) as refused:
        trainer(task())
    assert "\n" not in str(refused.value)
    assert "privac" in str(refused.value)


# Rounds.


def a_round(node, steps=3):
    node.begin_round()
    node.ask_ahead(steps)
    for _ in range(steps):
        node.take_step()
    node.end_round()


@pytest.mark.parametrize("clip", [1e-3, 0.05])
def test_a_round_moves_the_model_by_the_clipping_norm_at_most(clip):
    node = trainer(name="update", clip=clip, learning_rate=1.0)
    before_d = node.vector()
    a_round(node)
    assert float((node.vector() - before_d).norm()) == pytest.approx(clip, rel=1e-3)


def test_a_short_move_stays_and_the_noise_is_the_rounds():
    plain = Trainer(
        Digits(),
        TrainConfig(device="cpu", warmup_steps=0, optimizer="sgd", clip_norm=0),
        SHARD,
    )
    quiet, noisy = trainer(name="update", clip=1e3), trainer(name="update", clip=1e3, noise=1e-5)
    for node in (plain, quiet, noisy):
        a_round(node)
    torch.testing.assert_close(quiet.vector(), plain.vector(), rtol=0, atol=1e-5)
    noise_d = noisy.vector() - quiet.vector()
    assert float(noise_d.std()) == pytest.approx(1e-2, rel=0.05)


def test_what_others_add_is_not_clipped():
    node, added_d = trainer(name="update", clip=1e-3, learning_rate=1.0), torch.full((9226,), 0.5)
    before_d = node.vector()
    node.begin_round()
    node.ask_ahead(2)
    node.take_step()
    node.correct(added_d)
    node.take_step()
    node.end_round()
    assert float((node.vector() - before_d - added_d).norm()) == pytest.approx(1e-3, rel=0.1)


def test_nothing_shows_the_steps_of_a_round_before_it_is_released():
    """What is saved, evaluated or exported in the midst of a round is the model without them."""
    node = trainer(name="update", learning_rate=1.0)
    node.begin_round()
    before_d = node.vector()
    node.ask_ahead(1)
    assert math.isnan(node.take_step()), "nor does its loss"
    assert not torch.equal(node.flat.data_d, before_d)
    assert torch.equal(node.vector(), before_d)
    assert torch.equal(node.state_dict()["parameters"], before_d)
    resumed = trainer(name="update")
    resumed.load_state_dict(node.state_dict())
    resumed.ask_ahead(1)
    resumed.end_round()
    torch.testing.assert_close(resumed.vector(), before_d)


def test_a_round_that_is_left_before_its_end_is_not_in_the_next_one():
    """Nothing noises its steps: where the next round begins they would be published as they are."""
    node = trainer(name="update", learning_rate=1.0)
    before_d = node.vector()
    node.begin_round()
    node.ask_ahead(1)
    node.take_step()
    node.begin_round()
    assert torch.equal(node.vector(), before_d)
    assert torch.equal(node.flat.data_d, before_d)


class CountsSome(Digits):
    """Counts predictions by the labels, as a language model does that is trained on a part of each row."""

    def tokens(self, batch):
        return int((batch[1] >= 5).sum())


@pytest.mark.parametrize("name", ["example", "update"])
def test_the_number_of_predictions_tells_nothing_of_the_batch(name):
    node, counts = trainer(CountsSome(), name=name), []
    for _ in range(4):
        before = node.tokens
        node.step()
        counts.append(node.tokens - before)
    (held_out,) = CountsSome().eval_batches(1)
    expected = TrainConfig().batch_size * CountsSome().tokens(held_out)
    assert counts == [expected] * 4
    assert (
        len({CountsSome().tokens(node.task.train_batch(step, seed=0, shard=SHARD, size=16)) for step in range(4)}) > 1
    )


@pytest.mark.parametrize("unit", ["nothing", "examples"])
def test_a_privatizer_with_a_unit_that_no_trainer_knows_is_refused(unit):
    """A plug-in's, or nothing would be protected without a word."""
    other = privacy.get("example")
    other.name, other.unit = "mine", unit
    with pytest.raises(TaskError, match="mine protects") as refused:
        Trainer(Digits(), TrainConfig(device="cpu"), SHARD, privacy=PrivateTraining(privatizer=other))
    assert "\n" not in str(refused.value)


def test_a_round_is_one_release_and_none_is_trained_without():
    ledger = Ledger(2)
    node = trainer(name="update", noise=0.5, spend=ledger)
    for _ in range(2):
        a_round(node)
    assert ledger.entries == [Release(mechanism="update", noise=0.5, rate=1.0, count=1)] * 2
    node.begin_round()
    node.ask_ahead(3)
    assert node.take_step() is None


def test_a_round_whose_model_is_not_finite_moves_by_noise_alone():
    node = trainer(name="update", noise=1e-3)
    before_d = node.vector()
    node.begin_round()
    node.ask_ahead(1)
    node.flat.data_d[0] = math.inf
    node.end_round()
    assert torch.isfinite(node.vector()).all()
    assert float((node.vector() - before_d).std()) == pytest.approx(1e-3, rel=0.05)


def test_a_model_that_changes_buffers_is_refused():
    with pytest.raises(TaskError, match="privatizer=update: the model changes buffers"):
        trainer(Few(Counts()), name="update")


def test_norms_are_exact_where_fp32_sums_are_not():
    gradients = {"w": torch.full((2, 4_000_000), 1e-3)}
    assert norms_of(gradients).tolist() == pytest.approx([2.0, 2.0], rel=1e-7)


def test_a_model_too_large_for_a_copy_in_fp64_is_compared_as_it_is(monkeypatch):
    monkeypatch.setattr(example_gradients, "WIDENED", 1)
    node = trainer(source=Chosen([1, 5]), rate=0.1)
    assert float(node.gradient()[1].norm()) > 0
    with pytest.raises(TaskError, match="differ from a loop's"):
        trainer(Few(ByBatch()))


@pytest.mark.parametrize("beside", [False, True], ids=["in the model", "beside it"])
def test_a_release_that_may_not_be_made_leaves_nothing_of_the_round(beside: bool) -> None:
    def refuse(release: Release) -> None:
        raise BudgetSpentError

    model = nn.Linear(3, 2)
    protection = PrivateTraining(privatizer=privacy.get("update"), spend=refuse)
    before = [each.detach().clone() for each in model.parameters()]
    if beside:
        values = ParameterVector(model)
        moves = PrivateMoves(values, protection, values.vector())
        release = moves.end_round
    else:
        release = PrivateRounds(FlatParameters(model), protection).release_
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1.0)
    with pytest.raises(BudgetSpentError):
        release()
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
