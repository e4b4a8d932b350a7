"""What every aggregator must hold, alone and after every stage: base.py's and stage.py's contracts, and the plain
algebra of an average."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch

from p2ptrain import aggregate
from p2ptrain.aggregate import PRE_AGGREGATORS, Aggregator, PreAggregator, Rows, Weighted, columns, geometry

D = 40_000
"""More than one chunk."""

OPTIONS: dict[str, dict[str, object]] = {"zeno": {"score": lambda x_d: float(torch.linalg.vector_norm(x_d))}}
"""For rules that cannot be had by name alone. To zeno the shorter vector is the better."""

COMPOSED = [
    *(f"{stage}+{rule}" for stage in aggregate.stages() for rule in ("trimmed_mean", "krum", "geometric_median")),
    *("clipping+nnm+trimmed_mean", "bucketing+nnm+median", "arc+nnm+multi_krum", "nnm+bucketing+trimmed_mean"),
    *("arc+clipped_gossip", "clipping+ios"),
]
NAMES = [*aggregate.names(), *COMPOSED]

every_aggregator = pytest.mark.parametrize("name", NAMES)
every_stage = pytest.mark.parametrize("stage", aggregate.stages())

LIES = [0.0, 1e4, -1e30, 3e38, torch.inf, -torch.inf, torch.nan]


def build(name: str, f: int) -> Aggregator:
    return aggregate.get(name, f=f, **OPTIONS.get(name, {}))


def from_origin(name: str) -> bool:
    return name == "zeno" or any(PRE_AGGREGATORS.get(part).from_origin for part in name.split("+")[:-1])


def inputs(n: int, d: int = D) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n))


def at_least(rule: Aggregator, n: int = 7) -> torch.Tensor:
    return inputs(max(n, rule.minimum()))


def with_liars(rule: Aggregator, lie: float | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of which the last f lie (row 0 may be the own one), and the honest ones."""
    x_nd = at_least(rule)
    honest_nd = x_nd[: len(x_nd) - rule.f].clone()
    x_nd[len(honest_nd) :] = lie
    return x_nd, honest_nd


def is_near(y_d: torch.Tensor, honest_nd: torch.Tensor) -> bool:
    """Robust rules stay within a few spreads of the honest mean; the plain mean states f = 0: nobody lies to it."""
    spread = torch.linalg.vector_norm(honest_nd - honest_nd.mean(0))
    return bool(torch.linalg.vector_norm(y_d - honest_nd.mean(0)) <= 3 * spread)


@contextmanager
def other_chunks(monkeypatch: pytest.MonkeyPatch, width: int, threads: int) -> Iterator[None]:
    with monkeypatch.context() as patched:
        for module in (columns, geometry):
            patched.setattr(module, "WIDTH", width)
        patched.setattr(geometry, "PRODUCT_NUMEL", 10 * width)
        patched.setattr(geometry, "BLOCKS", 7)
        patched.setattr(columns, "threads_for", lambda rows: threads)
        yield


@every_aggregator
@pytest.mark.parametrize("f", [0, 1, 2])
def test_is_an_aggregator_and_refuses_too_few(name: str, f: int) -> None:
    rule = build(name, f)
    assert isinstance(rule, Aggregator)
    assert rule.name == name
    assert rule.f in {0, f}
    assert 0 <= rule.breakdown <= 1
    assert rule(inputs(rule.minimum(), 10)).shape == (10,)
    with pytest.raises(ValueError, match="needs"):
        rule(inputs(rule.minimum(), 10)[:-1])


@every_aggregator
def test_minimum_agrees_with_the_breakdown_point(name: str) -> None:
    needed = [build(name, f).minimum() for f in range(1, 12)]
    rule = build(name, 1)
    if rule.f:
        steps = [later - sooner for sooner, later in pairwise(needed)]
        assert all(step == pytest.approx(1 / rule.breakdown) for step in steps)


@every_aggregator
def test_vectors_must_be_fp32_rows(name: str) -> None:
    rule = build(name, 0)
    for wrong_nd in (inputs(5, 8).double(), inputs(5, 8)[0], inputs(5, 8)[:0]):
        with pytest.raises(ValueError, match="needs"):
            rule(wrong_nd)
    with pytest.raises(ValueError, match="fp32"):
        rule.reduce(Rows(9, 8, lambda part: inputs(9, 8).double()[:, part]))


@every_aggregator
def test_equal_inputs_come_back(name: str) -> None:
    rule = build(name, 1)
    x_d = inputs(1)[0]
    torch.testing.assert_close(rule(x_d.expand(max(7, rule.minimum()), -1)), x_d)


@every_aggregator
def test_order_does_not_matter(name: str) -> None:
    """Of those that are not the caller's own. Bucketing draws anew each time, and is left out."""
    if "bucketing" in name:
        return
    rule = build(name, 1)
    x_nd = at_least(rule)
    first = int(rule.own_first)
    torch.testing.assert_close(rule(torch.cat([x_nd[:first], x_nd[first:].flip(0)])), rule(x_nd))


@every_aggregator
def test_moves_and_scales_with_its_inputs(name: str) -> None:
    """It moves unless it measures from zero; it always scales."""
    move = 0 if from_origin(name) else 2
    x_nd = at_least(build(name, 1))
    torch.testing.assert_close(build(name, 1)(3 * x_nd + move), 3 * build(name, 1)(x_nd) + move, atol=1e-4, rtol=1e-4)


@every_aggregator
def test_stays_within_its_inputs(name: str) -> None:
    rule = build(name, 1)
    x_nd = at_least(rule)
    y_d = rule(x_nd)
    if from_origin(name):
        x_nd = torch.cat([x_nd, torch.zeros(1, D)])
    assert (y_d >= x_nd.amin(0) - 1e-5).all()
    assert (y_d <= x_nd.amax(0) + 1e-5).all()


@every_aggregator
def test_leaves_its_inputs_alone(name: str) -> None:
    rule = build(name, 1)
    x_nd = at_least(rule)
    x_nd[-1, :5] = torch.nan
    before_nd = x_nd.clone()
    rule(x_nd)
    torch.testing.assert_close(x_nd, before_nd, equal_nan=True, rtol=0, atol=0)


@every_aggregator
def test_reads_columns_as_it_takes_a_matrix(name: str) -> None:
    """The same result by chunks; all columns are read, none of them wider than promised, and nothing else."""
    x_nd = at_least(build(name, 1))
    seen_d = torch.zeros(D, dtype=torch.bool)

    def read(part: slice) -> torch.Tensor:
        assert 0 <= part.start <= part.stop <= D
        assert part.stop - part.start <= 32_704
        seen_d[part] = True
        return x_nd[:, part].clone()

    y_d = build(name, 1).reduce(Rows(len(x_nd), D, read))
    assert torch.equal(y_d, build(name, 1)(x_nd))
    assert seen_d.all()


@every_aggregator
@pytest.mark.parametrize("threads", [1, 3])
def test_chunks_and_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch, name: str, threads: int) -> None:
    x_nd = at_least(build(name, 1))[:, :5000]
    if not from_origin(name):  # which would make the row 0, from which all clipped ones are equally far
        x_nd[-1, 1234] = torch.nan
    expected_d = build(name, 1)(x_nd)
    with other_chunks(monkeypatch, 333, threads):
        torch.testing.assert_close(build(name, 1)(x_nd), expected_d, equal_nan=True)


@every_aggregator
def test_an_error_of_the_reader_comes_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rule = build(name, 1)
    x_nd = at_least(rule)[:, :5000]

    def read(part: slice) -> torch.Tensor:
        if part.start > 2000:
            raise OSError("gone")
        return x_nd[:, part]

    with other_chunks(monkeypatch, 333, 3), pytest.raises(OSError, match="gone"):
        rule.reduce(Rows(len(x_nd), 5000, read))


@every_aggregator
def test_takes_views_gradients_and_inference_mode(name: str) -> None:
    x_nd = at_least(build(name, 1))
    expected_d = build(name, 1)(x_nd)
    torch.testing.assert_close(build(name, 1)(x_nd.T.contiguous().T), expected_d)
    y_d = build(name, 1)(x_nd.clone().requires_grad_())
    torch.testing.assert_close(y_d, expected_d)
    assert not y_d.requires_grad
    assert not y_d.is_inference()
    with torch.inference_mode():
        torch.testing.assert_close(build(name, 1)(x_nd), expected_d)


@every_aggregator
def test_no_columns_give_none(name: str) -> None:
    rule = build(name, 1)
    assert rule(torch.empty(max(7, rule.minimum()), 0)).shape == (0,)


@every_aggregator
@pytest.mark.parametrize("f", [1, 2])
@pytest.mark.parametrize("lie", LIES)
def test_promised_liars_move_nothing_far(name: str, f: int, lie: float) -> None:
    """For the f that a rule itself states, not the one it was asked for."""
    rule = build(name, f)
    x_nd, honest_nd = with_liars(rule, lie)
    assert is_near(rule(x_nd), honest_nd)


@every_aggregator
@pytest.mark.parametrize("spreads", [-2.0, 1.5, 100.0])
def test_liars_just_outside_move_nothing_far(name: str, spreads: float) -> None:
    """They stand together, some deviations off in every coordinate, in half of the chunks only."""
    rule = build(name, 2)
    honest_nd = with_liars(rule, 0.0)[1]
    lie_d = honest_nd.mean(0) + spreads * honest_nd.std(0)
    lie_d[: D // 2] = honest_nd[0, : D // 2]
    x_nd, honest_nd = with_liars(rule, lie_d)
    assert is_near(rule(x_nd), honest_nd)


@every_aggregator
def test_liars_may_differ(name: str) -> None:
    rule = build(name, 2)
    x_nd, honest_nd = with_liars(rule, torch.nan)
    if rule.f:
        x_nd[-1] = 1e12
    assert is_near(rule(x_nd), honest_nd)


@every_aggregator
def test_negative_f_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="f must not be negative"):
        build(name, -1)


weighted_rules = [name for name in aggregate.names() if isinstance(build(name, 1), Weighted)]


def weighted(rule: Aggregator, rows: Rows | torch.Tensor, weights: list[float]) -> torch.Tensor:
    assert isinstance(rule, Weighted)
    return rule.weighted(rows, weights)


@pytest.mark.parametrize("name", weighted_rules)
def test_equal_weights_are_none(name: str) -> None:
    rule = build(name, 1)
    x_nd = at_least(rule)
    torch.testing.assert_close(weighted(rule, x_nd, [0.3] * len(x_nd)), rule(x_nd), atol=1e-5, rtol=1e-5)
    assert torch.equal(weighted(rule, Rows.of(x_nd), [2.0] * len(x_nd)), weighted(rule, x_nd, [2.0] * len(x_nd)))


@pytest.mark.parametrize("name", weighted_rules)
def test_a_row_of_weight_0_does_not_count(name: str) -> None:
    """Wherever it stands, as long as it stands among the others."""
    rule = build(name, 0)
    x_nd = inputs(8, 50)
    moved_nd = x_nd.clone()
    moved_nd[-1] = x_nd[1:-1].mean(0)
    weights = [*[1.0] * 7, 0.0]
    torch.testing.assert_close(weighted(rule, x_nd, weights), weighted(rule, moved_nd, weights), atol=0.1, rtol=0)


@pytest.mark.parametrize("name", weighted_rules)
def test_weights_that_are_none_are_refused(name: str) -> None:
    rule = build(name, 1)
    for weights in ([1.0] * 6, [1.0] * 6 + [-1.0], [0.0] * 7, [1.0] * 6 + [torch.nan], [1.0] * 6 + [torch.inf]):
        with pytest.raises(ValueError, match="weights"):
            weighted(rule, inputs(7, 10), weights)


@every_stage
@pytest.mark.parametrize("f", [0, 1, 3])
def test_is_a_stage(stage: str, f: int) -> None:
    made = PRE_AGGREGATORS.get(stage, f=f)
    assert isinstance(made, PreAggregator)
    assert made.f == f
    assert 0 < made.breakdown(0.5) <= 0.5
    for after in (1, 2 * f + 1, 2 * f + 3):
        n = made.minimum(after)
        x_nd = inputs(n, 20)
        points = geometry.measure(Rows.of(x_nd), f, origin=made.from_origin) if made.looks else None
        weight_mp = made.mix(n, points)
        assert weight_mp.dtype == torch.float64
        assert len(weight_mp) >= after
        assert weight_mp.shape[1] == n + made.from_origin
        assert (weight_mp >= 0).all()
        torch.testing.assert_close(weight_mp.sum(dim=1), torch.ones(len(weight_mp), dtype=torch.float64))
        if made.keeps_rows:
            assert len(weight_mp) == n


@every_stage
def test_a_stage_refuses_a_negative_f(stage: str) -> None:
    with pytest.raises(ValueError, match="f must not be negative"):
        PRE_AGGREGATORS.get(stage, f=-1)
