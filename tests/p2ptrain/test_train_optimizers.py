"""Inner optimizers against their papers in float64 (inner_references.py), over drawn shapes, rates and options."""

import inner_references as references
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inner_problem import Problem
from sizes import examples
from torch import nn

from p2ptrain import inner
from p2ptrain.inner import muon
from p2ptrain.training import FlatParameters

shapes = st.lists(
    st.one_of(st.tuples(st.integers(1, 9)), st.tuples(st.integers(1, 6), st.integers(1, 6))), min_size=1, max_size=4
)
rates = st.lists(st.floats(1e-4, 0.1), min_size=1, max_size=12)
betas = st.tuples(st.floats(0, 0.99), st.floats(0.5, 0.999))
decays = st.sampled_from([0.0, 0.1, 1.0])
seeds = st.integers(0, 1000)


def follow(problem, optimizer, rates, expected, *, slack=0.0):
    """Step by step beside the reference's path; fp32's rounding grows with the steps. `slack`: of the way so far."""
    optimizer.attach(problem)
    way = 0.0
    for rate, theta in zip(rates, expected, strict=True):
        problem.descend(optimizer, rate)
        way += rate
        for found, wanted in zip(problem.split(problem.data_d), theta, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4 + slack * way)


@settings(deadline=None)
@given(shapes, rates, betas, decays, seeds, st.sampled_from([1e-8, 3e-3]))
def test_adamw(shapes, rates, betas, decay, seed, epsilon):
    problem = Problem(shapes, seed=seed)
    options = {"betas": betas, "weight_decay": decay, "epsilon": epsilon}
    expected = references.adamw(problem.start, problem.grad, rates, decayed=problem.decays, **options)
    # Where a gradient all but vanishes, its own rounding is divided by it: up to a hundredth of the way is found there.
    follow(problem, inner.get("adamw", **options), rates, expected, slack=0.01)


@settings(deadline=None)
@given(shapes, rates, st.floats(0, 0.95), st.booleans(), decays, seeds)
def test_sgd(shapes, rates, momentum, nesterov, decay, seed):
    problem = Problem(shapes, seed=seed)
    options = {"momentum": momentum, "nesterov": nesterov and momentum > 0, "weight_decay": decay}
    expected = references.sgd(problem.start, problem.grad, rates, decayed=problem.decays, **options)
    follow(problem, inner.get("sgd", **options), rates, expected)


@settings(deadline=None)
@given(shapes, rates, betas, decays, seeds)
def test_schedule_free(shapes, rates, betas, decay, seed):
    problem = Problem(shapes, seed=seed)
    options = {"betas": betas, "weight_decay": decay}
    expected = references.schedule_free(problem.start, problem.grad, rates, decayed=problem.decays, **options)
    follow(problem, inner.get("schedule_free", **options), rates, expected)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4), st.booleans(), st.floats(0, 0.95), seeds)
def test_muon_moves_matrices_by_their_orthogonalized_momentum(rows, columns, steps, nesterov, momentum, seed):
    problem = Problem([(rows, columns), (3,)], seed=seed)
    optimizer = inner.get("muon", weight_decay=0.0, momentum=momentum, nesterov=nesterov)
    optimizer.attach(problem)
    generator, grads = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        grad_d = torch.randn(problem.data_d.shape, generator=generator)
        grads.append(problem.split(grad_d)[0])
        before = problem.split(problem.data_d)[0]
        problem.descend(optimizer, 0.01, grad_d)
        found = (problem.split(problem.data_d)[0] - before) / 0.01
        wanted = references.muon_move(grads, momentum=momentum, nesterov=nesterov)
        assert np.linalg.norm(found - wanted) < 2e-3 * np.linalg.norm(wanted)


@settings(deadline=None)
@given(shapes, rates, betas, decays, seeds)
def test_muon_is_adamw_for_what_is_no_hidden_matrix(shapes, rates, betas, decay, seed):
    problem = Problem([*shapes, (2, 2)], seed=seed, hidden=False)
    problem.places[-1] = type(problem.places[-1])(**{**vars(problem.places[-1]), "hidden": True})
    options = {"betas": betas, "weight_decay": decay}
    expected = references.adamw(problem.start, problem.grad, rates, decayed=problem.decays, **options)
    optimizer = inner.get("muon", **options)
    optimizer.attach(problem)
    for rate, theta in zip(rates, expected, strict=True):
        problem.descend(optimizer, rate)
        for found, wanted in zip(problem.split(problem.data_d)[:-1], theta[:-1], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


def test_a_muon_step_is_about_as_long_as_an_adamw_step():
    """What its scale is for (2502.16982): an rms of 0.2 a coordinate, AdamW's usual, times the rate."""
    for shape in [(64, 64), (96, 288), (384, 96)]:
        problem = Problem([shape])
        optimizer = inner.get("muon", weight_decay=0.0)
        optimizer.attach(problem)
        before_d = problem.data_d.clone()
        problem.descend(optimizer, 1.0)
        assert 0.1 < float((problem.data_d - before_d).square().mean().sqrt()) < 0.3


def test_muon_without_a_hidden_matrix_is_refused():
    with pytest.raises(ValueError, match="no hidden matrix"):
        inner.get("muon").attach(Problem([(3,), (4,)]))


@pytest.mark.parametrize("together", [1, 1 << 20], ids=["alone", "together"])
def test_muon_moves_as_torchs_own(monkeypatch, together):
    """Matrices of one shape that are iterated together do not mix, tall and wide ones; torch takes one at a time, in
    bf16: a few percent of the move's length."""
    monkeypatch.setattr(muon, "TOGETHER", together)
    problem = Problem([(6, 4), (4, 6), (6, 4), (5, 5), (6, 4)])
    optimizer = inner.get("muon", weight_decay=0.0)
    optimizer.attach(problem)
    masters = [nn.Parameter(torch.from_numpy(part).float()) for part in problem.split(problem.data_d)]
    theirs = torch.optim.Muon(masters, lr=0.02, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    starts = [master.detach().numpy().copy() for master in masters]
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        grad_d = torch.randn(problem.data_d.shape, generator=generator)
        for master, grad in zip(masters, problem.split(grad_d), strict=True):
            master.grad = torch.from_numpy(grad).float()
        theirs.step()
        problem.descend(optimizer, 0.02, grad_d)
    for start, found, wanted in zip(starts, problem.split(problem.data_d), masters, strict=True):
        move = wanted.detach().numpy() - start
        assert np.linalg.norm(found - start - move) < 0.1 * np.linalg.norm(move)


def hidden(model):
    return [place.name for place in FlatParameters(model).places if place.hidden]


def test_hidden_are_the_matrices_between_the_layers():
    mlp = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))
    assert hidden(mlp) == ["0.weight", "2.weight"]
    tied = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "up": nn.Linear(4, 9), "down": nn.Linear(9, 4)})
    assert hidden(tied) == ["up.weight", "down.weight"]
    untied = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "mix": nn.Linear(4, 4), "head": nn.Linear(4, 9)})
    assert hidden(untied) == ["mix.weight"]
    assert hidden(nn.Conv2d(1, 2, 3)) == []
