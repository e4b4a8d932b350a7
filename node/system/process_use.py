"""CPU time and memory of a node: of its own process, and of the one that trains where that is another."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

STATUS: Final = Path("/proc/self/status")


def held_bytes() -> int:
    """Return the memory of this process that the system cannot take back: anonymous and shared, without pages of files.
    All that is resident, where the system does not tell them apart."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return int(psutil.Process().memory_info().rss)
    found = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    if not found:
        return int(psutil.Process().memory_info().rss)
    return sum(int(value.split()[0]) * 1024 for value in found.values())


def cores_of_process() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
