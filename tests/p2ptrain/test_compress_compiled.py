"""q2's compiled loops and their plain twins: the same codes and values, on all that a vector may hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain import compress, jit
from p2ptrain.compress import PayloadError
from p2ptrain.compress.blocks import BLOCK, SCALE_BYTES
from p2ptrain.compress.q2 import THRESHOLD

pytestmark = pytest.mark.slow  # compiling takes a while

pytest.importorskip("numba", reason="the extra 'fast' is not installed")
Q2 = compress.get("q2")
SIZES = [1, 3, 4, 1023, BLOCK, BLOCK + 1, 5 * BLOCK + 6]
SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 1e-20, 1.0, -1e20, 3e38, -3e38]


@pytest.fixture(autouse=True)
def always_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "WORTH", 0)


def plainly(x_d: torch.Tensor) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "available", lambda: False)
        return Q2.encode(x_d)


def plainly_decoded(payload: bytes, numel: int) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "available", lambda: False)
        return Q2.decode(payload, numel)


def vector(data: st.DataObject) -> torch.Tensor:
    """Gaussian blocks of unlike sizes, some of zeros, with single values that are special."""
    numel = data.draw(st.sampled_from(SIZES))
    x_d = torch.randn(numel, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 2**20))))
    for start in range(0, numel, BLOCK):
        x_d[start : start + BLOCK] *= data.draw(st.sampled_from([0.0, 1e-42, 1e-30, 1.0, 1e15, 1e37]))
    for _ in range(data.draw(st.integers(0, 4))):
        x_d[data.draw(st.integers(0, numel - 1))] = data.draw(st.sampled_from(SPECIAL))
    return x_d


@given(data=st.data())
def test_scales_agree_to_their_last_bits_and_codes_beyond_rounding_of_the_threshold(data: st.DataObject) -> None:
    x_d = vector(data)
    blocks = -(-x_d.numel() // BLOCK)
    got, plain = Q2.encode(x_d), plainly(x_d)
    scale_b, plain_b = (np.frombuffer(each[: SCALE_BYTES * blocks], dtype="<f4") for each in (got, plain))
    np.testing.assert_allclose(scale_b, plain_b, rtol=1e-6)
    for start in range(0, x_d.numel(), BLOCK):
        block_d = x_d[start : start + BLOCK].double()
        threshold = THRESHOLD * float(block_d.square().mean().sqrt())
        near = (block_d.abs() - threshold).abs() <= 1e-5 * threshold
        same = (
            codes(got, blocks, x_d.numel())[start : start + BLOCK]
            == codes(plain, blocks, x_d.numel())[start : start + BLOCK]
        )
        assert (same | near.numpy()).all()


def codes(payload: bytes, blocks: int, numel: int) -> np.ndarray:
    body_b = np.frombuffer(payload[SCALE_BYTES * blocks :], dtype=np.uint8)
    return (body_b[:, None] >> np.arange(0, 8, 2) & 3).reshape(-1)[:numel]


@given(data=st.data())
def test_any_bytes_decode_to_the_same_bits(data: st.DataObject) -> None:
    numel = data.draw(st.sampled_from(SIZES))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    blocks = -(-numel // BLOCK)
    scale_b = np.abs(rng.normal(size=blocks)) * data.draw(st.sampled_from([0.0, 1e-44, 1e-30, 1.0, 1e37]))
    payload = scale_b.astype("<f4").tobytes() + rng.bytes(-(-numel // 4))
    assert torch.equal(Q2.decode(payload, numel).view(torch.int32), plainly_decoded(payload, numel).view(torch.int32))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_gives_a_scale_that_nobody_takes(bad: float) -> None:
    x_d = torch.ones(3 * BLOCK)
    x_d[BLOCK + 5] = bad
    with pytest.raises(PayloadError):
        Q2.decode(Q2.encode(x_d), x_d.numel())


def test_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x_d = torch.randn(1 << 20, generator=torch.Generator().manual_seed(2))
    alone = Q2.encode(x_d)
    torch.set_num_threads(2)
    assert Q2.encode(x_d) == alone


def test_small_vectors_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "WORTH", 1 << 20)
    monkeypatch.setattr("p2ptrain.compress.q2_compiled.loops", lambda *_: pytest.fail("compiled"))
    Q2.decode(Q2.encode(torch.ones(1 << 12)), 1 << 12)
