"""PowerSGD: the product's reader, what a warm start is good for, and what a payload may not ask for."""

import struct

import numpy as np
import pytest
import torch
from codec_inputs import lost
from compress_readers import read_powersgd
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples
from vectors import vector

from p2ptrain import compress
from p2ptrain.compress import PayloadError, Stateful
from p2ptrain.compress.powersgd import PowerSGD, _orthonormal

ONE = struct.pack("<e", 1.0)


def low_rank(rows: int, columns: int, rank: int) -> torch.Tensor:
    return (vector(rows * rank).view(rows, rank) @ vector(rank * columns, seed=1).view(rank, columns)).reshape(-1)


@settings(max_examples=examples(60), deadline=None)
@given(
    numel=st.integers(1, 900),
    rank=st.integers(1, 8),
    columns=st.sampled_from([0, 1, 7, 30, 10_000]),
    magnitude=st.sampled_from([1e-36, 1e-3, 1.0, 1e30, 3e38]),
)
def test_decoding_agrees_with_the_slow_reader(numel: int, rank: int, columns: int, magnitude: float) -> None:
    x_d = vector(numel).clamp(-1, 1) * magnitude
    payload = PowerSGD(rank=rank, columns=columns).encode(x_d)
    slow_d = torch.tensor(read_powersgd(payload, numel), dtype=torch.float64)
    decoded_d = compress.get("powersgd").decode(payload, numel)
    # fp32 sums of up to eight products: what they lose is relative to the largest, not to the sum.
    torch.testing.assert_close(decoded_d.double(), slow_d, atol=3e-6 * magnitude, rtol=1e-6)


@settings(max_examples=examples(80), deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
    rank=st.sampled_from([1, 2, 4, 32]),
    columns=st.sampled_from([0, 1, 5]),
)
def test_any_finite_vector_is_contracted_twice_over(values: list[float], rank: int, columns: int) -> None:
    x_d, codec = torch.tensor(values), PowerSGD(rank=rank, columns=columns)
    allowed = float(x_d.double().square().sum()) * (1 + 1e-5) + len(values) * 1.2e-38**2
    for _ in range(3):  # with the memory of the first, too
        error_d = codec.decode(codec.encode(x_d), len(values)).double() - x_d.double()
        assert float(error_d.square().sum()) <= allowed


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_a_matrix_of_low_rank_comes_out_whole(rank: int) -> None:
    assert lost(PowerSGD(rank=4, columns=50), low_rank(80, 50, rank)) < 1e-6


def test_encoding_the_same_matrix_again_is_power_iteration() -> None:
    x_d = low_rank(64, 64, 2) + vector(4096, seed=5)
    codec, best = PowerSGD(rank=2), torch.linalg.svdvals(x_d.view(64, 64)).square()
    losses = [lost(codec, x_d) for _ in range(8)]
    optimum = float(best[2:].sum() / best.sum())
    assert losses[0] > losses[1] > losses[7]
    assert losses[7] == pytest.approx(optimum, rel=0.01)


def test_columns_that_others_span_become_zero() -> None:
    """Their direction is rounding noise, of which nothing says that it is orthogonal to the others."""
    column_m = vector(50).double().numpy()
    left_mr = _orthonormal(np.stack([column_m, 3 * column_m + 1e-9, vector(50, seed=1).double().numpy()], axis=1))
    assert not left_mr[:, 1].any()
    np.testing.assert_allclose(left_mr.T @ left_mr, np.diag([1.0, 0.0, 1.0]), atol=1e-12)


def test_a_memory_that_sees_nothing_of_the_rest_is_drawn_anew() -> None:
    """Of a matrix with singular values 8, 4 and 2, two come to be known exactly; the rest lies across both."""
    basis_mm = torch.linalg.qr(vector(1024).view(32, 32)).Q
    x_d = (8 * basis_mm[:, :1] * basis_mm[:1] + 4 * basis_mm[:, 1:2] * basis_mm[1:2]).reshape(-1)
    rest_d = (2 * basis_mm[:, 2:3] * basis_mm[2:3]).reshape(-1)
    codec = PowerSGD(rank=2)
    for _ in range(6):
        codec.encode(x_d)
    assert lost(codec, rest_d) < 1e-5


def test_the_rest_of_a_resting_vector_is_found() -> None:
    """Under a tracked estimate: each payload takes `rank` dimensions, until none is left."""
    x_d, codec = low_rank(60, 60, 12), PowerSGD(rank=4, columns=60)
    rest_d = x_d.clone()
    for _ in range(5):
        rest_d = rest_d - codec.decode(codec.encode(rest_d), x_d.numel())
    assert float(rest_d.square().sum() / x_d.square().sum()) < 1e-5


def test_the_contraction_is_what_payloads_keep() -> None:
    codec, x_d = PowerSGD(rank=2), low_rank(64, 64, 2) + vector(4096, seed=5)
    fresh = codec.contraction
    for _ in range(4):
        assert lost(codec, x_d) <= 1 - codec.contraction
    assert fresh < 0.01 < 0.4 < codec.contraction < 1
    codec.encode(torch.zeros(4096))
    assert 0 < codec.contraction <= 1
    codec.reset()
    assert codec.contraction == fresh


def test_memory_is_the_right_factor() -> None:
    x_d = vector(4000)
    codec = compress.get("powersgd")
    assert isinstance(codec, Stateful)
    first = codec.encode(x_d)
    state = codec.state_dict()
    second = codec.encode(x_d)
    assert first != second
    restarted = compress.get("powersgd")
    assert isinstance(restarted, Stateful)
    restarted.load_state_dict(state)
    assert restarted.encode(x_d) == second
    restarted.reset()
    assert restarted.encode(x_d) == first


def test_a_vector_of_another_size_begins_anew() -> None:
    codec = PowerSGD()
    codec.encode(vector(4000))
    assert lost(codec, low_rank(30, 30, 2)) < 1e-6


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"right": torch.zeros(3, 2)},
        {"right": torch.zeros(3), "drawn": torch.tensor(0)},
        {"right": torch.full((3, 2), torch.nan), "drawn": torch.tensor(0)},
        {"right": torch.zeros(3, 2), "drawn": torch.tensor(-1)},
    ],
)
def test_a_state_of_something_else_is_refused(state: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match=r"state|count"):
        PowerSGD().load_state_dict(state)


def payload(rank: int, columns: int, *, scale: float = 1.0, half: bytes = ONE, halves: int | None = None) -> bytes:
    count = rank * (columns + -(-100 // max(1, columns))) if halves is None else halves
    return struct.pack("<HI", rank, columns) + struct.pack("<f", scale) * rank + half * count


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (payload(0, 10), "malformed"),
        (payload(33, 10), "malformed"),
        (payload(1, 0), "malformed"),
        (payload(11, 10), "wrong_shape"),  # more than the shorter side
        (payload(1, 101), "wrong_shape"),
        (payload(2, 1), "wrong_shape"),
        (payload(1, 10, halves=21), "wrong_shape"),
        (payload(1, 10, scale=-1.0), "malformed"),
        (payload(1, 10, scale=float("nan")), "nonfinite"),
        (payload(1, 10, scale=float("inf")), "nonfinite"),
        (payload(1, 10, scale=3e38), "nonfinite"),
        (payload(3, 10, scale=1e38), "nonfinite"),  # each would do, their sum would not
        (payload(1, 10, half=struct.pack("<e", 1.001)), "malformed"),
        (payload(1, 10, half=struct.pack("<e", float("inf"))), "malformed"),
        (payload(1, 10, half=struct.pack("<e", float("nan"))), "malformed"),
    ],
)
def test_payloads_are_checked(bad: bytes, reason: str) -> None:
    with pytest.raises(PayloadError) as refused:
        compress.get("powersgd").decode(bad, 100)
    assert refused.value.reason == reason


def test_the_largest_allowed_scales_do_not_overflow() -> None:
    decoded_d = compress.get("powersgd").decode(payload(10, 10, scale=1.7e37), 100)
    assert decoded_d.unique().tolist() == [pytest.approx(1.7e38, rel=1e-5)]


@pytest.mark.parametrize("options", [{"rank": 0}, {"rank": 33}, {"columns": -1}, {"columns": 1 << 32}])
def test_options_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        compress.get("powersgd", **options)
