"""Which values of a tensor are in a block of it, and in a part of its flat order."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from p2ptrain.training.tensor_block import TensorBlock


@given(data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_stretch_of_a_tensor_is_a_stretch_of_each_block(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=4)))
    offsets = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    sizes = tuple(data.draw(st.integers(0, size - first)) for size, first in zip(shape, offsets, strict=True))
    block, numel = TensorBlock(offsets, sizes), math.prod(shape)
    whole_d = torch.arange(numel)
    own_p = block.of(whole_d.view(shape)).reshape(-1)
    start, stop = sorted((data.draw(st.integers(0, numel)), data.draw(st.integers(0, numel + 3))))
    first, last = block.below(start, shape), block.below(stop, shape)
    assert own_p[first:last].tolist() == [at for at in own_p.tolist() if start <= at < stop]
    strips = list(block.strips(first, last, shape))
    found = [strip.of(whole_d[start:stop], start).reshape(-1) for strip in strips]
    assert torch.equal(torch.cat([own_p[:0], *found]), own_p[first:last])
    assert all(strip.rows and strip.width for strip in strips)


@pytest.mark.parametrize(
    ("shape", "block", "strips"),
    [
        pytest.param((6, 4), TensorBlock((2, 0), (3, 4)), 1, id="rows"),
        pytest.param((6, 4), TensorBlock((0, 1), (6, 2)), 1, id="columns"),
        pytest.param((2, 3, 4), TensorBlock((0, 1, 1), (2, 2, 2)), 2, id="columns of matrices"),
        pytest.param((), TensorBlock((), ()), 1, id="a number"),
    ],
)
def test_a_block_is_few_strips(shape: tuple[int, ...], block: TensorBlock, strips: int) -> None:
    assert len(list(block.strips(0, block.numel, shape))) == strips
