"""Class statistics: what a member states of its examples, what noise covers, and what liars among members can do."""

import math
import struct
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import Batch, TaskError
from p2ptrain.tasks.digits import Digits
from p2ptrain.tasks.quadratic import Quadratic
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.warm_up import WarmUpTask
from p2ptrain.warm_up import ClassStatistics, ClassSums, SyntheticExamples, parse_statistics, robust_statistics
from p2ptrain.warm_up.class_statistics import LEAST_EXAMPLES, MECHANISM, encoded_bytes, release_of


class NoNoise:
    """Draws zeros."""

    def normals(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64)


class Ones:
    """Draws ones, so that the scale of the noise is seen."""

    def normals(self, count: int) -> torch.Tensor:
        return torch.ones(count, dtype=torch.float64)


class OnesAtTheEnd:
    """Draws ones for the last so many numbers, which are the squares', and zeros elsewhere."""

    def __init__(self, last: int) -> None:
        self._last = last

    def normals(self, count: int) -> torch.Tensor:
        drawn = torch.zeros(count, dtype=torch.float64)
        drawn[-self._last :] = 1.0
        return drawn


def sums_of(inputs: torch.Tensor, labels_n: torch.Tensor, classes: int = 3) -> ClassSums:
    sums = ClassSums(classes=classes, coordinates=inputs[0].numel(), low=0.0, high=1.0)
    sums.add(inputs, labels_n)
    return sums


def stated(means: list[list[float]], counts: list[float] | None = None) -> ClassStatistics:
    means_kd = torch.tensor(means)
    counts_k = torch.full((len(means),), 9.0) if counts is None else torch.tensor(counts)
    return ClassStatistics(counts_k=counts_k, means_kd=means_kd, variances_kd=torch.full_like(means_kd, 0.25))


def test_statistics_are_those_of_the_examples_scaled_to_the_range() -> None:
    random = torch.Generator().manual_seed(1)
    inputs, labels_n = torch.rand(60, 2, 4, generator=random), torch.arange(60) % 3
    found = sums_of(inputs, labels_n).statistics()
    scaled = (2 * inputs - 1).reshape(60, 8)
    for label in range(3):
        of = scaled[labels_n == label]
        assert found.counts_k[label] == 20
        torch.testing.assert_close(found.means_kd[label], of.mean(0))
        torch.testing.assert_close(found.variances_kd[label], of.var(0, correction=0))


def test_of_few_examples_nothing_is_stated() -> None:
    labels_n = torch.tensor([0] * (LEAST_EXAMPLES - 1) + [1] * LEAST_EXAMPLES)
    found = sums_of(torch.rand(len(labels_n), 4), labels_n).statistics()
    assert found.counts_k.tolist() == [0, LEAST_EXAMPLES, 0]
    assert not found.means_kd[0].any()
    assert not found.variances_kd[0].any()


def test_one_example_moves_the_sums_by_no_more_than_the_noise_counts_with() -> None:
    """Whatever the example, also one beyond the range: the noise of a coordinate is `noise` times this bound."""
    coordinates, noise = 16, 1.0
    some = sums_of(torch.zeros(30, coordinates), torch.arange(30) % 3)
    worst = torch.full((1, coordinates), 1e9)
    one = sums_of(worst, torch.tensor([1]))
    moved = math.sqrt(
        float((one._counts_k * 0.5 * math.sqrt(coordinates)).square().sum())
        + float(one._sums_kd.square().sum())
        + float((one._squares_kd.sum(0) * 0.5).square().sum())
    )
    assert moved == pytest.approx(math.sqrt(1.5 * coordinates))
    counts_k = some.noised(noise, Ones()).counts_k - some.noised(noise, NoNoise()).counts_k
    assert counts_k.tolist() == pytest.approx([moved / (0.5 * math.sqrt(coordinates))] * 3, rel=1e-5)
    not_finite = sums_of(torch.tensor([[math.nan, math.inf, -math.inf, 0.5]]), torch.tensor([0]))
    assert not_finite._sums_kd[0].tolist() == [0, 0, 0, 0]


def test_squares_are_noised_as_much_as_their_share_of_the_norm_wants() -> None:
    coordinates, noise = 8, 1.0
    sums = sums_of(torch.rand(300, coordinates), torch.arange(300) % 3)
    without, noised = (sums.noised(noise, source).variances_kd for source in (NoNoise(), OnesAtTheEnd(coordinates)))
    expected = noise * math.sqrt(1.5 * coordinates) / 0.5 / 300
    assert (noised - without).flatten().tolist() == pytest.approx([expected] * 3 * coordinates, rel=1e-3)


def test_without_noise_drawn_the_noised_statistics_have_the_same_means_and_one_variance() -> None:
    inputs, labels_n = torch.rand(300, 8), torch.arange(300) % 3
    sums = sums_of(inputs, labels_n)
    plain, noised = sums.statistics(), sums.noised(1.0, NoNoise())
    torch.testing.assert_close(noised.means_kd, plain.means_kd)
    torch.testing.assert_close(noised.variances_kd[0], plain.variances_kd.mean(0), atol=1e-4, rtol=1e-3)
    assert torch.equal(noised.variances_kd[0], noised.variances_kd[2])


def test_more_noise_moves_means_more_and_every_drawing_is_another() -> None:
    inputs, labels_n = torch.rand(3000, 8), torch.arange(3000) % 3
    sums = sums_of(inputs, labels_n)
    plain = sums.statistics().means_kd

    def moved(noise: float) -> float:
        return float((sums.noised(noise, SecretRandom()).means_kd - plain).square().mean().sqrt())

    assert moved(0.5) == pytest.approx(0.5 * math.sqrt(12) / 1000, rel=0.5)
    assert moved(50.0) > 20 * moved(0.5)
    assert not torch.equal(sums.noised(1.0, SecretRandom()).means_kd, sums.noised(1.0, SecretRandom()).means_kd)


def test_a_release_is_one_gaussian_sum() -> None:
    release = release_of(2.0)
    assert (release.mechanism, release.noise, release.rate, release.count) == (MECHANISM, 2.0, 1.0, 1)
    assert epsilon_of([release], 1e-4) < epsilon_of([release_of(1.0)], 1e-4)


def test_the_wire_form_comes_back() -> None:
    found = sums_of(torch.rand(60, 8), torch.arange(60) % 3).statistics()
    raw = found.encode()
    assert len(raw) == encoded_bytes(3, 8)
    back = parse_statistics(raw, classes=3, coordinates=8)
    assert torch.equal(back.counts_k, found.counts_k)
    torch.testing.assert_close(back.means_kd, found.means_kd, atol=1e-3, rtol=0)


@given(st.binary(max_size=200))
def test_what_are_no_statistics_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="no statistics"):
        parse_statistics(raw, classes=3, coordinates=8)


@pytest.mark.parametrize(
    ("at", "number"),
    [
        *((12, struct.pack("<f", count)) for count in (math.nan, -1.0, math.inf)),
        *((24, struct.pack("<e", mean)) for mean in (math.nan, 1.5)),
        (24 + 48, struct.pack("<e", -0.5)),
    ],
)
def test_numbers_that_no_inputs_have_are_refused(at: int, number: bytes) -> None:
    raw = bytearray(sums_of(torch.rand(60, 8), torch.arange(60) % 3).statistics().encode())
    raw[at : at + len(number)] = number
    with pytest.raises(ValueError, match="no inputs"):
        parse_statistics(bytes(raw), classes=3, coordinates=8)


def test_f_liars_move_no_coordinate_out_of_what_honest_members_state() -> None:
    honest = [stated([[0.1 * each, -0.5]]) for each in range(5)]
    for lie in (1.0, -1.0, 0.9):
        liars = [stated([[lie, -lie]], [1e9])] * 2
        found = robust_statistics([*honest, *liars], f=2)
        assert found is not None
        assert 0.0 <= float(found.means_cd[0, 0]) <= 0.4
        assert float(found.means_cd[0, 1]) == pytest.approx(-0.5)
    fooled = robust_statistics([*honest, *[stated([[1.0, 1.0]], [1e9])] * 2], f=0)
    assert fooled is not None
    assert float(fooled.means_cd[0, 1]) > -0.2, "a plain mean is moved"


def test_a_class_that_too_few_state_is_left_out_and_liars_alone_make_none() -> None:
    one, both = stated([[0.1], [0.0]], [9.0, 0.0]), stated([[0.2], [0.3]])
    assert robust_statistics([one, one, both], f=1).classes == (0,)  # type: ignore[union-attr]
    assert robust_statistics([one, both, both, both], f=1).classes == (0, 1)  # type: ignore[union-attr]
    assert robust_statistics([both, both], f=1) is None
    assert robust_statistics([], f=0) is None


def test_synthetic_examples_are_of_the_known_classes_within_the_range_and_of_their_seed() -> None:
    shared = robust_statistics([stated([[-0.9] * 4, [0.0] * 4, [0.9] * 4], [9, 0, 9])], f=0)
    assert shared is not None

    def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        return SyntheticExamples(shared, shape=torch.Size([2, 2]), low=10.0, high=20.0, seed=seed).draw(400)

    inputs, labels_n = draw(7)
    assert inputs.shape == (400, 2, 2)
    assert set(labels_n.tolist()) == {0, 2}
    assert 10 <= float(inputs.min()) < float(inputs.max()) <= 20
    assert float(inputs[labels_n == 0].mean()) < 13 < 17 < float(inputs[labels_n == 2].mean())
    assert torch.equal(draw(7)[0], inputs)
    assert not torch.equal(draw(8)[0], inputs)


def test_a_task_without_classes_is_refused_in_one_line() -> None:
    with pytest.raises(TaskError, match="tells classes of real-valued inputs apart"):
        WarmUpTask(Quadratic(), Shard())


@pytest.mark.parametrize(
    ("classes", "bounds"),
    [("ten", (0.0, 1.0)), (0, (0.0, 1.0)), (10, (1.0, 1.0)), (10, (0.0, math.inf)), (10, None), (10, (0.0,))],
)
def test_a_task_that_declares_what_cannot_be_is_refused(classes: object, bounds: object) -> None:
    class Wrong(Digits):
        pass

    Wrong.classes, Wrong.input_range = classes, bounds  # type: ignore[assignment]
    with pytest.raises(TaskError, match="wants classes, a number"):
        WarmUpTask(Wrong(), Shard())


def test_inputs_of_several_shapes_are_refused() -> None:
    class Growing(Digits):
        def examples_at(self, shard: Shard, numbers: Sequence[int]) -> Batch:
            inputs, labels_n = super().examples_at(shard, numbers)
            return (inputs if len(numbers) == 1 else inputs[:, 1:]), labels_n

    with pytest.raises(TaskError, match="inputs of one shape"):
        WarmUpTask(Growing(), Shard()).sums()


def test_a_batch_has_a_synthetic_example_whatever_the_own_share() -> None:
    own = WarmUpTask(Digits(), Shard(index=0, count=8))
    shared = robust_statistics([own.sums().statistics()], f=0)
    assert shared is not None
    asked: list[int] = []

    class Noted(Digits):
        def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
            asked.append(size)
            return super().train_batch(step, seed=seed, shard=shard, size=size)

    task = WarmUpTask(Noted(), Shard(index=0, count=8))
    assert [len(labels_n) for _, labels_n in task.batches(shared, steps=1, size=8, own_share=0.99, seed=1)] == [8]
    assert [len(labels_n) for _, labels_n in task.batches(shared, steps=1, size=1, own_share=0.99, seed=1)] == [1]
    assert asked == [7]


def test_a_warm_up_trains_local_parameters_alone_and_knows_classes_that_the_shard_lacks() -> None:
    task = Digits()
    members = [WarmUpTask(task, Shard(index=it, count=4)) for it in range(3)]
    shared = robust_statistics([it.sums().statistics() for it in members], f=1)
    assert shared is not None
    trainer = Trainer(task, TrainConfig(local=("6.*",), seed=3, device="cpu"), Shard(index=3, count=4))
    before_d, local_before = trainer.vector(), trainer.local_values()
    names = {name: value for name, value in trainer.state_dict().items() if name.startswith("local.")}
    loss_before = trainer.evaluate()
    batches = list(WarmUpTask(task, trainer.shard).batches(shared, steps=60, size=32, own_share=0.0, seed=1))
    trainer.train_local(batches, 0.01)
    assert torch.equal(trainer.vector(), before_d)
    assert all(not torch.equal(value, local_before[name]) for name, value in trainer.local_values().items())
    assert trainer.evaluate() < 0.7 * loss_before
    assert trainer.global_step == 0
    for name, value in trainer.state_dict().items():
        if name.startswith("local."):
            assert torch.equal(value, names[name]), "the run's own optimizer begins afresh"
    assert not trainer.flat.grad_d.any()
    trainer.train_local([(torch.full((4, 64), math.nan), torch.zeros(4, dtype=torch.int64))], 0.01)
    assert math.isfinite(trainer.evaluate()), "a step that is not finite is not taken"
