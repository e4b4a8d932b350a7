"""How often each of many may do something: a bucket of tokens a name, refilled by time."""

from collections import OrderedDict
from typing import Final

MAX_NAMES: Final = 1024
"""Buckets kept; the one untouched longest goes first, and would be nearly full again by then."""


class Quota:
    """`burst` at once, and `per_s` a second in the long run."""

    def __init__(self, *, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def take(self, name: str, now: float) -> bool:
        """Take a token of `name`; False when there is none."""
        left = self._refilled(name, now)
        granted = left >= 1
        self._keep(name, left - granted, now)
        return granted

    def has(self, name: str, now: float) -> bool:
        """Whether there is a token of `name`; nothing is taken."""
        return self._refilled(name, now) >= 1

    def reserve(self, name: str, now: float) -> float:
        """Take a token of `name`, also one that is yet to come: the seconds until it is there."""
        left = self._refilled(name, now) - 1
        self._keep(name, left, now)
        return max(0.0, -left / self._per_s)

    def _refilled(self, name: str, now: float) -> float:
        left, at = self._left.get(name, (self._burst, now))
        return min(self._burst, left + (now - at) * self._per_s)

    def _keep(self, name: str, left: float, now: float) -> None:
        self._left[name] = (left, now)
        self._left.move_to_end(name)
        while len(self._left) > MAX_NAMES:
            self._left.popitem(last=False)
