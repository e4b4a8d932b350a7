"""How long the parts of one closing of a round took."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import trio


class PartTimes:
    """Seconds by part: publish, collect, aggregate; for an all-reduce only collect."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of the parts that ended since the last `clear`."""
        return self._seconds

    def clear(self) -> None:
        """Forget all parts, as another closing begins."""
        self._seconds.clear()

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Time the block as `part`. A block that raises is not counted."""
        began = trio.current_time()
        yield
        self._seconds[part] = trio.current_time() - began
