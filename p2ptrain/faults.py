"""Whose code a fault lies in, and how much memory was asked for. Without torch.

A task is anybody's code, called from within ours and calling torch, so the place that its author has to look at is the
innermost frame of a traceback that belongs neither to this program nor to a library.
"""

import re
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType
from typing import Final

OURS: Final = frozenset({"p2ptrain", "gossip", "node"})
"""The packages of this program."""

MAX_REASON_CHARS: Final = 300
"""Of another's message in ours: torch's longest ones list every key of a state. Chosen: three lines of a terminal."""

_LIBRARIES: Final = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))

_ASKED: Final = (
    re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|[KMGT]i?B)"),  # torch on CUDA, MPS and the CPU
    re.compile(r"Unable to allocate ([\d.]+) ?(bytes|[KMGT]i?B)"),  # numpy
)
_NO_MEMORY: Final = ("can't allocate memory", "not enough memory", "out of memory")
_POWERS: Final = {"bytes": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_LOST: Final = (
    *("unspecified launch failure", "illegal memory access", "misaligned address", "launch timed out"),
    *("ecc error", "fallen off the bus", "device lost", "device unavailable", "context is destroyed", "unknown error"),
)
"""What CUDA and HIP say when a process can use its device no more. After a device-side assert it cannot either, but
that is a mistake of the program's, which is told with its place."""


_plug_ins: set[str] = set()
"""Packages of plug-ins that were loaded: installed like libraries, and anybody's code all the same."""


def note_plug_in(module: str) -> None:
    """From now on a fault in `module`'s package is its author's."""
    _plug_ins.add(module.partition(".")[0])


def place_of(error: BaseException, package: str = "") -> str:
    """`file:line` of the user's code that `error` comes from, the innermost; empty where there is none. `package` is
    theirs wherever it is installed."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_theirs(frame, package)]
    return f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}" if frames else ""


def called_ours(error: BaseException) -> bool:
    """Return whether the innermost frame that is no library's is of ours."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _top(frame) in OURS:
            return True
        if _is_theirs(frame, ""):
            return False
    return False


def what_of(error: BaseException) -> str:
    """Type and message, in one line of bounded length."""
    reason = " ".join(str(error).split())
    if len(reason) > MAX_REASON_CHARS:
        reason = f"{reason[: MAX_REASON_CHARS - 3]}..."
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Of the machine or of a device. The CPU's allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = str(error)
    return isinstance(error, RuntimeError) and (any(it in words for it in _NO_MEMORY))


def lacks_memory(error: BaseException) -> bool:
    """Return whether memory ran out, also where another error was raised from that one."""
    return any(is_out_of_memory(each) for each in (error, error.__cause__) if each is not None)


def is_device_lost(error: BaseException) -> bool:
    """Return whether the device that computes is of no more use to this process. Older releases of torch raise a plain
    RuntimeError."""
    words = str(error).lower()
    accelerators = type(error).__name__ == "AcceleratorError" or "cuda error" in words or "hip error" in words
    return isinstance(error, RuntimeError) and accelerators and any(it in words for it in _LOST)


def out_of_memory(error: BaseException) -> str:
    """Return what was asked for, as far as the error says."""
    asked = bytes_asked(error)
    return "out of memory" if asked is None else f"out of memory: {_size(asked)} more were asked for"


def bytes_asked(error: BaseException) -> float | None:
    """Return how many bytes could not be had; None where the error does not say."""
    for pattern in _ASKED:
        if found := pattern.search(str(error)):
            unit = found[2] if found[2] == "bytes" else found[2][0]
            return float(found[1].rstrip(".")) * 1024.0 ** _POWERS[unit]
    return None


def _is_theirs(frame: FrameType, package: str) -> bool:
    top = _top(frame)
    if top in OURS:
        return False
    file = Path(frame.f_code.co_filename)
    installed = any(file.is_relative_to(root) for root in _LIBRARIES)
    return file.is_file() and (not installed or top in _plug_ins or (bool(package) and top == package))


def _top(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    if name == "__main__":
        main = sys.modules["__main__"].__spec__
        name = main.name if main is not None else ""
    return name.partition(".")[0]


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
