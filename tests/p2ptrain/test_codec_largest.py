"""The choice of the largest values of a row: by its sample or without, it is the plain sort's, ties by place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples, thorough_but

from p2ptrain.compress.topk_select import largest_places

WIDTHS = [1, 2, 255, 511, 512, 513, 1000, 4095, 4096]


def plainly(row: np.ndarray, kept: int) -> list[int]:
    """NaN counts as larger than infinity."""
    sizes = [float("inf") if np.isnan(value) else abs(float(value)) for value in row]
    by_size = sorted(range(len(sizes)), key=lambda i: (not np.isnan(row[i]), -sizes[i], i))
    return sorted(by_size[:kept])


def assert_largest(x_rw: np.ndarray, kept: int) -> None:
    x_rw = np.ascontiguousarray(x_rw, dtype=np.float32)
    width = x_rw.shape[1]
    found = largest_places(x_rw, kept)
    assert [list(row - width * number) for number, row in enumerate(found)] == [plainly(row, kept) for row in x_rw]


def gaussian(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width))


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(
    rows=st.integers(1, 5),
    width=st.sampled_from(WIDTHS),
    share=st.floats(0, 1),
    levels=st.sampled_from([None, 1, 3, 40]),
    zeros=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    seed=st.integers(0, 9),
)
def test_random_rows(rows: int, width: int, share: float, levels: int | None, zeros: float, seed: int) -> None:
    x_rw = gaussian(rows, width, seed)
    x_rw[np.random.default_rng(seed).random(x_rw.shape) < zeros] = 0
    if levels is not None:
        x_rw = np.rint(x_rw * levels)
    assert_largest(x_rw, max(1, round(share * width)))


@pytest.mark.slow
@pytest.mark.parametrize("kept", thorough_but({33, 410}, [33, 64, 300, 410]))
@pytest.mark.parametrize("factor", [100.0, 0.01, 0.0])
@pytest.mark.parametrize("part", ["sample", "beginning", "one row"])
def test_rows_that_mislead_the_sample(kept: int, factor: float, part: str) -> None:
    """Every 16th value is sampled: those may all be large, or small; and rows of a chunk may differ by far."""
    x_rw = gaussian(4, 4096)
    where = {"sample": np.s_[:, ::16], "beginning": np.s_[:, :200], "one row": np.s_[2]}[part]
    x_rw[where] *= factor
    assert_largest(x_rw, kept)


@pytest.mark.parametrize("kept", [1, 64, 410, 3000])
def test_values_that_are_not_finite_are_the_largest(kept: int) -> None:
    x_rw = gaussian(3, 4096)
    x_rw[0, 77], x_rw[1, 4095], x_rw[2, [5, 9]] = np.nan, -np.inf, [np.inf, np.nan]
    assert_largest(x_rw, kept)
