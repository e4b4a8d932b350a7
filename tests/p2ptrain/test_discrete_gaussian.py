"""Discrete Gaussian noise: its probabilities, against the formula and against an exact sampler, and its sums."""

import math
import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.accounting.discrete_sums import counted_noise, tau
from p2ptrain.privacy.base import Release
from p2ptrain.privacy.discrete_gaussian import MOST_DEVIATION, DiscreteGaussian, _table
from p2ptrain.privacy.noise_shares import accounted_noise
from tests.seeded_bytes import seeded_bytes


def probabilities(deviation: float, most: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of -most .. most, by the formula."""
    weight_k = np.exp(-(np.arange(-most, most + 1) ** 2) / (2 * deviation**2))
    return weight_k / weight_k.sum()


@pytest.mark.parametrize("deviation", [0.5, 1.3, 4.0, 25.0])
def test_each_number_comes_as_often_as_the_formula_says(deviation: float) -> None:
    """A chi-square test over all numbers that come 20 times or more in 200,000 draws; what is beyond is one class."""
    count, most = 200_000, math.ceil(9 * deviation)
    drawn_n = DiscreteGaussian(deviation).draw(count, seeded_bytes(7))
    assert abs(drawn_n).max() <= most
    expected_k = count * probabilities(deviation, most)
    found_k = np.bincount(drawn_n + most, minlength=2 * most + 1)
    often = expected_k >= 20
    classes = [*zip(found_k[often], expected_k[often], strict=True), (found_k[~often].sum(), expected_k[~often].sum())]
    found, expected = map(np.array, zip(*[each for each in classes if each[1] > 0], strict=True))
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-3


@pytest.mark.parametrize("deviation", [2.0, 300.0, 4096.0])
def test_the_moments_are_a_gaussian_s(deviation: float) -> None:
    count = 300_000
    drawn_n = DiscreteGaussian(deviation).draw(count, seeded_bytes(3)) / deviation
    assert abs(drawn_n.mean()) < 4 / math.sqrt(count)
    assert abs(drawn_n.var() - 1) < 4 * math.sqrt(2 / count)
    assert abs(stats.skew(drawn_n)) < 4 * math.sqrt(6 / count)
    assert abs(stats.kurtosis(drawn_n)) < 4 * math.sqrt(24 / count)
    assert abs(np.corrcoef(drawn_n[:-1], drawn_n[1:])[0, 1]) < 4 / math.sqrt(count)


def test_the_table_has_the_probabilities_in_more_bits_than_a_double() -> None:
    whole, first = _table(3.0)
    assert all(earlier <= later for earlier, later in pairwise(whole))
    assert whole[-1] == 1 << 191
    weights = [Fraction(math.exp(-(k**2) / 18)) for k in range(60)]
    total = 2 * sum(weights) - weights[0]
    at_most = Fraction(0)
    for k, weight in enumerate(weights[:20]):
        at_most += weight if k == 0 else 2 * weight
        assert abs(Fraction(whole[k], 1 << 191) - at_most / total) < Fraction(1, 10**14)
        assert int(first[k]) == whole[k] >> 128


class Bits:
    """First words that equal an entry's own, and then the bits that decide."""

    def __init__(self, first: int, more: int) -> None:
        self._answers = [(first << 1).to_bytes(8, "little"), more.to_bytes(16, "little")]

    def __call__(self, count: int) -> bytes:
        answer = self._answers.pop(0)
        assert len(answer) == count
        return answer


@pytest.mark.parametrize("k", [0, 2, 5])
def test_where_63_bits_do_not_tell_128_more_do(k: int) -> None:
    whole, first = _table(3.0)
    border = whole[k] & ((1 << 128) - 1)
    for more, drawn in ((border - 1, k), (border, k + 1), (border + 1, k + 1)):
        assert DiscreteGaussian(3.0).draw(1, Bits(int(first[k]), more)).tolist() == [drawn]


def exact_draw(variance: Fraction, rng: random.Random) -> int:
    """Algorithm 3 of 2004.00010, in fractions."""

    def bernoulli(p: Fraction) -> bool:
        return rng.randrange(p.denominator) < p.numerator

    def bernoulli_exp(gamma: Fraction) -> bool:
        while gamma > 1:
            if not bernoulli_exp(Fraction(1)):
                return False
            gamma -= 1
        k = 1
        while bernoulli(gamma / k):
            k += 1
        return k % 2 == 1

    scale = math.isqrt(variance.numerator // variance.denominator) + 1
    while True:
        low = rng.randrange(scale)
        if not bernoulli_exp(Fraction(low, scale)):
            continue
        high = 0
        while bernoulli_exp(Fraction(1)):
            high += 1
        size, negative = low + scale * high, rng.randrange(2) == 1
        if negative and size == 0:
            continue
        if bernoulli_exp((size - variance / scale) ** 2 / (2 * variance)):
            return -size if negative else size


def test_it_draws_as_the_exact_sampler_does() -> None:
    rng, count = random.Random(5), 2500
    exact = np.array([exact_draw(Fraction(9, 4), rng) for _ in range(count)])
    ours = DiscreteGaussian(1.5).draw(count, seeded_bytes(5))
    classes = np.clip(np.stack([exact, ours]), -5, 5) + 5
    table = np.array([np.bincount(each, minlength=11) for each in classes])
    assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.nan, math.inf, 2 * MOST_DEVIATION])
def test_a_deviation_without_a_table_is_refused(deviation: float) -> None:
    with pytest.raises(ValueError, match="a deviation is"):
        DiscreteGaussian(deviation)


def test_the_operating_system_s_bytes_are_others_each_time() -> None:
    noise = DiscreteGaussian(100.0)
    assert not np.array_equal(noise.draw(50), noise.draw(50))


@pytest.mark.parametrize(("deviation", "members"), [(0.5, 2), (0.7, 3), (1.0, 5)])
def test_a_sum_hides_what_its_bound_says(deviation: float, members: int) -> None:
    """The Renyi divergence of the sum from itself moved by one, by its true probabilities, at some orders."""
    most = 60
    one_k = probabilities(deviation, most)
    sum_k = one_k
    for _ in range(members - 1):
        sum_k = np.convolve(sum_k, one_k)
    noise = counted_noise(math.sqrt(members) * deviation, deviation=deviation, members=members, values=1)
    reach = math.floor(20 * math.sqrt(members) * deviation)  # what is beyond is below 1e-80
    log_k = np.log(sum_k[sum_k.size // 2 - reach : sum_k.size // 2 + reach + 1])
    for order in (1.5, 2.0, 4.0, 8.0):
        divergence = float(np.logaddexp.reduce(order * log_k[1:] + (1 - order) * log_k[:-1])) / (order - 1)
        assert divergence <= order / (2 * noise**2)
        assert divergence >= 0.9 * order / (2 * members * deviation**2), "the bound is no looser than it has to be"


def test_tau_is_the_paper_s() -> None:
    by_hand = 10 * (math.exp(-2 * math.pi**2 * 0.25 / 2) + math.exp(-2 * math.pi**2 * 0.25 * 2 / 3))
    assert tau(0.5, 3) == pytest.approx(by_hand)
    assert tau(1.0, 1) == 0
    assert counted_noise(2.0, deviation=0.5, members=3, values=100) == pytest.approx(1 / (0.5 + 10 * by_hand))


@pytest.mark.parametrize("noise", [0.3, 1.0, 7.0])
def test_from_a_share_of_four_steps_on_a_sum_counts_as_one_gaussian(noise: float) -> None:
    """Zero-concentrated differential privacy 1 / (2 z^2) a round: epsilon by 2004.00010 is below the textbook's
    rho + 2 sqrt(rho log(1 / delta)), and above rho."""
    assert accounted_noise(noise) == pytest.approx(noise, rel=1e-12)
    rounds, delta = 20, 1e-5
    rho = rounds / (2 * noise**2)
    release = Release(mechanism="secure_update", noise=accounted_noise(noise), rate=1.0, count=rounds)
    epsilon = epsilon_of([release], delta)
    assert rho < epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))
