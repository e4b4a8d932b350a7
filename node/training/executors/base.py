"""Where computing happens, so that the event loop never does it. Members: `thread` (the default) and `inline`.

An executor has two jobs. `drive` runs the inner loop, a generator that yields after every step, to its end. `offload`
runs one shorter piece beside it: a codec, an aggregation, an evaluation."""

from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

T = TypeVar("T")

Spent = Callable[[float], None]
"""Told how many seconds of computing something took; also where it raised."""


def not_asked(seconds: float) -> None:
    """Default of those who do not ask what something took."""


class Executor(Protocol):
    """A place to compute."""

    async def drive(self, work: Generator[None, None, T]) -> T:
        """Run `work` to its end and return what it returns. Cancellation takes effect between two steps."""

    async def offload(self, function: Callable[[], T], spent: Spent = not_asked) -> T:
        """Run one function and return its result; what it raises is raised here. `spent` is told what it took."""
