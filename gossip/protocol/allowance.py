"""How many bytes may go one way: a bucket that fills at the rate of the link's owner's choosing."""

from typing import Final

BURST_S: Final = 0.25
"""What an idle link has saved up. A second's worth would show as a stutter in somebody's call; a tenth is below what a
busy event loop keeps to."""


class Allowance:
    """At most `rate` bytes a second in the long run. Who asks is served in the order of asking, so those who ask for
    small pieces by turns have equal shares."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = rate * BURST_S
        self._left = self._most
        self._at = float("-inf")

    def reserve(self, size: int, now: float) -> float:
        """Take `size` bytes, also such as are yet to come: the seconds until they may go."""
        self._left = min(self._most, self._left + (now - self._at) * self._rate) - size
        self._at = now
        return max(0.0, -self._left / self._rate)
