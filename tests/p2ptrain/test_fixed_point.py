"""The linear codec of secure aggregation: sums are exact to the step, nothing wraps, and what cannot fit is refused."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.sync.fixed_point import FixedPoint, check_fixed_point, width_of

D = 50


def source(seed: int) -> SecretRandom:
    return SecretRandom(random.Random(seed).randbytes)


def vectors(seed: int, members: int, scale: float, d: int = D) -> torch.Tensor:
    return scale * torch.randn(members, d, generator=torch.Generator().manual_seed(seed))


@given(
    seed=st.integers(0, 2**32 - 1),
    members=st.integers(1, 64),
    bits=st.integers(2, 26),
    clipping_range=st.floats(1e-6, 1e6),
    ratio=st.floats(1e-3, 10),
)
def test_the_mean_of_a_sum_is_the_mean_of_what_each_one_said(
    seed: int, members: int, bits: int, clipping_range: float, ratio: float
) -> None:
    codec = FixedPoint(clipping_range, bits, members)
    x_nd = vectors(seed, members, ratio * clipping_range)
    encoded = [codec.encode(x_d, source(seed + place)) for place, x_d in enumerate(x_nd)]
    assert all(int(each.words_d.max()) <= codec.levels for each in encoded), "none is beyond b bits"
    assert members * codec.levels < 1 << codec.width <= 1 << 32, "no sum wraps"
    total_d = np.sum([each.words_d for each in encoded], axis=0, dtype=np.uint64)
    masked_d = (total_d & ((1 << codec.width) - 1)).astype(np.uint32)
    np.testing.assert_array_equal(masked_d, total_d, err_msg="the sum is what it is modulo 2^width")
    mean_d = codec.mean(masked_d, members)
    decoded_d = torch.stack([codec.mean(each.words_d, 1) for each in encoded]).double().mean(0)
    torch.testing.assert_close(mean_d.double(), decoded_d, rtol=0, atol=1e-6 * clipping_range)
    clipped_nd = x_nd.double().clamp(-clipping_range, clipping_range)
    assert float((mean_d.double() - clipped_nd.mean(0)).abs().max()) < codec.step * (1 + 1e-6) + 1e-6 * clipping_range
    cut = [int((x_d.double().abs() > clipping_range).sum()) for x_d in x_nd]
    assert [each.clipped for each in encoded] == cut, "what is cut is counted"


def test_rounding_has_no_bias() -> None:
    codec = FixedPoint(1.0, 2, 4)
    x_d = torch.full((200_000,), 0.1)
    mean = float(codec.mean(codec.encode(x_d, source(1)).words_d, 1).double().mean())
    assert abs(mean - 0.1) < 5 * 0.5 * codec.step / math.sqrt(x_d.numel()), "to the nearest it would be 1/3"


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_range_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="clipping_range must be a finite number above 0, not"):
        FixedPoint(value, 16, 4)


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ValueError, match=r"30 \+ ceil\(log2 7\) = 33 bits, .* at most: set bits to 29 or less") as told:
        check_fixed_point(1.0, 30, 7)
    assert "\n" not in str(told.value)
    check_fixed_point(1.0, 29, 7)
    with pytest.raises(ValueError, match="bits must be 2 or more, not 1"):
        check_fixed_point(1.0, 1, 4)
    with pytest.raises(ValueError, match="a sum has 1 member or more, not 0"):
        FixedPoint(1.0, 16, 0)


@given(st.integers(1, 64), st.integers(2, 26))
def test_the_width_is_the_least_that_holds_a_sum(members: int, bits: int) -> None:
    assert width_of(bits, members) == bits + math.ceil(math.log2(members))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_encoded(value: float) -> None:
    with pytest.raises(ValueError, match="the training diverged"):
        FixedPoint(1.0, 16, 4).encode(torch.tensor([0.0, value]), source(1))


@given(seed=st.integers(0, 2**32 - 1), members=st.integers(2, 64), bits=st.integers(8, 26), size=st.floats(1e-3, 1e9))
def test_anchors_that_are_alike_add_nothing_and_others_their_mean(
    seed: int, members: int, bits: int, size: float
) -> None:
    codec = FixedPoint(0.1, bits, members)
    anchor_d = vectors(seed, 1, size)[0]
    own_d = codec.wrap(anchor_d)
    modulus = 1 << codec.width

    def summed(words: list[np.ndarray]) -> np.ndarray:
        return (np.sum(words, axis=0, dtype=np.uint64) % modulus).astype(np.uint32)

    assert not codec.shift(summed([own_d] * members), own_d, members).any(), "the same bits: exactly nothing"
    other_d = anchor_d.double() + vectors(seed + 1, 1, 0.02)[0].double()
    apart_d = codec.shift(summed([own_d] * (members - 1) + [codec.wrap(other_d)]), own_d, members)
    true_d = (other_d - anchor_d.double()) / members
    assert float((apart_d.double() - true_d).abs().max()) <= codec.step + 1e-6


def test_large_vectors_are_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x_d = vectors(3, 1, 0.1)[0]
    whole = FixedPoint(0.1, 12, 4).encode(x_d, source(1))
    monkeypatch.setattr("p2ptrain.sync.fixed_point.AT_ONCE", 7)
    cut = FixedPoint(0.1, 12, 4).encode(x_d, source(1))
    np.testing.assert_array_equal(whole.words_d, cut.words_d)
    assert whole.clipped == cut.clipped > 0


@given(
    seed=st.integers(0, 2**32 - 1), members=st.integers(4, 64), bits=st.integers(2, 26), added=st.integers(0, 2**32 - 1)
)
def test_whatever_a_liar_adds_the_mean_stays_within_the_range(seed: int, members: int, bits: int, added: int) -> None:
    """Masked values have room for a whole sum: one member's may be any of that."""
    codec = FixedPoint(0.5, bits, members)
    honest = [codec.encode(x_d, source(seed)).words_d for x_d in vectors(seed, members - 1, 0.3)]
    total_d = np.sum(honest, axis=0, dtype=np.uint64) + np.uint64(added % (1 << codec.width))
    mean_d = codec.mean((total_d % (1 << codec.width)).astype(np.uint32), members)
    assert float(mean_d.abs().max()) <= 0.5 * (1 + 1e-6)
