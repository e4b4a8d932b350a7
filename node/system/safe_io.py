"""Lines on a stream whose reader may go away (`| head`, a full disk): training goes on, and the rest goes nowhere.

Nothing may be left in the stream's buffer either, or the interpreter fails at its end when it flushes it: hence the
stream's descriptor is put on the null device.
"""

import os
import select
from contextlib import suppress
from typing import IO


def say(stream: IO[str], text: str) -> bool:
    """Write and flush; return whether the stream still works. When that fails nothing more is written to it."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # ValueError: closed
        silence(stream)
        return False
    return True


def silence(stream: IO[str]) -> None:
    """Discard whatever is written to the stream from now on."""
    with suppress(OSError, ValueError):  # a stream without a descriptor, or closed
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def reader_is_gone(stream: IO[str]) -> bool:
    """Return whether nobody can read what is written to a pipe any more, without writing to it."""
    with suppress(OSError, ValueError, AttributeError):  # no descriptor, or a system without poll
        looked = select.poll()
        looked.register(stream.fileno(), 0)  # it tells of errors alone
        return any(event & select.POLLERR for _, event in looked.poll(0))
    return False
