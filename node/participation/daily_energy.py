"""Joules that training took since midnight, over restarts of the node."""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Final

from gossip.core.atomic_file import write_atomic

SAVE_EVERY_S: Final = 60.0
"""Seconds between two writes of the day's sum: a minute of a killed node may be forgotten. Chosen."""


class DailyEnergy:
    """Adds up what a meter counts, a local day at a time, and keeps the sum in a file."""

    def __init__(self, path: Path | None, joules: Callable[[], float]) -> None:
        """`path`: where the sum is kept; None: nowhere. `joules`: total of this process so far. A file that cannot be
        read counts as none."""
        self._path, self._joules = path, joules
        self._seen = joules()
        self._day, self._sum = self._kept()
        self._saved_at = -math.inf

    def today(self, now: float) -> float:
        """Return the joules since midnight (`now`: Unix seconds). Where the disk does not take them, a restart forgets
        them; the cap holds until then."""
        seen = self._joules()
        day = _day_of(now)
        if day != self._day:
            self._day, self._sum = day, 0.0
        self._sum += max(0.0, seen - self._seen)
        self._seen = seen
        if self._path is not None and abs(now - self._saved_at) >= SAVE_EVERY_S:
            self._saved_at = now
            with suppress(OSError):
                write_atomic(self._path, json.dumps({"day": self._day.isoformat(), "joules": self._sum}).encode())
        return self._sum

    def _kept(self) -> tuple[date, float]:
        with suppress(OSError, ValueError, TypeError, KeyError):
            if self._path is not None:
                told = json.loads(self._path.read_bytes())
                joules = float(told["joules"])
                if math.isfinite(joules) and joules >= 0:
                    return date.fromisoformat(told["day"]), joules
        return date.min, 0.0


def _day_of(now: float) -> date:
    return datetime.fromtimestamp(now).astimezone().date()
