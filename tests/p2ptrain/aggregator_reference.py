"""Every aggregator once more, as the papers have it: float64 NumPy on whole vectors, loops, no Gram matrix, no chunks.

Rows with a value that is not finite are infinitely far from everybody. Of equals the first is taken.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def distances(x: Array) -> Array:
    """Euclidean (n, n)."""
    n = len(x)
    result = np.zeros((n, n))
    for i, j in itertools.combinations(range(n), 2):
        both = np.isfinite(x[i]).all() and np.isfinite(x[j]).all()
        result[i, j] = result[j, i] = np.linalg.norm(x[i] - x[j]) if both else np.inf
    return result


def distance_to(point: Array, row: Array) -> float:
    return float(np.linalg.norm(row - point)) if np.isfinite(row).all() else np.inf


def usable(x: Array) -> list[int]:
    return [i for i in range(len(x)) if np.isfinite(x[i]).all()]


def equal(x: Array) -> Array:
    return np.full(len(x), 1 / len(x))


def average(x: Array, weights: Array) -> Array:
    return sum((weight * row for weight, row in zip(weights, x, strict=True) if weight), np.zeros(x.shape[1]))


def mean(x: Array, f: int, weights: Array | None = None) -> Array:
    return average(x, equal(x) if weights is None else weights)


def _columns(x: Array, of_column: Callable[[list[float]], float]) -> Array:
    return np.array([of_column(sorted(np.inf if np.isnan(v) else float(v) for v in column)) for column in x.T])


def trimmed_mean(x: Array, f: int) -> Array:
    return _columns(x, lambda values: sum(values[f : len(values) - f]) / (len(values) - 2 * f))


def median(x: Array, f: int) -> Array:
    return _columns(x, _median)


def _median(values: list[float]) -> float:
    n = len(values)
    return values[(n - 1) // 2] / 2 + values[n // 2] / 2


def meamed(x: Array, f: int) -> Array:
    def of_column(values: list[float]) -> float:
        middle = _median(values)
        kept = sorted(values, key=lambda v: (abs(v / 2 - middle / 2), v))[: len(values) - f]
        return sum(kept) / len(kept)

    return _columns(x, of_column)


def krum_scores(x: Array, f: int) -> list[float]:
    squares = distances(x) ** 2
    return [sum(sorted(np.delete(row, i))[: len(x) - f - 2]) for i, row in enumerate(squares)]


def krum(x: Array, f: int) -> Array:
    scores = krum_scores(x, f)
    return x[scores.index(min(scores))]


def multi_krum(x: Array, f: int) -> Array:
    best = np.argsort(krum_scores(x, f), kind="stable")[: len(x) - f]
    return x[best].mean(axis=0)


def spread_out(x: Array, weights: Array, point: Array) -> float:
    """What the geometric median makes least."""
    return float(sum(weights[i] * np.linalg.norm(x[i] - point) for i in usable(x)))


def geometric_median(x: Array, f: int, weights: Array | None = None, steps: int = 2000) -> Array:
    """Weiszfeld's steps with Vardi and Zhang's way out of an input, from the mean."""
    weights = equal(x) if weights is None else weights
    kept = usable(x)
    point = average(x[kept], weights[kept] / weights[kept].sum())
    for _ in range(steps):
        gaps = np.array([np.linalg.norm(x[i] - point) for i in kept])
        here = gaps <= 1e-12 * np.abs(x[kept]).max()
        pulls = np.where(here, 0, weights[kept] / np.where(here, 1, gaps))
        if not pulls.any():
            break
        target = average(x[kept], pulls / pulls.sum())
        force = np.linalg.norm(average(x[kept] - point, pulls))
        stay = min(1.0, weights[kept][here].sum() / force) if force > 0 else 1.0
        before, point = point, (1 - stay) * target + stay * point
        if np.linalg.norm(point - before) <= 1e-14 * np.abs(x[kept]).max():
            break
    return point


def closest(x: Array, size: int) -> list[int]:
    """The `size` rows nearest to the row whose size-th nearest is nearest."""
    gaps = distances(x)
    for i in range(len(x)):
        if i not in usable(x):
            gaps[i, i] = np.inf
    middle = int(np.argmin(np.sort(gaps, axis=1)[:, size - 1]))
    gaps[middle, middle] = 0
    return [int(i) for i in np.argsort(gaps[middle], kind="stable")[:size]]


def clip_factor(gap: float, tau: float) -> float:
    if gap == np.inf:
        return 0.0
    return 1.0 if gap <= tau else tau / gap


def centered_clipping(
    x: Array, f: int, tau: float | None = None, steps: int = 10, weights: Array | None = None
) -> Array:
    weights = equal(x) if weights is None else weights
    point = x[closest(x, len(x) - f)].mean(axis=0)
    for _ in range(steps):
        gaps = [distance_to(point, row) for row in x]
        limit = sorted(gaps)[(len(x) - 1) // 2] if tau is None else tau
        pull = [weights[i] * clip_factor(gaps[i], limit) for i in range(len(x))]
        point = point + sum((pull[i] * (x[i] - point) for i in usable(x)), np.zeros(x.shape[1]))
    return point


def least_diameters(x: Array, f: int) -> tuple[float, list[Array]]:
    """The least diameter of n - f rows, and the means of all the subsets that have it."""
    gaps = distances(x)
    subsets = list(itertools.combinations(range(len(x)), len(x) - f))
    diameters = [max((gaps[i, j] for i, j in itertools.combinations(each, 2)), default=0.0) for each in subsets]
    least = min(diameters)
    close = [each for each, size in zip(subsets, diameters, strict=True) if size <= least * (1 + 1e-5)]
    return least, [x[list(each)].mean(axis=0) for each in close]


def _without_farthest(x: Array, f: int, weights: Array, first: int) -> Array:
    left = list(range(len(x)))
    for _ in range(f):
        finite = [i for i in left if i in usable(x)]
        point = average(x[finite], weights[finite] / weights[finite].sum())
        gaps = [distance_to(point, x[i]) for i in left[first:]]
        left.remove(left[first + gaps.index(max(gaps))])
    return average(x[left], weights[left] / weights[left].sum())


def faba(x: Array, f: int, weights: Array | None = None) -> Array:
    return _without_farthest(x, f, equal(x) if weights is None else weights, 0)


def ios(x: Array, f: int, weights: Array | None = None) -> Array:
    return _without_farthest(x, f, equal(x) if weights is None else weights, 1)


def caf(x: Array, f: int) -> Array:
    trust = np.array([1.0 if i in usable(x) else 0.0 for i in range(len(x))])
    rows = np.where(trust[:, None] > 0, x, 0)
    best, least = average(rows, trust / trust.sum()), np.inf
    while trust.sum() > len(x) - 2 * f:
        centre = average(rows, trust / trust.sum())
        centred = rows - centre
        covariance = (trust[:, None] * centred).T @ centred / trust.sum()
        values, vectors = np.linalg.eigh(covariance)
        if values[-1] < least:
            best, least = centre, values[-1]
        projected = np.where(trust > 0, (centred @ vectors[:, -1]) ** 2, 0)
        if projected.max() <= 0:
            break
        trust = trust * (1 - projected / projected.max())
    return best


def _others(x: Array, weights: Array) -> list[tuple[float, float, int]]:
    """Distance from row 0, weight and row of the others, nearest first."""
    gaps = distances(x)[0]
    return sorted(((gaps[j], weights[j], j) for j in range(1, len(x))), key=lambda each: each[0])


def _heaviest(weights: Array, f: int) -> float:
    return float(sum(sorted(weights[1:], reverse=True)[:f]))


def _follow(x: Array, weights: Array, factors: dict[int, float]) -> Array:
    return x[0] + sum((weights[j] * c * (x[j] - x[0]) for j, c in factors.items() if c > 0), np.zeros(x.shape[1]))


def clipped_gossip(x: Array, f: int, tau: float | None = None, weights: Array | None = None) -> Array:
    weights = equal(x) if weights is None else weights
    liars = _heaviest(weights, f)
    if tau is None and liars == 0:
        tau = np.inf
    if tau is None:
        left, total = weights[1:].sum() - liars, 0.0
        for gap, weight, _ in _others(x, weights):
            part = min(weight, left)
            if part > 1e-12:
                total += part * gap**2
                left -= part
        tau = (total / liars) ** 0.5
    return _follow(x, weights, {j: clip_factor(gap, tau) for gap, _, j in _others(x, weights)})


def cs_plus(x: Array, f: int, weights: Array | None = None) -> Array:
    weights = equal(x) if weights is None else weights
    left, tau = weights[1:].sum() - 2 * _heaviest(weights, f), 0.0
    for gap, weight, _ in _others(x, weights):
        left -= weight
        if left < -1e-9:
            break
        tau = gap
    return _follow(x, weights, {j: clip_factor(gap, tau) for gap, _, j in _others(x, weights)})


def gts(x: Array, f: int, weights: Array | None = None) -> Array:
    weights = equal(x) if weights is None else weights
    left, factors = weights[1:].sum() - _heaviest(weights, f), {}
    for gap, weight, j in _others(x, weights):
        factors[j] = min(1.0, max(0.0, left / weight)) if gap < np.inf and weight else 0.0
        left -= weight
    return _follow(x, weights, {j: c if c > 1e-9 else 0.0 for j, c in factors.items()})


def nnm(x: Array, f: int) -> Array:
    """The mixtures. A row that is not finite becomes the mean of the first n - f that are."""
    gaps = distances(x)
    mixed = []
    for i in range(len(x)):
        order = sorted(usable(x), key=lambda j, i=i: gaps[i, j] if i in usable(x) else 0)
        mixed.append(x[order[: len(x) - f]].mean(axis=0))
    return np.array(mixed)


def bucketing(x: Array, buckets: Sequence[Sequence[int]]) -> Array:
    return np.array([x[list(bucket)].mean(axis=0) for bucket in buckets])


def _shortened(x: Array, limit: float) -> Array:
    origin = np.zeros(x.shape[1])
    factors = [clip_factor(distance_to(origin, row), limit) for row in x]
    return np.array([factor * row if factor else origin for factor, row in zip(factors, x, strict=True)])


def clipping(x: Array, f: int, tau: float | None = None) -> Array:
    lengths = sorted(distance_to(np.zeros(x.shape[1]), row) for row in x)
    middle = (lengths[(len(x) - 1) // 2] + lengths[len(x) // 2]) / 2
    return _shortened(x, middle if tau is None else tau)


def arc(x: Array, f: int) -> Array:
    lengths = sorted(distance_to(np.zeros(x.shape[1]), row) for row in x)
    longest = int(np.floor(2 * f / len(x) * (len(x) - f) + 1e-9))
    return _shortened(x, lengths[len(x) - longest - 1])
