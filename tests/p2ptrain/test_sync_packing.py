"""Models as bytes that are read by parts: a run of chunks says what the whole says there, and nonsense is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from gossip.core.limits import CHUNK_BYTES
from p2ptrain import compress
from p2ptrain.compress import PayloadError
from p2ptrain.compress.blocks import BlockCodec
from p2ptrain.compress.payload_layout import layout_of, size_of
from p2ptrain.sync.difference_packing import DifferencePacking
from p2ptrain.sync.packing import (
    DIFFERENCE_PACKERS,
    LEAST_PART_BYTES,
    LEAST_PIECE,
    PACKERS,
    PART_BYTES,
    PARTS,
    Packing,
    part_bytes_for,
)

LARGEST = {"none": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Bytes a parameter, but for scales."""

every_packer = pytest.mark.parametrize("name", PACKERS)


def packing(name: str, numel: int) -> Packing:
    return Packing(compress.get(name), numel)


def test_a_part_is_counted_in_the_chunks_of_the_network() -> None:
    assert PART_BYTES == CHUNK_BYTES


@given(numel=st.integers(1, 1 << 32), bits=st.sampled_from([1, 2, 8, 16]))
def test_a_small_model_has_small_pieces_and_a_large_one_no_larger_ones_than_chunks(numel: int, bits: int) -> None:
    size = -(-numel * bits // 8)
    width = part_bytes_for(size, LEAST_PIECE * bits // 8)
    assert LEAST_PART_BYTES <= width <= PART_BYTES
    assert width.bit_count() == 1
    pieces = -(-size // width)
    assert pieces <= PARTS or width == PART_BYTES
    assert pieces >= PARTS // 2 or width == max(LEAST_PART_BYTES, LEAST_PIECE * bits // 8)
    assert width * 8 // bits >= LEAST_PIECE


@every_packer
@settings(max_examples=examples(12), deadline=None)
@given(chunks=st.floats(0, 40), cut=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_run_of_chunks_says_what_the_whole_says_there(name: str, chunks: float, cut: tuple[float, float]) -> None:
    numel = max(1, round(chunks * LEAST_PART_BYTES / LARGEST[name]))
    it = packing(name, numel)
    x_d = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    packed = it.pack(x_d)
    whole_d = it.unpack(packed)
    assert whole_d.shape == x_d.shape
    assert (whole_d - x_d).abs().max() <= 0.02 * x_d.abs().max()
    assert len(packed) <= LARGEST[name] * numel * 1.005 + it.part_bytes * (numel >= it.piece_numel) * 0.005 + 8
    count = -(-len(packed) // it.part_bytes)
    first, last = sorted(round(share * count) for share in cut)
    part = slice(first * it.part_bytes, min(len(packed), last * it.part_bytes))
    if part.stop > part.start:
        span = it.span(part)
        assert torch.equal(it.unpack(memoryview(packed)[part]), whole_d[span])
        assert it.pack(whole_d[span]) == packed[part] or name == "int8", "parts are packed as the whole is"


@every_packer
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_last_piece_may_be_a_whole_one(name: str, pieces: int) -> None:
    numel = pieces * packing(name, 1).piece_numel
    it = packing(name, numel)
    packed = it.pack(torch.ones(numel))
    assert len(packed) == pieces * it.part_bytes
    assert torch.equal(it.unpack(packed), torch.ones(numel))


@every_packer
def test_what_is_no_model_is_refused(name: str) -> None:
    it = packing(name, 1000)
    packed = it.pack(torch.ones(1000))
    for junk in (b"", packed[:-1], b"\xff" * len(packed), b"\0" * it.part_bytes + b"\0"):
        with pytest.raises(PayloadError):
            it.unpack(junk)
    for wrong in (torch.nan, torch.inf):
        with pytest.raises(PayloadError):
            it.unpack(it.pack(torch.full((1000,), wrong)))


@pytest.mark.parametrize("name", [*DIFFERENCE_PACKERS, "rotated+q2", "rotated+int8"])
@pytest.mark.parametrize("numel", [1, 5, 1024, 1025, 40_000])
def test_the_size_of_a_payload_is_known_without_encoding(name: str, numel: int) -> None:
    codec = compress.get(name)
    assert layout_of(codec) is not None
    assert size_of(codec, numel) == len(codec.encode(torch.randn(numel)))


def test_how_much_fits_is_found_by_sizes_and_not_by_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packing is built at every start, by twenty halvings and more."""
    encoded = []
    encode = BlockCodec.encode
    monkeypatch.setattr(BlockCodec, "encode", lambda self, x_d: encoded.append(x_d.numel()) or encode(self, x_d))
    Packing(compress.get("int8"), 200_000)
    assert encoded == []
    DifferencePacking(compress.get("q2"), 200_000, 10)
    assert len(encoded) == 2, "a full piece and the last one"
