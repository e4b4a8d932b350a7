"""The garbage collector looks for cycles far more seldom while a simulation runs.

Python's own thresholds are for programs that hold little. A simulation holds the objects of all nodes, and each of
their messages makes a few hundred new ones: the collector looked through all of it a hundred times for each node.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from node.system.gc_tuning import left_out

THRESHOLDS: Final = (50_000, 20, 20)
"""New objects until the youngest are looked through, and how often that is done until the next generation is. At a
kilobyte each the youngest are 50 MB at most."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Leave out what is there already, and collect what comes at THRESHOLDS. Which objects go when is the same in every
    run, as they are counted, not timed."""
    before = gc.get_threshold()
    gc.collect()
    with left_out():  # what is left is torch's and ours
        gc.set_threshold(*THRESHOLDS)
        try:
            yield
        finally:
            gc.set_threshold(*before)
