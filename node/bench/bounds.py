"""What the aggregators cannot be faster than: the bytes, the compare-exchanges, the Gram matrix.

A rule that is a network of minima and maxima reads the vectors once, which takes a plain mean, and compares: `bound` is
both together, with compare-exchanges timed on chunks that stay in a cache. A rule about distances needs the product of
the matrix with itself: `gram`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from node.bench.timing import Work, in_turns, settled
from p2ptrain.aggregate.columns import WIDTH
from p2ptrain.aggregate.sorting_networks import Program, middle

NETWORKS: dict[str, Callable[[int, int], Program]] = {
    "trimmed_mean": middle,
    "median": lambda n, f: middle(n, (n - 1) // 2),
}
"""The rules whose operations can be counted, for f >= 1."""
FP32_BYTES = 4
EXCHANGES = 1000
"""Compare-exchanges in one timing of them: a single one is over in microseconds."""


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of time for one matrix (n, d), in its plain means."""

    n: int
    gram: float
    copy_traffic: float
    """Bytes that a copy reads and writes a second."""
    exchange: float | None
    """One compare-exchange of all d coordinates. None on a GPU, where chunks are another matter."""

    def of(self, name: str, f: int) -> float | None:
        """Return the least time that the rule can take; None where its operations cannot be counted."""
        if name not in NETWORKS or not f or self.exchange is None:
            return None
        return 1 + len(NETWORKS[name](self.n, f).steps) / 2 * self.exchange


def measure(x_nd: torch.Tensor, threads: int, rounds: int) -> Bounds:
    """Time the parts beside the mean of these vectors, with so many threads."""
    n, d = x_nd.shape
    device, copy_d = x_nd.device, torch.empty_like(x_nd[0])
    works: dict[str, Work] = {
        "gram": settled(partial(torch.mm, x_nd, x_nd.T), device),
        "copy": settled(partial(copy_d.copy_, x_nd[0]), device),
    }
    if device.type == "cpu":
        works["exchange"] = partial(_exchange, torch.randn(3, WIDTH))
    taken = in_turns(settled(partial(torch.mean, x_nd, dim=0), device), works, rounds=rounds)
    exchange = taken["exchange"].ratio / EXCHANGES * d / WIDTH / threads if "exchange" in taken else None
    return Bounds(n, taken["gram"].ratio, 2 * FP32_BYTES * d / taken["copy"].seconds, exchange)


def _exchange(x_3c: torch.Tensor) -> None:
    low_c, high_c, spare_c = x_3c
    for _ in range(EXCHANGES):
        torch.minimum(low_c, high_c, out=spare_c)
        torch.maximum(low_c, high_c, out=high_c)
        low_c, spare_c = spare_c, low_c
