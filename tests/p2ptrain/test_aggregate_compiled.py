"""The compiled loop and its plain twin: the same result to the last sums, on all that a liar may send."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples, thorough_but

from p2ptrain import aggregate, jit
from p2ptrain.aggregate.compiled_network import BLOCK

pytestmark = pytest.mark.slow  # compiling takes a while

pytest.importorskip("numba", reason="the extra 'fast' is not installed")
SHAPES = [(3, 1), (5, 2), (8, 2), (17, 1)]
"""Each is compiled once a process, which takes a while."""
SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 1.0, 3e38, -3e38, math.inf, -math.inf, math.nan]


@pytest.fixture(autouse=True)
def always_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "WORTH", 0)


def without_numba(name: str, f: int, x_nd: torch.Tensor) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "available", lambda: False)
        return aggregate.get(name, f=f)(x_nd)


@pytest.mark.parametrize("name", ["trimmed_mean", "median"])
@pytest.mark.parametrize(("n", "f"), thorough_but({(5, 2)}, SHAPES))
@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(data=st.data())
def test_agrees_with_torch(name: str, n: int, f: int, data: st.DataObject) -> None:
    d = data.draw(st.sampled_from([1, 7, BLOCK - 1, BLOCK, 3 * BLOCK + 5]))
    x_nd = torch.randn(n, d, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 2**20))))
    for _ in range(data.draw(st.integers(0, 12))):
        row, column = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, d - 1))
        x_nd[row, column] = data.draw(st.sampled_from(SPECIAL))
    got_d, plain_d = aggregate.get(name, f=f)(x_nd), without_numba(name, f, x_nd)
    torch.testing.assert_close(got_d, plain_d, rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("n", "f"), SHAPES)
def test_whole_numbers_are_exact(n: int, f: int) -> None:
    x_nd = torch.randint(-3, 4, (n, 5 * BLOCK + 1), generator=torch.Generator().manual_seed(n)).float()
    kept_nd = x_nd.double().sort(dim=0).values[f : n - f]
    torch.testing.assert_close(aggregate.get("trimmed_mean", f=f)(x_nd), kept_nd.mean(dim=0).float(), rtol=1e-7, atol=0)


def test_vectors_that_lie_scattered_in_memory() -> None:
    whole = torch.randn(1500, 2, 5, generator=torch.Generator().manual_seed(1))
    by_columns, repeated = whole[:, 0].T, whole[:1, 1].expand(5, 5)  # strides (1, 10) and (0, 1)
    for x_nd in (by_columns, repeated):
        got_d = aggregate.get("trimmed_mean", f=1)(x_nd)
        torch.testing.assert_close(got_d, x_nd.sort(dim=0).values[1:-1].mean(dim=0))


def test_liars_of_nan_are_outvoted() -> None:
    x_nd = torch.ones(8, 2 * BLOCK)
    x_nd[2:4] = math.nan
    torch.testing.assert_close(aggregate.get("trimmed_mean", f=2)(x_nd), torch.ones(2 * BLOCK), rtol=0, atol=0)


def test_huge_values_do_not_overflow_in_the_sum() -> None:
    x_nd = torch.full((8, 3), 3e38)
    torch.testing.assert_close(aggregate.get("trimmed_mean", f=1)(x_nd), x_nd[0])


def test_small_work_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "WORTH", 100)
    monkeypatch.setattr(jit, "compiled", lambda function: pytest.fail("compiled"))
    aggregate.get("trimmed_mean", f=4)(torch.randn(11, 9))
