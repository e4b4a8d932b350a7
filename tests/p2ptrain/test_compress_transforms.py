"""`rotated` and `demo`: against readers made from the formulas, and what turning is good for."""

import itertools
import math
import struct
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from codec_inputs import lost
from compress_readers import cut, read_demo, read_int8, read_rotated
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_codecs import read_none
from sizes import examples
from vectors import vector

from p2ptrain import compress
from p2ptrain.compress import PayloadError
from p2ptrain.compress.dct import SECANTS
from p2ptrain.compress.transform import pieces

READERS = {"rotated": read_rotated, "demo": read_demo}
both = pytest.mark.parametrize("stage", READERS)


@pytest.mark.slow
@both
@settings(max_examples=examples(25), deadline=None)
@given(
    numel=st.integers(1, 1500), seed=st.integers(0, 2**31), magnitude=st.sampled_from([1e-30, 1e-3, 1.0, 1e30, 3e38])
)
def test_decoding_agrees_with_the_slow_reader(stage: str, numel: int, seed: int, magnitude: float) -> None:
    x_d = vector(numel, seed=seed).clamp(-1, 1) * magnitude
    for inner, reader in (("none", read_none), ("int8", read_int8)):
        codec = compress.get(f"{stage}+{inner}")
        payload = codec.encode(x_d)
        slow_d = torch.tensor(READERS[stage](payload, numel, reader), dtype=torch.float64)
        close = {"atol": 3e-6 * magnitude, "rtol": 3e-6}
        torch.testing.assert_close(codec.decode(payload, numel).double(), slow_d, **close)


@both
@pytest.mark.parametrize("numel", [4096, 5003, 70_001])
def test_turning_there_and_back_is_as_exact_as_fp32(stage: str, numel: int) -> None:
    assert lost(compress.get(f"{stage}+none"), vector(numel)) < 1e-12


@both
@settings(max_examples=examples(40), deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=64),
    inner=st.sampled_from(["int8", "q2", "sign1", "topk", "none"]),
)
def test_any_finite_vector_is_contracted(stage: str, values: list[float], inner: str) -> None:
    x_d = torch.tensor(values)
    codec = compress.get(f"{stage}+{inner}")
    error_d = codec.decode(codec.encode(x_d), len(values)).double() - x_d.double()
    allowed = float(x_d.double().square().sum()) * (1 + 1e-5) + len(values) * 1.2e-38**2
    assert float(error_d.square().sum()) <= allowed


@pytest.mark.parametrize("block", [1, 2, 64, 1024, 4096])
def test_blocks_are_cut_as_described(block: int) -> None:
    for numel in [*range(1, 300), 4095, 4097, 70_001]:
        cover = [
            (piece.start + i * piece.width, piece.width) for piece in pieces(numel, block) for i in range(piece.rows)
        ]
        widths = cut(numel, block)
        assert [width for _, width in cover] == widths
        assert [start for start, _ in cover] == list(itertools.accumulate(widths, initial=0))[:-1]


def one_hot() -> torch.Tensor:
    x_d = torch.zeros(8192)
    x_d[77], x_d[5000] = 3.0, -1.0
    return x_d


ODD_VECTORS = {
    "one hot": one_hot(),
    "constant": torch.full((8192,), 0.1),
    "alternating": torch.tensor([1.0, -1.0]).repeat(4096),
    "heavy tail": vector(8192) * vector(8192, seed=1).mul(1.2).exp(),
    "steps": torch.arange(8192) // 1024 * 1.0 + 1,
}


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
@pytest.mark.parametrize("kind", ODD_VECTORS)
def test_rotated_quantizers_meet_their_gaussian_error_on_odd_vectors(kind: str, seed: int) -> None:
    x_d = ODD_VECTORS[kind]
    assert lost(compress.get("rotated+q2", seed=seed), x_d) < 0.13
    assert lost(compress.get("rotated+sign1", seed=seed), x_d) < 0.42


def test_what_the_rotation_mends() -> None:
    x_d = ODD_VECTORS["heavy tail"]
    for inner, times in (("sign1", 1.5), ("q2", 1.5), ("int4", 3)):
        assert lost(compress.get(inner), x_d) > times * lost(compress.get(f"rotated+{inner}"), x_d)


@settings(max_examples=examples(30), deadline=None)
@given(spikes=st.lists(st.floats(-8, 8).filter(lambda v: abs(v) > 0.01), min_size=1, max_size=6))
def test_rotated_signs_lose_at_most_half_on_average_over_seeds(spikes: list[float]) -> None:
    x_d = torch.zeros(1024)
    x_d[torch.arange(len(spikes)) * 37] = torch.tensor(spikes)
    mean = sum(lost(compress.get("rotated+sign1", seed=seed), x_d) for seed in range(8)) / 8
    assert mean <= 0.5 + 0.05


@pytest.mark.parametrize("block", [1, 2, 512, 4096, 65536])
def test_a_receiver_needs_neither_block_nor_seed(block: int) -> None:
    x_d = vector(70_001)
    payload = compress.get("rotated+int8", block=block, seed=12345).encode(x_d)
    decoded_d = compress.get("rotated+int8").decode(payload, x_d.numel())
    assert float((decoded_d - x_d).square().sum() / x_d.square().sum()) < 1e-4


def test_seeds_matter() -> None:
    x_d = vector(4096)
    assert compress.get("rotated+none", seed=1).encode(x_d)[6:] != compress.get("rotated+none", seed=2).encode(x_d)[6:]


def test_demo_concentrates_what_is_smooth() -> None:
    angle_d = torch.arange(4096) / 4096 * 2 * math.pi
    wave_d = (3 * angle_d).sin() + 0.01 * vector(4096)
    assert lost(compress.get("demo"), wave_d) < 0.01 < 0.5 < lost(compress.get("topk", ratio=1 / 32), wave_d)


@pytest.mark.parametrize("block", [0, 3, -2, 1 << 17])
def test_rotated_block_is_checked(block: int) -> None:
    with pytest.raises(ValueError, match="block"):
        compress.get("rotated", block=block)


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_rotated_seed_is_checked(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        compress.get("rotated", seed=seed)


@pytest.mark.parametrize(
    ("name", "header", "reason"),
    [
        ("rotated+none", struct.pack("<BBI", 1, 10, 0), "malformed"),
        ("rotated+none", struct.pack("<BBI", 0, 17, 0), "malformed"),
        ("rotated+none", struct.pack("<BBI", 0, 255, 0), "malformed"),
        ("rotated+none", b"\0" * 5, "wrong_shape"),
        ("demo+none", b"\x21", "malformed"),
    ],
)
def test_headers_are_checked(name: str, header: bytes, reason: str) -> None:
    body = compress.get("none").encode(vector(100))
    payload = header + body if reason == "malformed" else header
    with pytest.raises(PayloadError) as refused:
        compress.get(name).decode(payload, 100)
    assert refused.value.reason == reason


@both
def test_sums_that_overflow_are_refused(stage: str) -> None:
    header = {"rotated": struct.pack("<BBI", 0, 10, 0), "demo": b"\0"}[stage]
    body = compress.get("none").encode(torch.full((4096,), 3e38))
    with pytest.raises(PayloadError) as refused:
        compress.get(f"{stage}+none").decode(header + body, 4096)
    assert refused.value.reason == "nonfinite"


@both
def test_a_shift_that_overflows_is_clipped(stage: str) -> None:
    header = {"rotated": struct.pack("<BBI", 32, 10, 0), "demo": b"\x20"}[stage]
    body = compress.get("none").encode(torch.full((64,), 1e36))
    decoded_d = compress.get(f"{stage}+none").decode(header + body, 64)
    assert torch.isfinite(decoded_d).all()
    assert decoded_d.abs().max() == torch.finfo(torch.float32).max


def cosine(x: Decimal) -> Decimal:
    total, term = Decimal(0), Decimal(1)
    for k in range(1, 60):
        total += term
        term *= -x * x / ((2 * k - 1) * (2 * k))
    return total


def test_no_tabled_cosine_is_near_enough_to_a_rounding_boundary_for_libraries_to_differ() -> None:
    getcontext().prec = 60
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    for width, table in SECANTS.items():
        for n, tabled in enumerate(table):
            exact = 1 / (2 * cosine(pi * (2 * n + 1) / (2 * width)))
            for side in (np.float32(-np.inf), np.float32(np.inf)):
                halfway = (Decimal(float(tabled)) + Decimal(float(np.nextafter(tabled, side)))) / 2
                assert (exact - halfway) * (1 if side < 0 else -1) > exact * 100 * Decimal(2) ** -53
