"""Quiet hours by the wall clock of the place: the one thing here that is about people's days."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from gossip.core.quiet_hours import parse_all

QUIET_LOOK_S: Final = 20.0
"""How often it is looked whether quiet hours are over: they are given to the minute, and no clock wakes anybody."""


def local_minute() -> int:
    """The minute of the day, where we are."""
    now = time.localtime()
    return now.tm_hour * 60 + now.tm_min


def quiet_by(hours: Iterable[str], minute_of_day: Callable[[], int]) -> Callable[[], bool]:
    """Whether it is a quiet hour now. Raises LocalError for hours that are none."""
    known = parse_all(hours)
    return lambda: any(each.contain(minute_of_day()) for each in known)
