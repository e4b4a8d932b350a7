"""The models that visitors start from: the newest few, in eight bits, each with its digest.

A model's bytes are a payload of the codec `int8` whose scales are powers of two. A block's scale then stays the same
until its largest value doubles or halves, and the whole numbers of two versions differ by little. So the difference of
two versions is short once it is deflated, and exact: added to the older version's numbers it gives the newer one's
bytes, whatever the arithmetic of the device.

    whole       = scales, 4 bytes each, fp32 little-endian; numbers, 1 byte each, signed
    difference  = zlib(scales of the newer version; numbers of the newer minus those of the older, modulo 256)
"""

import hashlib
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from p2ptrain.compress.blocks import FLOAT_TINY, SCALE_BYTES, Bytes, Floats
from p2ptrain.compress.int8 import STEPS, Int8

VERSIONS_KEPT: Final = 8
"""Models from which a visitor may have started: one that takes up to seven rounds still counts, by a third. They have a
byte a parameter each, two models in all. Chosen."""

_LEVEL: Final = 6
"""zlib's default."""


class PowerOfTwoInt8(Int8):
    """Writes payloads that `int8` reads, with powers of two as scales.

    Guarantee: each value is off by at most max|block| / 127.
    """

    def encode_rows(self, x_rw: Floats, body_rb: Bytes) -> Floats:
        """Write the rows' bodies; return their scales."""
        least_r = np.abs(x_rw).max(axis=1) / np.float32(STEPS)
        _, exponent_r = np.frexp(least_r)
        scale_r = np.where(least_r >= FLOAT_TINY, np.ldexp(np.float32(1), exponent_r), np.float32(0))
        inverse_r = np.where(scale_r > 0, 1 / np.where(scale_r > 0, scale_r, 1), 0)
        np.copyto(body_rb.view(np.int8), np.rint(x_rw * inverse_r[:, None]), casting="unsafe")
        return scale_r.astype(np.float32)


CODEC: Final = PowerOfTwoInt8()


@dataclass(frozen=True, kw_only=True)
class ModelVersion:
    """A model that visitors start from."""

    round: int
    """The round of the host that begins with it."""
    payload: bytes
    digest: bytes
    """SHA-256 of the payload."""


def version_of(x_d: torch.Tensor, round: int) -> ModelVersion:
    """Encode a model fp32 (d,), which is finite."""
    payload = CODEC.encode(x_d)
    return ModelVersion(round=round, payload=payload, digest=hashlib.sha256(payload).digest())


def difference_between(newer: bytes, older: bytes, numel: int) -> bytes:
    """Return what leads from one version's bytes to another's."""
    at = _scales_size(numel)
    before, after = (np.frombuffer(each, dtype=np.uint8)[at:] for each in (older, newer))
    return zlib.compress(newer[:at] + (after - before).tobytes(), _LEVEL)


def apply_difference(older: bytes, difference: bytes, numel: int) -> bytes:
    """Return the newer version's bytes. ValueError for a difference that is none."""
    at = _scales_size(numel)
    try:
        inflater = zlib.decompressobj()
        raw = inflater.decompress(difference, len(older) + 1)
    except zlib.error as error:
        raise ValueError(f"no difference of two models: {error}") from error
    if len(raw) != len(older) or not inflater.eof:
        raise ValueError(f"a difference of {len(raw)} bytes for a model of {len(older)}")
    before, change = (np.frombuffer(each, dtype=np.uint8)[at:] for each in (older, raw))
    return raw[:at] + (before + change).tobytes()


class ModelVersions:
    """The newest versions, by digest. Memory: VERSIONS_KEPT payloads, and as many differences to the newest.

    A model that did not move in a round is published again, and then is of the newer round. Visitors that took it in an
    earlier one go on to say that one: `had_round` accepts all from its first to its newest.
    """

    def __init__(self, numel: int) -> None:
        self._numel = numel
        self._versions: OrderedDict[bytes, ModelVersion] = OrderedDict()
        self._differences: dict[bytes, bytes] = {}
        self._first: dict[bytes, int] = {}
        """The first round of each version that is kept."""

    @property
    def newest(self) -> ModelVersion | None:
        """Return the newest version; None before the first."""
        return next(reversed(self._versions.values()), None)

    def publish(self, version: ModelVersion) -> None:
        """Make `version` the newest, and drop the oldest beyond VERSIONS_KEPT."""
        self._versions.pop(version.digest, None)
        self._first.setdefault(version.digest, version.round)
        self._versions[version.digest] = version
        self._differences.clear()
        while len(self._versions) > VERSIONS_KEPT:
            digest, _ = self._versions.popitem(last=False)
            del self._first[digest]

    def find(self, digest: bytes) -> ModelVersion | None:
        """Return a version that is kept; None where it is not."""
        return self._versions.get(digest)

    def is_kept(self, digest: bytes) -> bool:
        """Return whether a visitor may have started from this model."""
        return digest in self._versions

    def had_round(self, version: ModelVersion, round: int) -> bool:
        """Return whether a version that is kept may have been given with this round."""
        return self._first[version.digest] <= round <= version.round

    def staleness(self, version: ModelVersion) -> int:
        """Return how many versions are newer."""
        return len(self._versions) - 1 - list(self._versions).index(version.digest)

    def known_difference(self, older: ModelVersion) -> bytes | None:
        """Return the difference from a version to the newest, where it was kept."""
        return self._differences.get(older.digest)

    def keep_difference(self, older: ModelVersion, newer: ModelVersion, difference: bytes) -> None:
        """Keep what leads from `older` to `newer`, where that is still the newest."""
        if newer is self.newest and self.is_kept(older.digest):
            self._differences[older.digest] = difference


def _scales_size(numel: int) -> int:
    return SCALE_BYTES * -(-numel // CODEC.block)
