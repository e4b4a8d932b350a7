"""Token buckets: how much may be done at once, and in the long run, by one or by each of many.

A token stands for whatever is counted: a request, a byte, a second of computing. A bucket holds at most `burst` tokens
and is refilled by time. Call `take` for what can be refused, and `reserve` for what can wait. Call `spend` for a cost
that is known only afterwards (how long reading an update took); it may leave a debt that later tokens pay.
"""

from typing import Final

MAX_NAMES: Final = 1024
"""Buckets kept; the one untouched longest is dropped first, and would be nearly full again by then."""


class TokenBucket:
    """`burst` tokens at once, and `per_s` a second in the long run. Callers are served in the order of asking, so those
    who take turns with small requests have equal shares."""

    def __init__(self, *, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at = float("-inf")

    def left(self, now: float) -> float:
        """Return how many tokens there are; below 0 a debt."""
        return min(self._burst, self._left + max(0.0, now - self._at) * self._per_s)

    def take(self, amount: float, now: float) -> bool:
        """Take so many tokens; False, and none taken, when there are fewer."""
        granted = self.left(now) >= amount
        if granted:
            self.spend(amount, now)
        return granted

    def spend(self, amount: float, now: float) -> None:
        """Take so many tokens, even if that leaves a debt."""
        self._left, self._at = self.left(now) - amount, now

    def reserve(self, amount: float, now: float) -> float:
        """Take so many tokens, future ones included; return the seconds until they are there."""
        self.spend(amount, now)
        return self.pause(now)

    def pause(self, now: float) -> float:
        """Return the seconds until a debt is paid; 0 where there is none."""
        return max(0.0, -self.left(now) / self._per_s)


class KeyedTokenBucket:
    """One bucket per name: `burst` tokens at once, and `per_s` a second in the long run, for each. At most
    MAX_NAMES; one that is full again is as good as none, and is dropped once it is the one untouched longest."""

    def __init__(self, *, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def left(self, name: str, now: float) -> float:
        """Return the tokens of `name`; below 0 a debt."""
        left, at = self._left.get(name, (self._burst, now))
        return min(self._burst, left + max(0.0, now - at) * self._per_s)  # a wall clock may be set back

    def take(self, name: str, now: float, amount: float = 1) -> bool:
        """Take so many tokens of `name`; False, and none taken, when there are fewer."""
        left = self.left(name, now)
        granted = left >= amount
        self._keep(name, left - amount if granted else left, now)
        return granted

    def has(self, name: str, now: float, amount: float = 1) -> bool:
        """Return whether there are so many tokens of `name`; none is taken."""
        return self.left(name, now) >= amount

    def spend(self, name: str, amount: float, now: float) -> None:
        """Take so many tokens of `name`, even if that leaves a debt."""
        self._keep(name, self.left(name, now) - amount, now)

    def reserve(self, name: str, now: float, amount: float = 1) -> float:
        """Take so many tokens of `name`, future ones included; return the seconds until they are there."""
        self.spend(name, amount, now)
        return self.pause(name, now)

    def pause(self, name: str, now: float) -> float:
        """Return the seconds until a debt of `name` is paid; 0 where there is none."""
        return max(0.0, -self.left(name, now) / self._per_s)

    def _keep(self, name: str, left: float, now: float) -> None:
        self._left.pop(name, None)
        self._left[name] = (left, now)
        while self._left:
            oldest = next(iter(self._left))
            if len(self._left) <= MAX_NAMES and self.left(oldest, now) < self._burst:
                return
            del self._left[oldest]
