"""Every codec against its slow float64 reference (reference_codecs.py), over drawn vectors; and what it refuses."""

import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
import reference_codecs as slow
import torch
from codec_inputs import finite_vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from p2ptrain import compress
from p2ptrain.compress import Compressor, PayloadError

DENORMAL = 2.0**-149
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in slow.READERS},
    "int4 uniform": ("int4", {"format": "uniform"}),
    "int4 e3m0": ("int4", {"format": "e3m0"}),
    **{f"topk {bits} bits": ("topk", {"ratio": 0.3, "value_bits": bits}) for bits in range(2, 8)},
    "topk of few": ("topk", {"ratio": 1 / 64, "value_bits": 2}),
    "topk of all": ("topk", {"ratio": 1.0}),
}


def small(numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(numel)) * 0.01


def sent(codec: Compressor, x_d: torch.Tensor) -> list[float]:
    return codec.decode(codec.encode(x_d), x_d.numel()).tolist()


# Decoding


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=examples(30), deadline=None)
@given(x_d=finite_vectors())
def test_decode_gives_the_slow_readers_bits(variant: str, x_d: torch.Tensor) -> None:
    name, options = VARIANTS[variant]
    payload = compress.get(name, **options).encode(x_d)
    assert compress.get(name).decode(payload, x_d.numel()).tolist() == slow.READERS[name](payload, x_d.numel())


@pytest.mark.parametrize("name", ["int8", "int4", "q2", "sign1", "topk"])
@settings(max_examples=examples(30), deadline=None)
@given(data=st.data(), numel=st.sampled_from([1, 7, 300, 1500]))
def test_decode_of_overwritten_bytes_gives_the_slow_readers_bits(name: str, data: st.DataObject, numel: int) -> None:
    """Also of codes that no encoder makes."""
    payload = bytearray(compress.get(name).encode(small(numel)))
    for _ in range(3):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with suppress(PayloadError):
        decoded_d = compress.get(name).decode(bytes(payload), numel)
        assert decoded_d.tolist() == slow.READERS[name](bytes(payload), numel)


# Encoding


def assert_as_near(got: Sequence[float], want: Sequence[float], x_d: torch.Tensor) -> None:
    """No value further from what was to be sent than the reference's: so ties may go either way."""
    slack = 1e-6 * float(x_d.abs().max()) + DENORMAL
    for mine, reference, value in zip(got, want, x_d.tolist(), strict=True):
        assert abs(mine - value) <= abs(reference - value) + slack


def assert_close(got: Sequence[float], want: Sequence[float]) -> None:
    for mine, reference in zip(got, want, strict=True):
        assert math.isclose(mine, reference, rel_tol=1e-5, abs_tol=2 * DENORMAL)


@settings(max_examples=examples(80), deadline=None)
@given(x_d=finite_vectors())
def test_none_is_exact(x_d: torch.Tensor) -> None:
    assert sent(compress.get("none"), x_d) == x_d.tolist()


@pytest.mark.parametrize(("name", "writer"), [("fp16", slow.write_fp16), ("bf16", slow.write_bf16)])
@settings(max_examples=examples(80), deadline=None)
@given(x_d=finite_vectors())
def test_halves_round_to_nearest(
    name: str, writer: Callable[[Sequence[float]], list[float]], x_d: torch.Tensor
) -> None:
    assert sent(compress.get(name), x_d) == writer(x_d.tolist())


@settings(max_examples=examples(80), deadline=None)
@given(x_d=finite_vectors())
def test_int8_is_as_near_as_the_reference(x_d: torch.Tensor) -> None:
    assert_as_near(sent(compress.get("int8"), x_d), slow.write_int8(x_d.tolist()), x_d)


@pytest.mark.parametrize(("number", "format"), [(0, "nf4"), (1, "uniform"), (2, "e3m0")])
@settings(max_examples=examples(60), deadline=None)
@given(x_d=finite_vectors())
def test_int4_is_as_near_as_the_reference(number: int, format: str, x_d: torch.Tensor) -> None:
    codec = compress.get("int4", format=format)
    assert codec.encode(x_d)[0] == number
    assert_as_near(sent(codec, x_d), slow.write_int4(x_d.tolist(), slow.INT4_LEVELS[number]), x_d)


@settings(max_examples=examples(80), deadline=None)
@given(x_d=finite_vectors())
def test_sign1_is_the_reference(x_d: torch.Tensor) -> None:
    assert_close(sent(compress.get("sign1"), x_d), slow.write_sign1(x_d.tolist()))


@settings(max_examples=examples(80), deadline=None)
@given(x_d=finite_vectors())
def test_q2_is_the_reference(x_d: torch.Tensor) -> None:
    got, want = sent(compress.get("q2"), x_d), slow.write_q2(x_d.tolist())
    for mine, reference, block in zip(*(slow.blocks_of(v, 1024) for v in (got, want, x_d.tolist())), strict=True):
        if not slow.near_threshold(block):
            assert_close(mine, reference)


@pytest.mark.parametrize("ratio", [0.1, 1 / 64, 0.6])
@settings(max_examples=examples(60), deadline=None)
@given(x_d=finite_vectors())
def test_topk_keeps_what_the_reference_keeps(ratio: float, x_d: torch.Tensor) -> None:
    got, want = sent(compress.get("topk", ratio=ratio), x_d), slow.write_topk(x_d.tolist(), round(ratio * 4096))
    assert_as_near(got, want, x_d)
    peak = float(x_d.abs().max())
    assert all(mine == 0 for mine, reference in zip(got, want, strict=True) if reference == 0 and peak > 1e-30)


@pytest.mark.parametrize("bits", range(2, 8))
def test_topk_of_few_bits_keeps_the_same_places_and_signs(bits: int) -> None:
    x_d = small(9000)
    whole, few = (sent(compress.get("topk", value_bits=b), x_d) for b in (8, bits))
    assert [math.copysign(bool(v), v) for v in few] == [math.copysign(bool(v), v) for v in whole]


def two_level_error(sizes: Sequence[float]) -> float:
    """What the best two levels leave of the sizes' squares."""
    ordered = sorted(sizes)
    parts = ((ordered[:at], ordered[at:]) for at in range(1, len(ordered)))
    return min(sum(math.fsum((v - math.fsum(p) / len(p)) ** 2 for v in p) for p in pair) for pair in parts)


@pytest.mark.parametrize("numel", [2048, 4096])
def test_topk_of_two_bits_finds_the_best_two_levels(numel: int) -> None:
    x_d = small(numel)
    got = sent(compress.get("topk", ratio=1 / 32, value_bits=2), x_d)
    kept = [(abs(value), abs(mine)) for value, mine in zip(x_d.tolist(), got, strict=True) if mine]
    assert len(kept) == numel // 32
    error = math.fsum((value - mine) ** 2 for value, mine in kept)
    assert error <= 1.04 * two_level_error([value for value, _ in kept])


@pytest.mark.parametrize("bits", range(2, 8))
def test_topk_of_few_bits_is_exact_where_it_can_be(bits: int) -> None:
    """Equal sizes; and two of which one is a whole number of 256ths of the other."""
    for low in (1.0, 0.25, 0.0):
        x_d = torch.tensor([1.0, -low, low, -1.0, 1.0]) * 3e-7
        assert_close(sent(compress.get("topk", ratio=1.0, value_bits=bits), x_d), x_d.tolist())


# Sizes and options


@pytest.mark.parametrize(
    ("variant", "bits"),
    [
        *(("none", 32), ("fp16", 16), ("bf16", 16), ("int8", 8.04), ("int4", 4.126), ("q2", 2.04), ("sign1", 1.04)),
        *(("topk", 2.02), ("topk of few", 0.2295)),
    ],
)
def test_payload_is_as_small_as_it_says(variant: str, bits: float) -> None:
    name, options = VARIANTS[variant]
    assert 8 * len(compress.get(name, **options).encode(small(100_003))) / 100_003 <= bits


def test_the_sparse_loco_format_takes_what_its_places_values_scale_and_floor_take() -> None:
    payload = compress.get("topk", ratio=1 / 64, value_bits=2).encode(small(4096 * 10))
    assert len(payload) == 2 + 10 * (64 * (12 + 2) // 8 + 4 + 1)


@pytest.mark.parametrize(
    ("options", "contraction"),
    [({}, 0.41), ({"value_bits": 2}, 0.41), ({"ratio": 1 / 64, "value_bits": 2}, 0.11), ({"ratio": 1.0}, 0.95)],
)
def test_topk_knows_its_contraction(options: dict[str, object], contraction: float) -> None:
    codec, x_d = compress.get("topk", **options), small(200_000)
    error = (codec.decode(codec.encode(x_d), x_d.numel()) - x_d).square().sum() / x_d.square().sum()
    assert contraction <= codec.contraction <= 1 - error


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *(("topk", {"ratio": ratio}, "ratio") for ratio in (0, -0.1, 1.1, math.nan)),
        *(("topk", {"value_bits": bits}, "value_bits") for bits in (1, 9, 2.5)),
        ("int4", {"format": "fp4"}, "nf4, uniform, e3m0"),
    ],
)
def test_options_are_checked(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compress.get(name, **options)


def test_unknown_compressor_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match="q2"):
        compress.get("zip")


# What is refused


def assert_refused(name: str, payload: bytes, numel: int, reason: str) -> None:
    with pytest.raises(PayloadError) as refused:
        compress.get(name).decode(payload, numel)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "places",
    [
        (5 | 5 << 12).to_bytes(3, "little"),  # twice the same
        (6 | 5 << 12).to_bytes(3, "little"),  # falling
        (5 | 100 << 12).to_bytes(3, "little"),  # outside the 100 there are
    ],
)
def test_topk_places_must_rise_and_lie_inside(places: bytes) -> None:
    k = 81  # of 4096: two of 100
    assert_refused("topk", k.to_bytes(2, "little") + struct.pack("<f", 1.0) + places + b"\1\1", 100, "malformed")


@pytest.mark.parametrize("head", [0, 4097, 8191, 5 << 13, 7 << 13 | 100])
def test_topk_head_must_be_possible(head: int) -> None:
    assert_refused("topk", head.to_bytes(2, "little") + b"\0" * 100, 100, "malformed")


@pytest.mark.parametrize("format", [3, 255])
def test_int4_format_must_be_known(format: int) -> None:
    assert_refused("int4", bytes([format]) + compress.get("int4").encode(small(100))[1:], 100, "malformed")


@pytest.mark.parametrize("name", ["int8", "int4", "q2", "sign1", "topk"])
@pytest.mark.parametrize(
    ("scale", "reason"),
    [(-1.0, "malformed"), (math.nan, "nonfinite"), (math.inf, "nonfinite"), (-math.inf, "nonfinite")],
)
def test_scales_must_be_finite_and_not_negative(name: str, scale: float, reason: str) -> None:
    payload = compress.get(name).encode(small(9000))
    at = {"int4": 1, "topk": 2}.get(name, 0) + 4  # the second block's
    assert_refused(name, payload[:at] + struct.pack("<f", scale) + payload[at + 4 :], 9000, reason)


@pytest.mark.parametrize("name", ["int8", "q2"])
def test_a_scale_that_would_overflow_is_refused(name: str) -> None:
    payload = compress.get(name).encode(small(1024))
    assert_refused(name, struct.pack("<f", 3.4e38) + payload[4:], 1024, "nonfinite")


@pytest.mark.parametrize(("name", "bad"), [("fp16", 0x7C00), ("fp16", 0xFE00), ("bf16", 0x7F80), ("bf16", 0xFFC0)])
def test_halves_that_are_not_finite_are_refused(name: str, bad: int) -> None:
    payload = compress.get(name).encode(small(70_000))
    assert_refused(name, payload[:-4] + bad.to_bytes(2, "little") + payload[-2:], 70_000, "nonfinite")
