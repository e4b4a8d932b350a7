"""Secret randomness: its distributions, over a seeded source; and that by default nobody can draw it again."""

import numpy as np
import pytest
import torch

from p2ptrain.privacy.secret_random import AT_ONCE, SecretRandom
from tests.seeded_bytes import seeded_bytes

COUNT = 200_000


def test_normals_are_normal() -> None:
    """Moments, tails and the empirical distribution; the limits are four standard errors."""
    normal_n = SecretRandom(seeded_bytes(3)).normals(COUNT)
    assert normal_n.dtype == torch.float64
    error = 4 / COUNT**0.5
    assert abs(float(normal_n.mean())) < error
    assert abs(float(normal_n.square().mean()) - 1) < error * 2**0.5
    assert abs(float((normal_n**4).mean()) - 3) < error * 96**0.5
    for edge in (-2.0, -1.0, 0.0, 1.0, 2.0):
        expected = float(torch.special.ndtr(torch.tensor(edge, dtype=torch.float64)))
        assert abs(float((normal_n < edge).double().mean()) - expected) < error


def test_normals_are_independent() -> None:
    """Neighbours, and the two of a pair (half the count apart), in value and in size: Box and Muller makes both of one
    radius."""
    normal_n = SecretRandom(seeded_bytes(4)).normals(COUNT).numpy()
    for lag in (1, 2, COUNT // 2):
        ahead, behind = normal_n[lag:], normal_n[:-lag]
        error = 4 / len(ahead) ** 0.5
        assert abs(np.corrcoef(ahead, behind)[0, 1]) < error
        assert abs(np.corrcoef(ahead**2, behind**2)[0, 1]) < error


def test_no_number_comes_twice_where_they_are_drawn_in_several_parts() -> None:
    normal_n = SecretRandom(seeded_bytes(5)).normals(AT_ONCE + 7)
    assert len(normal_n) == AT_ONCE + 7
    assert not np.isin(normal_n[AT_ONCE:].numpy(), normal_n[:AT_ONCE].numpy()).any()


def test_a_uniform_of_zero_and_of_nearly_one_give_finite_normals() -> None:
    for byte in (b"\x00", b"\xff"):
        assert torch.isfinite(SecretRandom(lambda size, byte=byte: byte * size).normals(4)).all()


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5])
def test_poisson_sampling_draws_each_apart(rate: float) -> None:
    """The size is binomial: mean q N, variance q (1 - q) N. Each is in a share q of the draws, and pairs in q^2."""
    source, count, draws = SecretRandom(seeded_bytes(6)), 400, 3000
    drawn = np.zeros((draws, count))
    for at in range(draws):
        chosen = source.drawn(count, rate)
        assert (np.diff(chosen) > 0).all()
        drawn[at, chosen] = 1
    sizes = drawn.sum(1)
    spread = (rate * (1 - rate) * count) ** 0.5
    assert abs(sizes.mean() - rate * count) < 4 * spread / draws**0.5
    assert sizes.var() == pytest.approx(spread**2, rel=0.15)
    assert drawn.mean(0).max() - rate < 5 * (rate / draws) ** 0.5
    assert abs((drawn[:, 0] * drawn[:, 1]).mean() - rate**2) < 5 * rate / draws**0.5


def test_a_rate_of_one_draws_all_and_nothing_is_drawn_of_nothing() -> None:
    assert SecretRandom().drawn(5, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert SecretRandom().drawn(0, 0.5).tolist() == []


def test_no_seed_brings_it_back() -> None:
    def draw() -> torch.Tensor:
        torch.manual_seed(0)
        np.random.seed(0)
        return SecretRandom().normals(8)

    assert not torch.equal(draw(), draw())
