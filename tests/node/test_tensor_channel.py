"""Messages between two processes: what goes in comes out, and a closed end is noticed."""

import gc
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.system.tensor_channel import MAX_INLINE_BYTES, ChannelClosedError, TensorChannel, channel_pair, supported

pytestmark = pytest.mark.skipif(not supported(), reason="memfd and sequenced datagrams are Linux's")

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randn(shape, generator=generator).mul(10).to(draw(st.sampled_from(DTYPES)))


messages = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), tensors()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)


def ends() -> tuple[TensorChannel, TensorChannel]:
    one, theirs = channel_pair()
    return one, TensorChannel(theirs)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@given(messages)
def test_what_is_sent_arrives(message: Any) -> None:
    one, other = ends()
    one.send(message)
    assert same(message, other.receive())
    one.close()
    other.close()


def test_the_receiver_owns_what_it_got() -> None:
    one, other = ends()
    sent = torch.arange(10_000.0)
    one.send(["x" * (2 * MAX_INLINE_BYTES), sent, sent.view(100, 100).t(), torch.nn.Parameter(sent)])
    _, first, turned, parameter = other.receive()
    first.add_(1)
    assert torch.equal(sent, torch.arange(10_000.0))
    assert torch.equal(parameter, sent), "nor are two tensors of a message one"
    assert not parameter.requires_grad
    assert torch.equal(turned, sent.view(100, 100).t())
    one.close()
    other.close()


def test_nothing_is_left_open() -> None:
    def here() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())) + Path("/proc/self/maps").read_text().count("memfd:p2ptrain")

    one, other = ends()
    before = here()
    for _ in range(3):
        one.send(torch.ones(100_000))
        assert other.receive().sum() == 100_000
    assert here() == before
    with pytest.raises((TypeError, AttributeError)):
        one.send(lambda: None)
    assert here() == before
    one.close()
    other.close()


def test_a_closed_end_is_noticed_by_both() -> None:
    one, other = ends()
    one.close()
    with pytest.raises(ChannelClosedError):
        other.receive()
    with pytest.raises(ChannelClosedError):
        other.send(torch.ones(3))
    assert other.fileno() >= 0
    other.close()


def test_a_channel_is_no_file_of_the_system() -> None:
    one, theirs = channel_pair()
    assert theirs.family == socket.AF_UNIX
    assert theirs.getsockname() == ""
    one.close()
    theirs.close()
