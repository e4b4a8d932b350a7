"""Class-conditional statistics of one member's inputs: count, mean and variance by class, as bytes of a fixed layout.

Inputs are scaled from the task's declared range to [-1, 1], and cut there: so one example's share of the sums has a
bounded norm, which the Gaussian mechanism needs. With k classes of d coordinates one example is

    (a, x, b x^2)    a = sqrt(d) / 2,  b = 1 / 2,  |x_i| <= 1:    norm <= sqrt(d / 4 + d + d / 4) = sqrt(1.5 d)

of which a and x belong to its class, and x^2 to the sum over all classes where noise is added: a variance of each class
would need as much noise for a share of the examples.
"""

import math
import struct
from dataclasses import dataclass
from typing import Final

import torch

from p2ptrain.privacy.base import NormalSource, Release

MECHANISM: Final = "class_statistics"
"""Name of the release in a privacy ledger."""

LEAST_EXAMPLES: Final = 5
"""Examples of a class below which a member states nothing of it: the mean of one example would be that example."""

LEAST_VARIANCE: Final = 1e-2
"""Of a coordinate in [-1, 1], so that a constant one is drawn with a little spread, as an augmentation. Chosen."""

COUNT_WEIGHT: Final = 0.5
"""Of an example's count, over sqrt(d): a."""
SQUARE_WEIGHT: Final = 0.5
"""Of its squares: b. Both chosen: the norm is then 1.22 times that of the means alone."""

MAX_CLASSES: Final = 1 << 12
MAX_COORDINATES: Final = 1 << 20

_HEAD: Final = struct.Struct("<4sII")
_MAGIC: Final = b"pcs1"


@dataclass(frozen=True, kw_only=True)
class ClassStatistics:
    """What one member states. A class with count 0 is one of which it states nothing."""

    counts_k: torch.Tensor
    """Examples of each class, fp32 (k,); approximate where noise was added."""
    means_kd: torch.Tensor
    """fp32 (k, d), in [-1, 1]."""
    variances_kd: torch.Tensor
    """fp32 (k, d), in [0, 1]."""

    def encode(self) -> bytes:
        """Return the wire form: header, counts as fp32, means and variances as fp16, little-endian."""
        classes, coordinates = self.means_kd.shape
        numbers = (self.counts_k.float(), self.means_kd.half(), self.variances_kd.half())
        return _HEAD.pack(_MAGIC, classes, coordinates) + b"".join(it.contiguous().numpy().tobytes() for it in numbers)


def encoded_bytes(classes: int, coordinates: int) -> int:
    """Return the length of the wire form."""
    return _HEAD.size + classes * (4 + 4 * coordinates)


def parse_statistics(data: bytes, *, classes: int, coordinates: int) -> ClassStatistics:
    """Parse the wire form of statistics of this shape. Raises ValueError for anything else, and for numbers that no
    inputs have."""
    if len(data) != encoded_bytes(classes, coordinates) or data[: _HEAD.size] != _HEAD.pack(
        _MAGIC, classes, coordinates
    ):
        raise ValueError(f"no statistics of {classes} classes with {coordinates} coordinates each")
    size = classes * coordinates
    body = bytearray(data[_HEAD.size :])
    counts_k = torch.frombuffer(body, dtype=torch.float32, count=classes).clone()
    halves = torch.frombuffer(body, dtype=torch.float16, offset=4 * classes, count=2 * size).float()
    means_kd, variances_kd = halves[:size].view(classes, coordinates), halves[size:].view(classes, coordinates)
    for numbers, low, high in ((counts_k, 0.0, 2.0**53), (means_kd, -1.0, 1.0), (variances_kd, 0.0, 1.0)):
        if not bool(((numbers >= low) & (numbers <= high)).all()):  # false for nan, too
            raise ValueError("statistics with numbers that no inputs have")
    return ClassStatistics(counts_k=counts_k, means_kd=means_kd, variances_kd=variances_kd)


class ClassSums:
    """Sums over a member's examples of each class, from which its statistics follow. `low` and `high` are the range of
    the task's inputs."""

    def __init__(self, *, classes: int, coordinates: int, low: float, high: float) -> None:
        """Raises ValueError for shapes beyond the bounds, and for a range that is none."""
        if not (1 <= classes <= MAX_CLASSES and 1 <= coordinates <= MAX_COORDINATES):
            raise ValueError(f"statistics of {classes} classes with {coordinates} coordinates each are too large")
        if not -math.inf < low < high < math.inf:
            raise ValueError(f"inputs have no range from {low} to {high}")
        self._low, self._high = low, high
        self._counts_k = torch.zeros(classes, dtype=torch.float64)
        self._sums_kd = torch.zeros(classes, coordinates, dtype=torch.float64)
        self._squares_kd = torch.zeros(classes, coordinates, dtype=torch.float64)

    def add(self, inputs: torch.Tensor, labels_n: torch.Tensor) -> None:
        """Add examples: numbers (n, ...) and int64 (n,). What is not finite counts as the middle of the range. Raises
        ValueError for labels that name no class."""
        labels_n = labels_n.long()
        if labels_n.numel() and not 0 <= int(labels_n.min()) <= int(labels_n.max()) < len(self._counts_k):
            raise ValueError(f"a label beyond the task's {len(self._counts_k)} classes")
        middle, half = (self._high + self._low) / 2, (self._high - self._low) / 2
        scaled_nd = (inputs.detach().double().reshape(len(inputs), -1) - middle) / half
        scaled_nd = scaled_nd.nan_to_num(0.0, 0.0, 0.0).clamp(-1.0, 1.0)
        self._counts_k += torch.bincount(labels_n, minlength=len(self._counts_k))
        self._sums_kd.index_add_(0, labels_n, scaled_nd)
        self._squares_kd.index_add_(0, labels_n, scaled_nd.square())

    def statistics(self) -> ClassStatistics:
        """Return the statistics as they are. Classes of fewer than LEAST_EXAMPLES are left out."""
        counts_k1 = self._counts_k.clamp_min(1.0).unsqueeze(1)
        means_kd = self._sums_kd / counts_k1
        return _stated(self._counts_k, means_kd, self._squares_kd / counts_k1 - means_kd.square())

    def noised(self, noise: float, source: NormalSource) -> ClassStatistics:
        """Return statistics of sums with Gaussian noise, whose standard deviation is `noise` times the largest norm of
        one example's share. Write `release_of(noise)` down before. The rest is computed from the noised sums alone."""
        classes, coordinates = self._sums_kd.shape
        root = math.sqrt(coordinates)
        norm = root * math.sqrt(1 + COUNT_WEIGHT**2 + SQUARE_WEIGHT**2)
        drawn = source.normals(classes + classes * coordinates + coordinates).double() * (noise * norm)
        counts, means, squares = torch.split(drawn, [classes, classes * coordinates, coordinates])
        counts_k = self._counts_k + counts / (COUNT_WEIGHT * root)
        known_k1 = counts_k.clamp_min(1.0).unsqueeze(1)
        means_kd = ((self._sums_kd + means.view(classes, coordinates)) / known_k1).clamp(-1.0, 1.0)
        within_d = self._squares_kd.sum(0) + squares / SQUARE_WEIGHT - (known_k1 * means_kd.square()).sum(0)
        variances_d = within_d / known_k1.sum()
        return _stated(counts_k, means_kd, variances_d.expand(classes, coordinates))


def release_of(noise: float) -> Release:
    """Return what stating noised statistics once spends."""
    return Release(mechanism=MECHANISM, noise=noise, rate=1.0, count=1)


def _stated(counts_k: torch.Tensor, means_kd: torch.Tensor, variances_kd: torch.Tensor) -> ClassStatistics:
    there_k = counts_k >= LEAST_EXAMPLES
    there_k1 = there_k.unsqueeze(1)
    return ClassStatistics(
        counts_k=torch.where(there_k, counts_k, 0.0).float(),
        means_kd=torch.where(there_k1, means_kd, 0.0).clamp(-1.0, 1.0).float(),
        variances_kd=torch.where(there_k1, variances_kd, 0.0).clamp(0.0, 1.0).float(),
    )
