"""How long the parts of one closing of a round took."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import trio


class PartTimes:
    """Seconds by part: publish, collect, aggregate; of an all-reduce collect alone."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        """Of the parts that are over since the last `clear`."""
        return self._seconds

    def clear(self) -> None:
        """Begin another closing."""
        self._seconds.clear()

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Time the block as `part`. One that raises is not a part that is over."""
        began = trio.current_time()
        yield
        self._seconds[part] = trio.current_time() - began
