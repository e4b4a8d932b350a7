"""Every aggregator against a slow float64 one: sizes, scales, ties, zeros, denormals, rows that are not finite."""

import aggregator_reference as slow
import numpy as np
import pytest
import torch
from aggregator_reference import Array
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples, thorough_but

from p2ptrain import aggregate
from p2ptrain.aggregate import Aggregator, Weighted

SLOW = {
    name: getattr(slow, name)
    for name in (
        *("mean", "trimmed_mean", "median", "meamed"),
        *("krum", "multi_krum", "geometric_median", "centered_clipping", "faba", "caf"),
        *("clipped_gossip", "cs_plus", "gts", "ios"),
    )
}
BY_COLUMN = ["trimmed_mean", "median", "meamed"]
UNIQUE = ["mean", *BY_COLUMN, "krum", "multi_krum", "clipped_gossip", "cs_plus", "gts"]
"""Whose result on small whole numbers is exact up to the last average: ties are ties in both."""
WEIGHTED = [name for name in SLOW if isinstance(aggregate.get(name, f=1), Weighted)]
STAGES = {"nnm": slow.nnm, "clipping": slow.clipping, "arc": slow.arc}


def as_numpy(x_nd: torch.Tensor) -> Array:
    return x_nd.double().numpy()


def agree(got_d: torch.Tensor, expected_d: Array, x_nd: torch.Tensor, tolerance: float = 2e-5) -> None:
    """To a tolerance against the largest finite number among the inputs; denormals to the last place."""
    finite_nd = x_nd[x_nd.isfinite()]
    scale = float(finite_nd.abs().max()) if len(finite_nd) else 0.0
    torch.testing.assert_close(
        got_d.double(), torch.from_numpy(expected_d), rtol=0, atol=tolerance * scale + 1e-44, equal_nan=True
    )


def needed(name: str, f: int) -> int:
    """Of two vectors, and of two that alone count, all points between are a geometric median."""
    return max(aggregate.get(name, f=f).minimum(), 3 if name == "geometric_median" else 1)


@st.composite
def whole_numbers(draw: st.DrawFn, name: str) -> tuple[torch.Tensor, int]:
    """Vectors of small whole numbers times a power of two from the least denormal up, and f. Many ties and zeros."""
    f = draw(st.integers(0, 4))
    n = draw(st.integers(needed(name, f), 64))
    d = draw(st.integers(1, 7))
    seed = draw(st.integers(0, 2**20))
    size = draw(st.sampled_from([1, 3, 100]))
    scale = 2.0 ** draw(st.sampled_from([-149, -149, -130, -70, -24, 0, 0, 20, 70, 120]))
    x_nd = torch.randint(-size, size + 1, (n, d), generator=torch.Generator().manual_seed(seed))
    return x_nd * torch.tensor(scale, dtype=torch.float32), f


@pytest.mark.slow
@pytest.mark.parametrize("name", UNIQUE)
@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(data=st.data())
def test_whole_numbers_of_all_scales(name: str, data: st.DataObject) -> None:
    x_nd, f = data.draw(whole_numbers(name))
    agree(aggregate.get(name, f=f)(x_nd), SLOW[name](as_numpy(x_nd), f), x_nd, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(data=st.data())
def test_gaussians_of_all_scales(name: str, data: st.DataObject) -> None:
    """Around a mean that is up to a thousand times their spread."""
    f = data.draw(st.integers(0, 3))
    n = data.draw(st.integers(needed(name, f), 64))
    d = data.draw(st.sampled_from([2, 5, 30]))
    offset = data.draw(st.sampled_from([0.0, 1.0, 1000.0]))
    scale = 10.0 ** data.draw(st.sampled_from([-36, -20, -3, 0, 0, 5, 25]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    x_nd = (torch.randn(n, d, generator=generator) + offset * torch.randn(d, generator=generator)) * scale
    agree(aggregate.get(name, f=f)(x_nd), SLOW[name](as_numpy(x_nd), f), x_nd)


@pytest.mark.parametrize("name", sorted(set(SLOW) - {"mean"}))
@pytest.mark.parametrize("f", [1, 2])
@pytest.mark.parametrize("lie", [torch.inf, -torch.inf, torch.nan, 1e6, 0.0])
def test_liars_rows(name: str, f: int, lie: float) -> None:
    """The last f rows lie in a single column; rows that are not finite are infinitely far off."""
    x_nd = torch.randn(needed(name, f) + 1, 30, generator=torch.Generator().manual_seed(f))
    x_nd[-f:, 17] = lie
    agree(aggregate.get(name, f=f)(x_nd), SLOW[name](as_numpy(x_nd), f), x_nd[:-f])


"""All small ones, and those beside a power of two, where the shape of a sorting network changes."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_COLUMN)
@pytest.mark.parametrize("n", thorough_but({*range(1, 13), 16, 17, 32, 33, 63, 64}, range(1, 65)))
def test_every_number_of_vectors_by_column(name: str, n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    for f in sorted({0, 1, 2, n // 5, n // 3, (n - 1) // 2}):
        if n > 2 * f:
            x_nd = torch.randint(-9, 10, (n, 40), generator=generator) / 4
            x_nd[:, 7] = torch.randn(n, generator=generator)
            x_nd[: f // 2, 3], x_nd[f // 2 : f, 3] = torch.nan, -torch.inf
            agree(aggregate.get(name, f=f)(x_nd), SLOW[name](as_numpy(x_nd), f), x_nd)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in sorted(SLOW) if name not in BY_COLUMN])
@pytest.mark.parametrize("n", thorough_but({1, 2, 5, 9, 33}, [1, 2, 3, 4, 5, 9, 17, 33, 64]))
def test_numbers_of_vectors(name: str, n: int) -> None:
    x_nd = torch.randn(n, 30, generator=torch.Generator().manual_seed(n))
    for f in (0, (n - 3) // 2, (n - 1) // 3, (n - 1) // 2):
        if f >= 0 and n >= needed(name, f):
            agree(aggregate.get(name, f=f)(x_nd), SLOW[name](as_numpy(x_nd), f), x_nd)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", thorough_but({"trimmed_mean", "clipped_gossip"}, sorted(SLOW.keys() - {"caf"}))
)  # the reference of caf makes a d x d matrix
def test_several_chunks(name: str) -> None:
    x_nd = torch.randn(9, 40_001, generator=torch.Generator().manual_seed(1)) + 50
    agree(aggregate.get(name, f=2)(x_nd), SLOW[name](as_numpy(x_nd), 2), x_nd, 1e-6)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(n=st.integers(1, 9), seed=st.integers(0, 2**20), whole=st.booleans(), data=st.data())
def test_mda_finds_a_subset_of_least_diameter(n: int, seed: int, whole: bool, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (n - 1) // 2))
    generator = torch.Generator().manual_seed(seed)
    x_nd = (
        torch.randint(-2, 3, (n, 3), generator=generator).float() if whole else torch.randn(n, 3, generator=generator)
    )
    if f and data.draw(st.booleans()):
        x_nd[0, 0] = torch.inf
    _, means = slow.least_diameters(as_numpy(x_nd), f)
    got_d = aggregate.get("mda", f=f)(x_nd).double().numpy()
    assert min(np.abs(got_d - mean).max() for mean in means) < 1e-5


def test_mda_may_have_to_keep_whom_most_are_far_from() -> None:
    """A search that only ever left out the worst would miss some of these."""
    for seed in range(60):
        x_nd = torch.randn(9, 2, generator=torch.Generator().manual_seed(seed))
        _, means = slow.least_diameters(as_numpy(x_nd), 4)
        got_d = aggregate.get("mda", f=4)(x_nd).double().numpy()
        assert min(np.abs(got_d - mean).max() for mean in means) < 1e-5


def test_mda_leaves_out_the_farthest_of_equals() -> None:
    """All subsets of three have diameter 8 (squared); the first row has the largest sum of distances."""
    x_nd = torch.tensor([[2.0, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 2, 0, 0], [0, 1, 1, 1, 1]])
    agree(aggregate.get("mda", f=1)(x_nd), as_numpy(x_nd[1:]).mean(axis=0), x_nd)


def test_mda_at_its_largest() -> None:
    """n = 64 and f = 16: nobody can try all subsets, but two clouds are told apart."""
    x_nd = torch.randn(64, 50, generator=torch.Generator().manual_seed(3))
    x_nd[5:53:3] += 5
    honest = [row for row in range(64) if row not in range(5, 53, 3)]
    agree(aggregate.get("mda", f=16)(x_nd), as_numpy(x_nd[honest]).mean(axis=0), x_nd)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(n=st.integers(1, 12), d=st.integers(1, 4), seed=st.integers(0, 2**20), size=st.sampled_from([1, 2, 9]))
def test_geometric_median_has_the_least_sum_of_distances(n: int, d: int, seed: int, size: int) -> None:
    """With ties, on lines, and where the median is an input; there it may not be unique."""
    x_nd = torch.randint(-size, size + 1, (n, d), generator=torch.Generator().manual_seed(seed)).float()
    x = as_numpy(x_nd)
    got = as_numpy(aggregate.get("geometric_median", f=(n - 1) // 2)(x_nd))
    best = min(slow.spread_out(x, slow.equal(x), point) for point in (slow.geometric_median(x, 0), *x))
    assert slow.spread_out(x, slow.equal(x), got) <= best * (1 + 1e-4) + 1e-6


@pytest.mark.parametrize("name", WEIGHTED)
@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(data=st.data())
def test_weights(name: str, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, 2))
    n = data.draw(st.integers(needed(name, f), needed(name, f) + 6))
    x_nd = torch.randn(n, 12, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 2**20))))
    raw = data.draw(st.lists(st.integers(0, 8), min_size=n, max_size=n).filter(lambda each: sum(each[:2]) > 0))
    weights = [1.0 + each for each in raw] if name in {"faba", "ios"} else [float(each) for each in raw]
    rule = aggregate.get(name, f=f)
    assert isinstance(rule, Weighted)
    shares = np.array(weights) / sum(weights)
    got_d, expected_d = rule.weighted(x_nd, weights), SLOW[name](as_numpy(x_nd), f, weights=shares)
    if name == "geometric_median":  # it need not be unique, as between two vectors that alone count
        sums = [slow.spread_out(as_numpy(x_nd), shares, each) for each in (as_numpy(got_d), expected_d)]
        assert sums[0] <= sums[1] * (1 + 1e-5) + 1e-6
    else:
        agree(got_d, expected_d, x_nd)


@pytest.mark.parametrize("name", ["centered_clipping", "clipped_gossip"])
@pytest.mark.parametrize("tau", [1e-3, 2.0, 1e9])
def test_fixed_tau(name: str, tau: float) -> None:
    x_nd = torch.randn(8, 12, generator=torch.Generator().manual_seed(5))
    x_nd[-1] = torch.inf
    agree(aggregate.get(name, f=1, tau=tau)(x_nd), SLOW[name](as_numpy(x_nd), 1, tau=tau), x_nd)


def test_times_the_adaptive_tau() -> None:
    x_nd = torch.randn(8, 12, generator=torch.Generator().manual_seed(5))
    x_nd[-1] *= 50
    gap_j = (x_nd[1:] - x_nd[0]).double().norm(dim=1).sort().values
    tau = float((gap_j[:-2].square().sum() / 2).sqrt())  # of the five nearest, for two liars
    for times in (1.0, 1.5):
        expected_d = SLOW["clipped_gossip"](as_numpy(x_nd), 2, tau=times * tau)
        agree(aggregate.get("clipped_gossip", f=2, tau_times=times)(x_nd), expected_d, x_nd)


@pytest.mark.parametrize("stage", sorted(STAGES))
@pytest.mark.parametrize("name", [*BY_COLUMN, "krum", "geometric_median", "centered_clipping"])
@pytest.mark.parametrize("lie", [1.0, torch.nan, 50.0])
def test_stage_and_rule(stage: str, name: str, lie: float) -> None:
    composed = aggregate.get(f"{stage}+{name}", f=2)
    n = composed.minimum() + (5 if lie == 50 else 4)  # odd and even
    x_nd = torch.randn(n, 60, generator=torch.Generator().manual_seed(6))
    x_nd[-2:, :30] *= lie
    if stage == "nnm" and lie != 1:
        x_nd[-1] = 3  # else the liars' mixtures stand exactly on honest ones
    expected_d = SLOW[name](STAGES[stage](as_numpy(x_nd), 2), 2)
    agree(composed(x_nd), expected_d, x_nd[:-2])


@pytest.mark.parametrize("stage", ["arc", "clipping"])
@pytest.mark.parametrize("name", ["mean", "trimmed_mean", "geometric_median"])
@pytest.mark.parametrize("liars", [(0,), (2,), (6,), (0, 1), (0, 6), (3, 5)])
@pytest.mark.parametrize("lie", [1e3, 1e6, 1e12, 1e17])  # squares of farther ones overflow: they are lost
def test_far_rows_are_shortened_wherever_they_stand(stage: str, name: str, liars: tuple[int, ...], lie: float) -> None:
    x_nd = torch.randn(7, 200, generator=torch.Generator().manual_seed(10))
    x_nd[list(liars)] *= lie * torch.arange(1, len(liars) + 1)[:, None]
    expected_d = SLOW[name](STAGES[stage](as_numpy(x_nd), 2), 2)
    agree(aggregate.get(f"{stage}+{name}", f=2)(x_nd), expected_d, torch.ones(1, 200))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", ["trimmed_mean", "krum", "geometric_median", "nnm+median"])
@pytest.mark.parametrize("lie", [1.0, torch.inf])
def test_bucketing(size: int, name: str, lie: float) -> None:
    n = aggregate.get(f"bucketing+{name}", f=1, size=size).minimum() + 1
    x_nd = torch.randn(n, 60, generator=torch.Generator().manual_seed(7))
    x_nd[-1] *= lie
    order = torch.randperm(n, generator=torch.Generator().manual_seed(8)).tolist()
    x = slow.bucketing(as_numpy(x_nd), [order[start : start + size] for start in range(0, n, size)])
    expected_d = slow.median(slow.nnm(x, 1), 1) if "+" in name else SLOW[name](x, 1)
    generator = torch.Generator().manual_seed(8)
    agree(aggregate.get(f"bucketing+{name}", f=1, size=size, generator=generator)(x_nd), expected_d, x_nd[:-1])
    agree(aggregate.get(f"bucketing+{name}", f=1, size=size, seed=8)(x_nd), expected_d, x_nd[:-1])


def test_three_stages_act_in_order() -> None:
    x_nd = torch.randn(9, 60, generator=torch.Generator().manual_seed(9)) * torch.arange(1, 10)[:, None]
    x = slow.nnm(slow.clipping(as_numpy(x_nd), 2, tau=20.0), 2)
    agree(aggregate.get("clipping+nnm+trimmed_mean", f=2, tau=20.0)(x_nd), slow.trimmed_mean(x, 2), x_nd)
    x = slow.clipping(slow.nnm(as_numpy(x_nd), 2), 2, tau=9.0)
    agree(aggregate.get("nnm+clipping+krum", f=2, tau=9.0)(x_nd), slow.krum(x, 2), x_nd)


def test_zeno_averages_the_best() -> None:
    x_nd = torch.randn(6, 40_001, generator=torch.Generator().manual_seed(10))
    target_d = x_nd[4] + 0.1
    x_nd[5, 3] = torch.nan
    seen = []

    def score(x_d: torch.Tensor) -> float:
        seen.append(x_d.clone())
        return torch.nan if torch.equal(x_d, x_nd[0]) else float(torch.linalg.vector_norm(x_d - target_d))

    rule: Aggregator = aggregate.get("zeno", f=2, score=score)
    losses = [np.inf, *(float(torch.linalg.vector_norm(x_nd[row] - target_d)) for row in range(1, 5)), np.inf]
    best = np.argsort(losses)[:4]
    agree(rule(x_nd), as_numpy(x_nd)[best].mean(axis=0), x_nd[:5], 1e-6)
    assert torch.equal(torch.stack(seen), x_nd[:5])
