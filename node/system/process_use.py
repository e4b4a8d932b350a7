"""CPU time and memory of a node: of its own process, and of the one that trains where that is another."""

import os
from collections.abc import Callable
from contextlib import suppress

import psutil


def _nobody() -> int | None:
    """Default: there is no other process."""
    return None


class ProcessUse:
    """`other` returns the number of the other process, which may change; None where there is none."""

    def __init__(self, other: Callable[[], int | None] = _nobody) -> None:
        self._own, self._other = psutil.Process(os.getpid()), other
        self._cpu_s: dict[int, float] = {}
        """Newest CPU seconds of other processes, by number: those of a dead one stay counted."""

    def rss_bytes(self) -> int:
        """Return the resident memory of both. What both have mapped, such as libraries, counts twice."""
        other = self._there()
        total = int(self._own.memory_info().rss)
        with suppress(psutil.Error):
            total += 0 if other is None else int(other.memory_info().rss)
        return total

    def cpu_s(self) -> float:
        """Return the CPU seconds of all threads of both so far."""
        other = self._there()
        with suppress(psutil.Error):
            if other is not None:
                self._cpu_s[other.pid] = float(sum(other.cpu_times()[:2]))
        return float(sum(self._own.cpu_times()[:2])) + sum(self._cpu_s.values())

    def _there(self) -> psutil.Process | None:
        pid = self._other()
        try:
            return None if pid is None else psutil.Process(pid)
        except psutil.Error:  # it has just ended
            return None
