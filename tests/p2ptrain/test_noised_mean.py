"""The noised mean of visitors' differences, against plain arithmetic in fp64: clipping, weights, noise, divisor."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as fewer
from hypothesis import strategies as st
from seeded_bytes import seeded_bytes
from sizes import examples

from p2ptrain import privacy
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.visits.noised_mean import noised_mean
from p2ptrain.visits.visitor_mean import DIFFERENCES, VisitorDifference, checked_difference, nothing_left

NUMEL, CLIP, NOISE = 2500, 0.5, 1.15


def left(seed: int, scale: float = 1.0) -> VisitorDifference:
    x_d = scale * torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))
    return checked_difference(DIFFERENCES.encode(x_d), NUMEL)


def mean_of(*differences: VisitorDifference, weights: list[float] | None = None, seed: int = 7) -> torch.Tensor:
    return noised_mean(
        differences,
        weights or [1.0] * len(differences),
        numel=NUMEL,
        privatizer=privacy.get("update", noise=NOISE, clip=CLIP),
        source=SecretRandom(seeded_bytes(seed)),
    )


def test_it_is_the_clipped_and_weighted_sum_with_its_noise_over_their_number() -> None:
    differences, weights = [left(1, 1e-3), left(2), left(3, 100.0)], [1.0, 0.5, 0.25]
    expected = SecretRandom(seeded_bytes(7)).normals(NUMEL).numpy() * NOISE * CLIP
    for each, weight in zip(differences, weights, strict=True):
        x = DIFFERENCES.decode(each.payload, NUMEL).numpy().astype(np.float64)
        expected += weight * min(1.0, CLIP / np.linalg.norm(x)) * x
    assert np.allclose(mean_of(*differences, weights=weights).numpy(), expected / 3, rtol=1e-5, atol=1e-7)


@given(scale=st.floats(1e-30, 1e30), weight=st.floats(0.0, 1.0), others=st.integers(1, 5))
@fewer(max_examples=examples(30))
def test_one_visitor_changes_the_sum_by_the_clipping_norm_at_most(scale: float, weight: float, others: int) -> None:
    rest = [left(seed) for seed in range(others)]
    weights = [1.0] * others + [weight]
    with_it = mean_of(*rest, left(99, scale), weights=weights)
    without = mean_of(*rest, nothing_left(NUMEL), weights=weights)
    moved = float((with_it - without).double().norm()) * (others + 1)
    assert moved <= CLIP * (1 + 1e-4), "the same noise is in both"


def test_zeros_are_in_the_sum_and_change_its_divisor_alone() -> None:
    alone, beside = mean_of(left(1)), mean_of(left(1), nothing_left(NUMEL))
    assert torch.allclose(alone, 2 * beside)


def test_noise_has_the_deviation_that_is_accounted_for() -> None:
    noise = torch.cat([mean_of(nothing_left(NUMEL), nothing_left(NUMEL), seed=seed) for seed in range(20)])
    assert float(noise.std()) == pytest.approx(NOISE * CLIP / 2, rel=0.02)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_that_would_lengthen_a_difference_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        mean_of(left(1), weights=[weight])
