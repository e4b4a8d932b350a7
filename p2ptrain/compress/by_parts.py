"""Encode and decode a vector by parts, so that nothing of its size has to be held beside it.

A codec that works on blocks does so by itself (`ByParts`). For every other one the vector is made here, whole, and cut.
"""

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from p2ptrain.compress.base import Compressor
from p2ptrain.compress.blocks import CHUNK_NUMEL, Decoding, ReadPart, TakePart
from p2ptrain.protocols import implements


@runtime_checkable
class ByParts(Protocol):
    """A codec that needs no vector of size d, neither to encode nor to decode."""

    def encode_from(self, read: ReadPart, numel: int) -> bytes:
        """Return `encode` of the vector (numel,) whose parts `read` writes, from several threads."""

    def decoding(self, payload: bytes | memoryview, numel: int) -> Decoding:
        """Return what hands out the parts of `decode`, to several threads. Raises PayloadError, now or when called."""


def encode_from(codec: Compressor, read: ReadPart, numel: int) -> bytes:
    """Return the payload of the vector (numel,) whose parts `read` writes: the same bytes as of the whole one."""
    if implements(codec, ByParts):
        return codec.encode_from(read, numel)
    x_d = np.empty(numel, dtype=np.float32)
    for part in cut(numel):
        read(part, x_d[part])
    return codec.encode(torch.from_numpy(x_d))


def decoding(codec: Compressor, payload: bytes | memoryview, numel: int) -> Decoding:
    """Return what hands out the decoded parts, with the values that `decode` gives. Raises PayloadError, now or when
    called."""
    if implements(codec, ByParts):
        return codec.decoding(payload, numel)
    x_d = codec.decode(payload, numel).numpy()

    def hand_out(take: TakePart) -> None:
        for part in cut(numel):
            take(part, x_d[part].copy())

    return hand_out


def cut(numel: int) -> list[slice]:
    """Return 0..numel in slices of CHUNK_NUMEL."""
    return [slice(start, min(start + CHUNK_NUMEL, numel)) for start in range(0, numel, CHUNK_NUMEL)]
