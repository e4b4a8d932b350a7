"""What liars can and cannot do to the aggregators, beyond the contract: digits, infinities, centres, too many."""

from collections import Counter

import pytest
import torch
from sizes import thorough_but

from p2ptrain import aggregate
from p2ptrain.aggregate import Rows, Weighted, geometry, mda
from p2ptrain.aggregate.geometry import measure, weighted_sum

GEOMETRIC = ["krum", "multi_krum", "geometric_median", "centered_clipping", "mda", "faba", "caf", "nnm+median"]


def gaussian(n: int, d: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["trimmed_mean", "median", "meamed"])
@pytest.mark.parametrize("lie", [1e30, -1e30, 3.4e38, torch.inf, -torch.inf, torch.nan])
def test_no_digit_is_lost_beside_a_liar(name: str, lie: float) -> None:
    x_nd = gaussian(6, 500)
    x_nd[2] = lie
    honest_nd = torch.cat([x_nd[:2], x_nd[3:]])
    result_d = aggregate.get(name, f=1)(x_nd)
    assert (result_d >= honest_nd.amin(0)).all()
    assert (result_d <= honest_nd.amax(0)).all()
    x_nd[2] = -1e5 if lie < 0 else 1e5
    torch.testing.assert_close(result_d, aggregate.get(name, f=1)(x_nd), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("n", [3, 5, 7, 8])
def test_trimming_all_it_can_is_the_median(n: int) -> None:
    x_nd = gaussian(n, 1000)
    f = (n - 1) // 2
    assert torch.equal(aggregate.get("trimmed_mean", f=f)(x_nd), aggregate.get("median", f=f)(x_nd))
    if n % 2:
        assert torch.equal(aggregate.get("median", f=f)(x_nd), x_nd.median(dim=0).values)


@pytest.mark.parametrize("name", ["trimmed_mean", "median", "meamed"])
def test_opposite_infinities_are_left_out_together(name: str) -> None:
    x_nd = torch.ones(5, 4)
    x_nd[0], x_nd[4] = torch.inf, -torch.inf
    assert torch.equal(aggregate.get(name, f=2)(x_nd), torch.ones(4))


@pytest.mark.parametrize("name", ["trimmed_mean", "median", "meamed", "mean"])
@pytest.mark.parametrize("lie", [torch.inf, -torch.inf, torch.nan])
def test_more_liars_than_promised_show_where_they_lie(name: str, lie: float) -> None:
    x_nd = torch.ones(5, 40_000)
    x_nd[:3, 35_000] = lie
    finite_d = aggregate.get(name, f=1)(x_nd).isfinite()
    assert not finite_d[35_000]
    assert int(finite_d.sum()) == 39_999


def test_mean_is_anyones_to_move_and_promises_nothing() -> None:
    x_nd = gaussian(5, 300)
    x_nd[0] = 1e6
    assert (aggregate.get("mean", f=1)(x_nd) > 1e5).all()
    assert aggregate.get("mean", f=3).f == 0


def test_means_of_huge_numbers_do_not_overflow() -> None:
    for name in ("mean", "trimmed_mean", "median", "meamed", "geometric_median", "multi_krum"):
        assert torch.equal(aggregate.get(name, f=1)(torch.full((7, 10), 3e38)), torch.full((10,), 3e38))


@pytest.mark.parametrize("name", GEOMETRIC)
@pytest.mark.parametrize("lie", [1e8, 1e30, torch.nan])
@pytest.mark.parametrize("liars", [(0,), (0, 1), (3, 5)])
def test_a_lying_first_row_costs_no_digits(name: str, lie: float, liars: tuple[int, ...]) -> None:
    """Distances of a thousandth among numbers of a thousand, beside rows 1e8 off: as if these stood elsewhere."""
    honest_nd = 1000 + gaussian(9, 2000) / 1000
    rule = aggregate.get(name, f=2)
    results = []
    for places in (liars, tuple(range(9 - len(liars), 9))):
        x_nd = torch.empty(9, 2000)
        x_nd[[row for row in range(9) if row not in places]] = honest_nd[len(liars) :]
        x_nd[list(places)] = lie * torch.arange(1, len(liars) + 1)[:, None]
        results.append(rule(x_nd))
    assert (results[0] - honest_nd[len(liars) :].mean(0)).abs().max() < 0.01
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=2e-4)


def test_distances_of_close_rows_far_from_zero() -> None:
    x_nd = 1000 + gaussian(6, 5000) / 1000
    x_nd[0] = 1e9
    squares_nn = measure(Rows.of(x_nd), 1).squares()
    exact_nn = torch.cdist(x_nd.double(), x_nd.double()) ** 2
    torch.testing.assert_close(squares_nn, exact_nn, rtol=1e-4, atol=0)


def passes(x_nd: torch.Tensor, f: int) -> Counter[int]:
    """How often `measure` reads each chunk, by where it begins."""
    seen: Counter[int] = Counter()

    def read(part: slice) -> torch.Tensor:
        if part.stop > part.start + 1:
            seen[part.start] += 1
        return x_nd[:, part]

    measure(Rows(*x_nd.shape, read), f)
    return seen


def test_a_pass_is_made_again_only_around_a_better_centre() -> None:
    d = 200_000
    last = max(passes(gaussian(7, d), 2))
    assert passes(gaussian(7, d), 2)[last] == 1
    x_nd = gaussian(7, d)
    x_nd[:2] = 1e12
    assert passes(x_nd, 2)[last] == 1  # seen in the first columns
    x_nd = gaussian(7, d)
    x_nd[0, last:] = 1e12
    assert passes(x_nd, 2)[last] == 2  # hidden in the last ones
    x_nd[0, last:] = torch.nan
    assert passes(x_nd, 2)[last] == 2


@pytest.mark.parametrize("name", GEOMETRIC)
@pytest.mark.parametrize("liars", [3, 5, 9])
def test_with_more_lost_rows_than_promised_nothing_hangs(name: str, liars: int) -> None:
    x_nd = gaussian(9, 100)
    x_nd[:liars] = torch.nan
    assert aggregate.get(name, f=2)(x_nd).shape == (100,)


@pytest.mark.parametrize("origin", [False, True])
@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1.0, 1e30])
def test_geometry_of_mixtures(origin: bool, scale: float) -> None:
    x_nd = gaussian(6, 300) * scale
    points_pd = torch.cat([x_nd, torch.zeros(int(origin), 300)]).double()
    weight_mp = torch.rand(4, len(points_pd), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight_mp /= weight_mp.sum(dim=1, keepdim=True)
    geometry = measure(Rows.of(x_nd), 1, origin=origin)
    mixed_md = weight_mp @ points_pd
    tight = {"rtol": 1e-5, "atol": 1e-6 * scale**2}
    torch.testing.assert_close(geometry.mix(weight_mp).squares(), torch.cdist(mixed_md, mixed_md) ** 2, **tight)
    to_first_p = (points_pd - mixed_md[0]).square().sum(dim=1)
    torch.testing.assert_close(geometry.squares_to(weight_mp[0]), to_first_p, **tight)
    assert torch.equal(geometry.first(3).squares(), geometry.squares()[:3, :3])


def test_a_lost_row_is_lost_in_what_it_is_mixed_into() -> None:
    x_nd = gaussian(5, 20)
    x_nd[1, 4] = torch.inf
    geometry = measure(Rows.of(x_nd), 1)
    weight_mn = torch.eye(5, dtype=torch.float64)
    weight_mn[3, :2] = 0.5
    mixed = geometry.mix(weight_mn)
    assert mixed.lost_n.tolist() == [False, True, False, True, False]
    assert mixed.squares()[0, 2] == geometry.squares()[0, 2]
    assert mixed.squares()[3, 0] == torch.inf


def test_rows_of_weight_0_are_not_looked_at() -> None:
    x_nd = gaussian(3, 40_000)
    x_nd[1] = torch.nan
    weight_n = torch.tensor([0.25, 0, 0.75], dtype=torch.float64)
    torch.testing.assert_close(weighted_sum(Rows.of(x_nd), weight_n), x_nd[0] / 4 + 3 * x_nd[2] / 4)
    assert torch.equal(weighted_sum(Rows.of(x_nd), torch.zeros(3, dtype=torch.float64)), torch.zeros(40_000))


def colluders_short_of_overflow(*, factor: float = 1 - 1e-7) -> tuple[torch.Tensor, torch.Tensor]:
    """Nine rows, the last two alike, whose squares sum to nearly the largest fp32; and the honest ones."""
    x_nd = gaussian(9, 1000) / 100
    direction_d = 0.5 + torch.rand(1000, generator=torch.Generator().manual_seed(5))
    length = torch.finfo(torch.float32).max ** 0.5
    x_nd[7:] = direction_d * (length / float(torch.linalg.vector_norm(direction_d, dtype=torch.float64)) * factor)
    return x_nd, x_nd[:7].clone()


@pytest.mark.parametrize("name", [*GEOMETRIC, "clipped_gossip", "cs_plus", "gts", "ios"])
def test_a_product_of_two_liars_that_alone_overflows_spoils_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own squares are finite. In which order a library adds up decides whether their product is, and for some
    lengths it is not: here it is made a little larger than any order makes it."""
    exact = geometry._products

    def products(x_pc: torch.Tensor, out_pp: torch.Tensor) -> None:
        exact(x_pc, out_pp)
        out_pp += out_pp.triu(1) * 1e-5

    monkeypatch.setattr(geometry, "_products", products)
    x_nd, honest_nd = colluders_short_of_overflow()
    products_nn = torch.zeros(9, 9)
    products(x_nd - x_nd[0], products_nn)
    assert products_nn.diagonal().isfinite().all()
    assert not products_nn.isfinite().all()
    rule = aggregate.get(name, f=2)
    spread = float(torch.linalg.vector_norm(honest_nd - honest_nd.mean(0), dim=1).max())
    assert float(torch.linalg.vector_norm(rule(x_nd) - honest_nd.mean(0))) < 2 * spread


def test_whatever_length_colluders_choose_products_are_finite() -> None:
    for step in range(-20, 20):
        x_nd, _ = colluders_short_of_overflow(factor=1 + step * 4e-8)
        assert measure(Rows.of(x_nd), 2).gram_nn.isfinite().all()


@pytest.mark.parametrize("lie", thorough_but({1e12}, [1e6, 1e12, 1e18]))
@pytest.mark.parametrize("rule", ["krum", "multi_krum", "geometric_median", "centered_clipping", "mda", "caf"])
@pytest.mark.parametrize("size", thorough_but({2}, [2, 3]))
def test_liars_that_cancel_out_in_one_bucket_leave_nothing_of_themselves(rule: str, lie: float, size: int) -> None:
    """Their mean is nearly zero, as the honest ones', and what fp32's rounding leaves of it is not."""
    x_nd = gaussian(20, 200) / 100
    x_nd[11], x_nd[15] = lie * gaussian(1, 200, seed=4)[0], -lie * gaussian(1, 200, seed=4)[0]
    honest_nd = torch.cat([x_nd[:11], x_nd[12:15], x_nd[16:]])
    spread = float(torch.linalg.vector_norm(honest_nd - honest_nd.mean(0), dim=1).max())
    for seed in range(60):
        y_d = aggregate.get(f"bucketing+{rule}", f=2, size=size, seed=seed)(x_nd)
        assert float(torch.linalg.vector_norm(y_d - honest_nd.mean(0))) < 2 * spread


def test_honest_rows_that_cancel_out_are_no_liars() -> None:
    x_nd = torch.tensor([[0.0], [1.0], [-1.0], [1.0], [-1.0], [0.0], [0.0]])
    mixed = measure(Rows.of(x_nd), 0).mix(torch.tensor([[0.0, 0.5, 0.5, 0, 0, 0, 0], [1.0, 0, 0, 0, 0, 0, 0]]).double())
    assert float(mixed.squares()[0, 1]) < 1e-10
    assert not mixed.lost_n.any()


@pytest.mark.parametrize("pairs", [16, 17])
def test_liars_cannot_make_mda_search_for_long(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each far from one honest row alone: of no pair is it clear who has to go."""
    search, calls = mda._uncovered, 0

    def counted(far: list[int], alive: int, budget: int) -> int | None:
        nonlocal calls
        calls += 1
        return search(far, alive, budget)

    monkeypatch.setattr(mda, "_uncovered", counted)
    far = [1 << (index ^ 1) for index in range(2 * pairs)] + [0] * 3
    left = counted(far, (1 << len(far)) - 1, 16)
    assert left == (sum(1 << index for index in [*range(1, 32, 2), 32, 33, 34]) if pairs == 16 else None)
    assert calls < 2000


@pytest.mark.parametrize("name", ["faba", "ios"])
def test_one_row_with_all_the_weight_may_be_left_out(name: str) -> None:
    x_nd = torch.full((5, 3), 1.5)
    rule = aggregate.get(name, f=1)
    assert isinstance(rule, Weighted)
    for row in range(5):
        assert torch.equal(rule.weighted(x_nd, [float(each == row) for each in range(5)]), x_nd[0])


@pytest.mark.parametrize("lie", [torch.inf, torch.nan])
def test_a_limit_that_is_infinite_makes_zeros_of_lost_rows(lie: float) -> None:
    """With f = 0 arc's limit is the longest row's length, which is infinite here."""
    x_nd = gaussian(3, 50)
    x_nd[2] = lie
    torch.testing.assert_close(aggregate.get("arc+mean", f=0)(x_nd), (x_nd[0] + x_nd[1]) / 3)


@pytest.mark.parametrize("name", [*GEOMETRIC, "clipped_gossip", "cs_plus", "gts", "ios"])
def test_a_liar_among_differences_whose_squares_underflow(name: str) -> None:
    x_nd = gaussian(7, 50)
    x_nd[6] = 50
    rule = aggregate.get(name, f=1)
    torch.testing.assert_close(rule(x_nd * 1e-25) * 1e25, rule(x_nd), rtol=1e-4, atol=1e-5)
