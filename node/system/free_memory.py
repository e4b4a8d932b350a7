"""Memory that was freed, given back to the system.

glibc keeps what is freed in pieces below 32 MiB for later ones: the tensors from which a model was built (twice its
size, as they are drawn in fp64), chunks of codecs in every thread's own arena, payloads. That is resident until it is
asked for. Other C libraries return it by themselves, or cannot be asked.
"""

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache


def trim() -> None:
    """Give back what is free."""
    _trimmer()(0)


@cache
def _trimmer() -> Callable[[int], object]:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            trimmer: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
            return trimmer
    return lambda padding: None
