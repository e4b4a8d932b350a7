"""Releases that were asked for and not made yet: none is made without one."""

from typing import Final

from p2ptrain.privacy.base import Privatizer, Release, Spend

BLOCK: Final = 8
"""Releases asked for at a time where more are made than were planned: who accounts for them waits for the disk
each time. Chosen: less than half of a usual round's steps."""


def unaccounted(release: Release) -> None:
    """Default callback: releases are not counted."""


class Allowance:
    """Asks `spend` for releases ahead, and counts them down. What is left when the process ends is lost: then more was
    spent than released, and never less. Not thread-safe."""

    def __init__(self, privatizer: Privatizer, *, rate: float, spend: Spend) -> None:
        self._privatizer, self._rate, self._spend = privatizer, rate, spend
        self.left = 0

    def release_of(self, count: int) -> Release | None:
        """Return what so many are; None where nothing is protected."""
        return self._privatizer.release(rate=self._rate, count=count)

    def ask_ahead(self, count: int) -> None:
        """Ask for as many releases as are needed for `count` to be left. Raises BudgetSpentError, with nothing
        changed."""
        lacking = count - self.left
        if lacking <= 0:
            return
        release = self.release_of(lacking)
        if release is not None:
            self._spend(release)
        self.left += lacking

    def take(self) -> None:
        """Take one, and ask for some more where none is left. Raises BudgetSpentError, with nothing changed."""
        if self.left < 1:
            self.ask_ahead(BLOCK)
        self.left -= 1
