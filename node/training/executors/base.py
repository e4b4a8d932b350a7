"""Executors compute, so that the event loop need not. There are two: `thread` (the default) and `inline`.

An executor has two jobs. `drive` runs the inner loop, a generator that yields after every step, to its end. `offload`
runs one shorter piece beside it, such as a codec or an aggregation, and `evaluate` one that measures a model."""

from collections.abc import Callable, Generator
from enum import StrEnum, auto
from typing import Protocol, TypeVar

T = TypeVar("T")

Spent = Callable[[float], None]
"""Called with the seconds of computing that a piece of work took, also when it raised."""


class SideWork(StrEnum):
    """What a piece of work beside training is. A simulation charges each by its own price."""

    ENCODE = auto()
    DECODE = auto()
    """Reading what came in: an update, or a part of a mean."""
    AGGREGATE = auto()
    OTHER = auto()
    """Copying the model, a checkpoint, and the like."""


def not_asked(seconds: float) -> None:
    """Default callback: ignores the seconds."""


class Executor(Protocol):
    """A place to compute."""

    async def drive(self, work: Generator[None, None, T]) -> T:
        """Run `work` to its end and return what it returns. Cancellation takes effect between two steps."""

    async def offload(self, function: Callable[[], T], spent: Spent = not_asked, work: SideWork = SideWork.OTHER) -> T:
        """Run one function, which is `work`, and return its result, or raise its exception. `spent` is called with its
        seconds."""

    async def evaluate(self, function: Callable[[], T]) -> T:
        """Run one function that measures a model, as `offload`. Nothing else waits for it where it has to wait itself:
        for a user's own loop, to come to the end of its step."""
