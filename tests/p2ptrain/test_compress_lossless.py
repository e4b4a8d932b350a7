"""The lossless stage: the inner payload bit for bit, smaller where it pays, and never more memory than it may need."""

import struct
import tracemalloc
import zlib
from functools import cache

import pytest
import torch
from compress_readers import read_int8, read_lossless
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples
from vectors import vector

from p2ptrain import compress
from p2ptrain.compress import PayloadError
from p2ptrain.compress.topk_deltas import from_plain, to_plain

INNER = ["none", "fp16", "bf16", "int8", "int4", "q2", "sign1", "topk", "randomk", "rotated+int8", "demo", "powersgd"]


ONE_OF_100 = b"\x28\0" + bytes(4) + b"\x63" + b"\1"
"""topk's plain form: k = 40 of 4096, scale 0, place 99, value 1."""


def refusal(payload: bytes, numel: int) -> str:
    try:
        decoded_d = compress.get("lossless+topk").decode(payload, numel)
    except PayloadError as refused:
        return refused.reason
    assert decoded_d.shape == (numel,)
    assert torch.isfinite(decoded_d).all()
    return ""


def deflated(plain: bytes) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return coder.compress(plain) + coder.flush()


@pytest.mark.parametrize("inner", INNER)
@settings(max_examples=examples(10), deadline=None)
@given(numel=st.integers(1, 10_000), scale=st.sampled_from([0.0, 1e-40, 1.0, 1e37]))
def test_nothing_is_lost(inner: str, numel: int, scale: float) -> None:
    x_d = vector(numel) * scale
    plain, squeezed = compress.get(inner), compress.get(f"lossless+{inner}")
    expected_d = plain.decode(plain.encode(x_d), numel)
    payload = squeezed.encode(x_d)
    assert torch.equal(squeezed.decode(payload, numel), expected_d)
    compress.base.reset(plain)
    assert len(payload) <= 1 + len(plain.encode(x_d))


@pytest.mark.parametrize(
    ("inner", "ratio"), [("topk", 0.62), ("bf16", 0.8), ("int8", 0.93), ("int4", 0.95), ("q2", 0.98)]
)
def test_it_pays_where_it_says(inner: str, ratio: float) -> None:
    x_d = vector(200_000)
    assert len(compress.get(f"lossless+{inner}").encode(x_d)) <= ratio * len(compress.get(inner).encode(x_d))


@settings(max_examples=examples(30), deadline=None)
@given(numel=st.integers(1, 9000), ratio=st.sampled_from([1 / 4096, 1 / 300, 0.03, 0.5, 1.0]), zeros=st.booleans())
def test_decoding_agrees_with_the_slow_reader(numel: int, ratio: float, zeros: bool) -> None:
    x_d = vector(numel)
    if zeros:
        x_d[: numel // 2] = 0  # gaps above 255
    codec = compress.get("lossless+topk", ratio=ratio)
    payload = codec.encode(x_d)
    if payload[0] == 2:
        slow_d = torch.tensor(read_lossless(payload, numel, read_int8), dtype=torch.float64)
        torch.testing.assert_close(codec.decode(payload, numel).double(), slow_d, atol=1e-12, rtol=1e-6)


@settings(max_examples=examples(60), deadline=None)
@given(
    numel=st.integers(1, 10_000),
    ratio=st.floats(1e-4, 1),
    value_bits=st.integers(2, 8),
    seed=st.integers(0, 1000),
)
def test_the_plain_form_gives_the_payload_back(numel: int, ratio: float, value_bits: int, seed: int) -> None:
    payload = compress.get("topk", ratio=ratio, value_bits=value_bits).encode(vector(numel, seed=seed))
    assert from_plain(b"".join(to_plain(payload, numel)), numel) == payload


def test_slow_reader_sees_forms_zero_and_one_alike() -> None:
    x_d, codec = vector(3000), compress.get("lossless+int8")
    inner = compress.get("int8").encode(x_d)
    squeezed = codec.encode(x_d)
    assert squeezed[0] == 1
    for payload in (squeezed, b"\0" + inner, b"\1" + deflated(inner)):
        assert torch.equal(codec.decode(payload, 3000), compress.get("int8").decode(inner, 3000))
        assert read_lossless(payload, 3000, read_int8) == read_int8(inner, 3000)


@cache
def inflated_to(size: int) -> bytes:
    return deflated(bytes(size))


@pytest.mark.slow
@pytest.mark.parametrize("form", [1, 2])
def test_a_bomb_is_never_inflated(form: int) -> None:
    bomb = bytes([form]) + inflated_to(200_000_000)
    assert len(bomb) < 300_000
    codec = compress.get("lossless+topk")
    tracemalloc.start()
    with pytest.raises(PayloadError) as refused:
        codec.decode(bomb, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused.value.reason == "wrong_shape"
    assert peak < 4 * 400_000  # the bound, twice while zlib joins its buffers, and small change


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\3", "malformed"),
        (b"\xff" + deflated(b"abc"), "malformed"),
        (b"\1" + b"\xff" * 20, "malformed"),  # no such block type
        (b"\2" + deflated(ONE_OF_100) + b"more", "wrong_shape"),
        (b"\1" + deflated(bytes(100))[:-1], "wrong_shape"),
        (b"\2" + deflated(b"\1"), "wrong_shape"),
        (b"\2" + deflated(b"\0\0" + bytes(50)), "malformed"),  # k = 0
        (b"\2" + deflated(b"\xff\xff" + bytes(50)), "malformed"),  # values of one bit
        (b"\2" + deflated(ONE_OF_100), ""),
        (b"\2" + deflated(b"\x28\0" + bytes(4) + b"\x64" + b"\1"), "malformed"),  # at place 100
        (b"\2" + deflated(b"\x28\0" + bytes(4) + b"\xff\0\0" + b"\1"), "malformed"),
        (b"\2" + deflated(b"\x28\0" + bytes(4) + b"\xff\0" + b"\1"), "wrong_shape"),
        (b"\2" + deflated(b"\x28\0" + bytes(4) + b"\0\0" + b"\1"), "wrong_shape"),
    ],
)
def test_payloads_are_checked(payload: bytes, reason: str) -> None:
    assert refusal(payload, 100) == reason


@pytest.mark.parametrize(("more", "reason"), [(4095 - 255, ""), (4096 - 255, "malformed"), (65535, "malformed")])
def test_a_place_beyond_its_chunk_does_not_wrap_around(more: int, reason: str) -> None:
    plain = b"\1\0" + struct.pack("<f", 1.0) + b"\xff" + struct.pack("<H", more) + b"\1"
    assert refusal(b"\2" + deflated(plain), 4096) == reason


def test_gaps_are_topks_alone() -> None:
    payload = compress.get("lossless+topk").encode(vector(5000))
    assert payload[0] == 2
    with pytest.raises(PayloadError) as refused:
        compress.get("lossless+int8").decode(payload, 5000)
    assert refused.value.reason == "malformed"


@settings(max_examples=examples(300), deadline=None)
@given(plain=st.binary(max_size=200), numel=st.integers(1, 200), form=st.integers(1, 2))
def test_any_deflated_bytes_decode_or_are_refused(plain: bytes, numel: int, form: int) -> None:
    assert refusal(bytes([form]) + deflated(plain), numel) in {"", "wrong_shape", "malformed", "nonfinite"}
