"""Loops compiled for the processor at hand, by numba where it is installed: `pip install p2ptrain[fast]`.

torch and NumPy do one operation at a time and carry every value through the caches in between. A compiled loop does all
of them while the values are in registers. Each loop has a plain twin that gives the same result without numba; which of
the two ran shows in nothing but the time, or, where a loop's file says so, in the last bits of a sum.
"""

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

WORTH = 1 << 23
"""Values from which a loop made for one shape pays: compiling takes half a second to a few seconds, once a process."""


@lru_cache(maxsize=1)
def available() -> bool:
    """Return whether numba is there, and goes with the NumPy that is there."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return False
    return True


def compiled(function: F, *, reorder: bool = False) -> F:
    """Return the function compiled at its first call, for the types it is then called with. It runs without the GIL.

    Nothing is fused, and sums keep their order, so that a processor's width does not show in the result. `reorder` lets
    sums be taken in as many parts as the processor's registers hold: for what may differ between machines anyway.
    """
    numba = importlib.import_module("numba")
    made: F = numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "nsz"} if reorder else False)(function)
    return made
