"""Epsilon by Renyi divergences: that of opacus, and what must hold of any accountant."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from p2ptrain.privacy.accounting import ORDERS, RenyiAccountant, epsilon_of, noise_for
from p2ptrain.privacy.accounting.renyi import LEAST_NOISE
from p2ptrain.privacy.base import Release

OPACUS_ORDERS = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))
GRID = [
    (noise, rate, count)
    for noise in (0.3, 0.5, 0.8, 1.0, 1.5, 4.0, 20.0)
    for rate in (1e-4, 0.01, 0.2, 1.0)
    for count in (1, 300, 20_000)
]


def release(noise: float, rate: float = 1.0, count: int = 1) -> Release:
    return Release(mechanism="example", noise=noise, rate=rate, count=count)


def opacus_epsilon(noise: float, rate: float, count: int, delta: float, orders: list[float]) -> float:
    """Epsilon by opacus' own functions."""
    rdp = pytest.importorskip("opacus.accountants.analysis.rdp", reason="opacus is not installed: the extra `privacy`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order is the first or the last
        spent = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=count, orders=orders)
        return float(rdp.get_privacy_spent(orders=orders, rdp=spent, delta=delta)[0])


@pytest.mark.parametrize(
    ("noise", "rate", "count", "delta", "theirs"),
    [
        (1.0, 0.01, 1000, 1e-5, 2.1013652716430564),
        (0.5, 0.05, 200, 1e-4, 24.48825733455885),
        (2.0, 1.0, 10, 1e-5, 8.079406222420491),
        (1.1, 256 / 60_000, 14_000, 1e-5, 2.5903769658483182),
        (0.8, 0.001, 50_000, 1e-6, 2.4074682890738974),
    ],
)
def test_epsilon_is_what_opacus_said(noise: float, rate: float, count: int, delta: float, theirs: float) -> None:
    """Figures of opacus 1.6.0, which takes seconds to import: the whole grid is below."""
    assert math.isclose(epsilon_of([release(noise, rate, count)], delta), theirs, rel_tol=0.005)


@pytest.mark.thorough
@pytest.mark.parametrize("delta", [1e-4, 1e-7])
def test_epsilon_is_that_of_opacus(delta: float) -> None:
    for noise, rate, count in GRID:
        ours = epsilon_of([release(noise, rate, count)], delta)
        theirs = opacus_epsilon(noise, rate, count, delta, list(ORDERS))
        assert math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=1e-9), (noise, rate, count)


@pytest.mark.thorough
def test_with_its_own_orders_opacus_says_half_a_percent_more_at_most_where_budgets_are_usual() -> None:
    compared = 0
    for noise, rate, count in GRID:
        ours, theirs = (
            epsilon_of([release(noise, rate, count)], 1e-5),
            opacus_epsilon(noise, rate, count, 1e-5, OPACUS_ORDERS),
        )
        assert ours <= theirs * (1 + 1e-6), "more orders can only be tighter"
        if 0.3 <= theirs <= 50:
            compared += 1
            assert ours >= 0.995 * theirs, (noise, rate, count)
    assert compared >= 10


def test_a_gaussian_sum_over_all_is_bounded_by_its_exact_curve() -> None:
    """Balle, Wang (1805.06530, theorem 8): the exact delta of a Gaussian at epsilon."""
    for noise in (0.5, 1.0, 3.0, 30.0):
        epsilon = epsilon_of([release(noise)], 1e-5)
        exact = stats.norm.cdf(0.5 / noise - epsilon * noise) - math.exp(epsilon) * stats.norm.cdf(
            -0.5 / noise - epsilon * noise
        )
        assert exact <= 1e-5, noise


def test_the_mesh_and_the_binomial_sum_are_the_same_function() -> None:
    """At whole orders, where both can be told: by the sum of 1908.10530, in full precision here."""
    for noise, rate in ((0.4, 0.3), (1.0, 0.01), (3.0, 0.5)):
        for order in (2, 5, 10):
            k = np.arange(order + 1)
            log_a = special.logsumexp(
                np.log(special.binom(order, k))
                + (order - k) * math.log1p(-rate)
                + k * math.log(rate)
                + (k * k - k) / (2 * noise**2)
            )
            spent = RenyiAccountant([release(noise, rate)])._spent_n[list(ORDERS).index(order)]
            assert math.isclose(spent, log_a / (order - 1), rel_tol=1e-10, abs_tol=1e-13)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_noise_whose_square_is_no_number_is_counted_all_the_same(rate: float) -> None:
    """A node's settings allow it: it must not end in the midst of a run."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spent = [
            epsilon_of([Release(mechanism="", noise=noise, rate=rate, count=5)], 1e-5) for noise in (1e-200, 1e200)
        ]
    assert spent[0] == math.inf
    assert spent[1] < 0.01, "what the largest order makes of delta alone"


def test_nothing_spends_nothing() -> None:
    assert epsilon_of([], 1e-5) == 0.0
    assert epsilon_of([release(1.0, 0.01, 0)], 1e-5) == 0.0


def test_tiny_noise_protects_nothing_and_huge_noise_costs_nothing() -> None:
    assert epsilon_of([release(1e-3, 0.01)], 1e-5) > 1e5
    assert epsilon_of([release(LEAST_NOISE, 0.01)], 1e-5) <= epsilon_of([release(0.999 * LEAST_NOISE, 0.01)], 1e-5)
    assert epsilon_of([release(1e6)], 1e-5) < 0.01


@given(
    st.lists(
        st.tuples(st.floats(0.3, 20), st.sampled_from([1e-3, 0.01, 0.3, 1.0]), st.integers(1, 500)),
        min_size=1,
        max_size=5,
    ),
    st.randoms(use_true_random=False),
)
def test_unlike_releases_add_up_in_any_order_and_in_any_pieces(spent, rng) -> None:
    releases = [release(*each) for each in spent]
    together = epsilon_of(releases, 1e-5)
    assert together >= max(epsilon_of([each], 1e-5) for each in releases) - 1e-12
    pieces = []
    for noise, rate, count in spent:
        first = rng.randint(0, count)
        pieces += [release(noise, rate, first), release(noise, rate, count - first)]
    rng.shuffle(pieces)
    accountant = RenyiAccountant(pieces[1:])
    assert math.isclose(accountant.epsilon(1e-5, [pieces[0]]), together, rel_tol=1e-9, abs_tol=1e-12)


@given(st.floats(0.2, 10), st.floats(1e-4, 1), st.integers(1, 1000))
def test_more_noise_fewer_steps_and_a_lower_rate_never_spend_more(noise: float, rate: float, count: int) -> None:
    spent = epsilon_of([release(noise, rate, count)], 1e-5)
    slack = 1e-9 + 1e-9 * spent
    assert epsilon_of([release(1.1 * noise, rate, count)], 1e-5) <= spent + slack
    assert epsilon_of([release(noise, 0.9 * rate, count)], 1e-5) <= spent + slack
    assert epsilon_of([release(noise, rate, count - 1)], 1e-5) <= spent + slack


@pytest.mark.parametrize(
    ("noise", "rate", "count"),
    [(0.0, 0.1, 1), (math.nan, 0.1, 1), (math.inf, 0.1, 1), (1, 0, 1), (1, 1.1, 1), (1, 1, -1)],
)
def test_what_cannot_be_is_refused(noise: float, rate: float, count: int) -> None:
    with pytest.raises(ValueError, match="not"):
        epsilon_of([release(noise, rate, count)], 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_a_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon_of([release(1.0)], delta)


def test_the_noise_for_a_budget_meets_it_and_hardly_more() -> None:
    noise = noise_for(2.0, 1e-5, rate=0.01, steps=1000)
    assert epsilon_of([release(noise, 0.01, 1000)], 1e-5) <= 2.0
    assert epsilon_of([release(noise * 0.998, 0.01, 1000)], 1e-5) > 2.0
    with pytest.raises(ValueError, match="epsilon"):
        noise_for(math.nan, 1e-5, rate=0.01, steps=1000)
