"""What every inner optimizer must hold: it descends, its buffers are its whole state, and a model that is moved by
others between two steps goes on as it would have gone from there."""

import pytest
import torch
from torch import nn

from p2ptrain import inner
from p2ptrain.inner import InnerOptimizer
from p2ptrain.inner.base import moment_buffers
from p2ptrain.registry import BadOptionError
from p2ptrain.training import FlatParameters

every_inner = pytest.mark.parametrize("name", inner.names())


class Problem(FlatParameters):
    """A small model's flat buffers, each coordinate pulled to a target of its own with a curvature of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3), nn.Linear(3, 4), nn.Linear(4, 2)))
        self.target_d = torch.randn(self.numel)
        self.curvature_d = torch.rand(self.numel) + 0.2

    def loss(self) -> float:
        return float((self.curvature_d * (self.data_d - self.target_d) ** 2).sum() / 2)

    def descend(self, optimizer: InnerOptimizer, rate: float, grad_d: torch.Tensor | None = None) -> None:
        """One step at the gradient where the optimizer wants it, or at the one that is given."""
        point_d = optimizer.gradient_point()
        point_d = self.data_d if point_d is None else point_d
        self.grad_d.copy_(self.curvature_d * (point_d - self.target_d) if grad_d is None else grad_d)
        optimizer.step(rate)


def attached(name: str, problem: Problem, **options: object) -> InnerOptimizer:
    optimizer = inner.get(name, **options)
    optimizer.attach(problem)
    return optimizer


def gradients(count: int, problem: Problem, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(problem.data_d.shape, generator=generator) for _ in range(count)]


@pytest.mark.slow
@every_inner
def test_descends(name: str) -> None:
    problem = Problem()
    optimizer = attached(name, problem, weight_decay=0.0)
    assert isinstance(optimizer, InnerOptimizer)
    assert optimizer.schedule in {"cosine", "constant"}
    before = problem.loss()
    for _ in range(200):
        problem.descend(optimizer, 0.02)
    assert problem.loss() < before / 10


@every_inner
def test_the_buffers_are_the_whole_state_and_never_replaced(name: str) -> None:
    through, before, after = Problem(), Problem(), Problem()
    ahead, first, second = (attached(name, problem) for problem in (through, before, after))
    owned = dict(first.buffers)
    for _ in range(3):
        through.descend(ahead, 0.05)
        before.descend(first, 0.05)
    assert owned.keys() == first.buffers.keys()
    assert all(owned[key] is first.buffers[key] for key in owned)
    after.data_d.copy_(before.data_d)
    for key, buffer in second.buffers.items():
        buffer.copy_(first.buffers[key])
    for _ in range(4):
        through.descend(ahead, 0.03)
        after.descend(second, 0.03)
    assert torch.equal(after.data_d, through.data_d)


@every_inner
def test_moments_are_buffers_that_are_averages(name: str) -> None:
    """A long steady gradient makes each first one as long as it (SGD sums it up), and each second one its square."""
    problem = Problem()
    optimizer = attached(name, problem)
    moments = inner.moments_of(optimizer)
    assert moments.keys() <= optimizer.buffers.keys()
    (grad_d,) = gradients(1, problem)
    for _ in range(400):
        problem.descend(optimizer, 0.0, grad_d)
    for held in moment_buffers(optimizer):
        buffer = optimizer.buffers[held.name]
        assert (held.numel, buffer.dtype) == (buffer.numel(), torch.float32)
        if held.moment.order == "second":
            assert (buffer >= 0).all()
        elif held.moment.scaled_by:
            other = optimizer.buffers[held.moment.scaled_by]
            torch.testing.assert_close(buffer.view(-1).square(), other.view(-1), rtol=1e-3, atol=1e-9)
        else:
            assert buffer.norm() > 0.1 * grad_d.norm()


def test_an_optimizer_of_one_s_own_need_not_have_any() -> None:
    assert inner.moments_of(inner.get("schedule_free")) == {}
    assert inner.moments_of(inner.get("sgd", momentum=0.0)) == {}
    assert {*inner.moments_of(inner.get("muon"))} == {"momentum", "exp_avg", "exp_avg_sq"}


@every_inner
def test_a_model_that_others_moved_goes_on_from_there(name: str) -> None:
    """Without decay, whose pull depends on the place, the moves after a shift are those that would have been made."""
    still, moved = Problem(), Problem()
    shift_d = torch.linspace(-2, 2, len(still.data_d))
    pair = [(problem, attached(name, problem, weight_decay=0.0)) for problem in (still, moved)]
    for step, grad_d in enumerate(gradients(8, still)):
        if step == 4:
            moved.data_d.add_(shift_d)
        for problem, optimizer in pair:
            problem.descend(optimizer, 0.02, grad_d)
    torch.testing.assert_close(moved.data_d - shift_d, still.data_d, rtol=0, atol=2e-6)
    points = [optimizer.gradient_point() for _, optimizer in pair]
    if points[0] is not None:
        torch.testing.assert_close(points[1] - shift_d, points[0], rtol=0, atol=2e-6)


@every_inner
def test_the_gradient_point_is_a_tensor_of_its_own_and_moves_nothing(name: str) -> None:
    problem = Problem()
    optimizer = attached(name, problem)
    problem.descend(optimizer, 0.05)
    before_d = problem.data_d.clone()
    point_d = optimizer.gradient_point()
    if point_d is not None:
        point_d.zero_()
    assert torch.equal(problem.data_d, before_d)


@every_inner
def test_decays_matrices_and_nothing_else(name: str) -> None:
    problem = Problem()
    optimizer = attached(name, problem, weight_decay=0.5)
    before_d = problem.data_d.clone()
    for _ in range(3):
        problem.descend(optimizer, 0.1, torch.zeros_like(problem.data_d))
    for place in problem.places:
        after_d, start_d = problem.data_d[place.span], before_d[place.span]
        assert (after_d.abs() < 0.999 * start_d.abs()).all() if place.decayed else torch.equal(after_d, start_d)


@every_inner
def test_does_not_move_at_rate_zero(name: str) -> None:
    problem = Problem()
    optimizer = attached(name, problem)
    before_d = problem.data_d.clone()
    problem.descend(optimizer, 0.0)
    assert torch.equal(problem.data_d, before_d)


@every_inner
def test_an_option_that_it_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(BadOptionError, match="weight_decay"):
        inner.get(name, no_such_option=1)


@pytest.mark.parametrize("name", ["sgd", "muon"])
@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_a_momentum_that_cannot_be_is_refused(name: str, momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum"):
        inner.get(name, momentum=momentum)


def test_nesterov_needs_a_momentum() -> None:
    with pytest.raises(ValueError, match="nesterov"):
        inner.get("sgd", momentum=0.0, nesterov=True)
