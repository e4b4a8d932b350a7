"""Vectors encoded and decoded by parts: the same bytes, and the same values, as whole ones."""

import pytest
import torch

from p2ptrain import compress
from p2ptrain.compress import PayloadError
from p2ptrain.compress.blocks import CHUNK_NUMEL, Floats
from p2ptrain.compress.by_parts import ByParts, decoding, encode_from

SIZES = (1, 1023, 4097, CHUNK_NUMEL + 4099)


@pytest.mark.parametrize("name", compress.names())
def test_parts_make_the_whole(name: str) -> None:
    for numel in SIZES:
        x_d = torch.randn(numel, generator=torch.Generator().manual_seed(numel))

        def read(part: slice, out: Floats, x_d: torch.Tensor = x_d) -> None:
            out[:] = x_d.numpy()[part]

        payload = compress.get(name).encode(x_d)
        assert encode_from(compress.get(name), read, numel) == payload
        whole_d, seen_d, times_d = (
            compress.get(name).decode(payload, numel),
            torch.full((numel,), 7.0),
            torch.zeros(numel),
        )

        def take(part: slice, value_p: Floats, seen_d: torch.Tensor = seen_d, times_d: torch.Tensor = times_d) -> None:
            seen_d[part] = torch.from_numpy(value_p)
            times_d[part] += 1
            value_p.fill(9.0)  # they are the taker's

        hand_out = decoding(compress.get(name), payload, numel)
        for _ in range(2):
            hand_out(take)
            assert torch.equal(seen_d, whole_d)
        assert (times_d == 2).all()


@pytest.mark.parametrize("name", ["q2", "int8", "int4", "sign1", "topk"])
def test_codecs_of_blocks_need_no_vector(name: str) -> None:
    codec = compress.get(name)
    assert isinstance(codec, ByParts)
    for payload in (b"", b"\xff" * 5000):
        with pytest.raises(PayloadError):
            codec.decoding(payload, 4096)(lambda part, value_p: None)
