"""Memory that was freed, given back to the system.

glibc keeps what is freed in pieces below a threshold, which it raises to 32 MiB by itself, for later ones: the tensors
from which a model was built (twice its size, as they are drawn in fp64), chunks of codecs and payloads in the arena of
every thread. That is resident until it is asked for. Other C libraries return it by themselves, or cannot be asked.
"""

import ctypes
import sys
from contextlib import suppress
from functools import cache
from typing import Any, Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
"""glibc's names in malloc.h."""

LARGE_PIECE: Final = 16 << 20
"""Bytes from which a piece is the system's again as soon as it is freed: payloads of models with 64M parameters and
more. The gradients of single matrices, which come and go at every step, are smaller up to 300M. Chosen."""

ARENAS: Final = 4
"""Arenas of all threads. Those that allocate much are training, a codec's helpers, and what receives. Chosen."""


SMALL_PIECE: Final = 1 << 20
"""The same of a node with a budget of memory: more calls to the system, and less that is kept. Chosen."""


def keep_little(piece: int = LARGE_PIECE) -> None:
    """Let the C library keep little of what is freed from now on, and nothing of pieces of so many bytes. Call it
    before threads begin."""
    library = _library()
    if library is not None:
        library.mallopt(M_MMAP_THRESHOLD, piece)
        library.mallopt(M_TRIM_THRESHOLD, piece)
        library.mallopt(M_ARENA_MAX, ARENAS)


def trim() -> None:
    """Give back what is free now."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)


@cache
def _library() -> Any:
    """The C library, where it is glibc."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            if library.mallopt and library.malloc_trim:
                return library
    return None
