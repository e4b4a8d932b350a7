"""What a person gets to see when something goes wrong: one line that says what is wrong, and one clause what to do.

`UsageError` is a mistake in the command or the configuration (exit code 2), `RunError` something that went wrong on
the way (exit code 1). Everything else that reaches the command line is turned into one of these by `translate`, by a
table and nowhere else; what the table does not know is a bug of ours, and is said to be one.
"""

import errno
import signal
import sys
from collections.abc import Iterator

from gossip.core.errors import LocalError
from p2ptrain import faults
from p2ptrain.registry import BadOptionError, UnknownMemberError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""

OUR_BUG = "this is a bug of p2ptrain: run again with --debug and report what it prints"

LOOK_AT_THE_DEVICE = "look at the device (nvidia-smi, dmesg)"

_TO_WRITE = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some of the quota",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EROFS: "mount its file system for writing",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
}
"""What lets a file be written that could not be."""

_OS_HINTS = {
    **{number: f"{how}, or give another folder by --run-dir or --out" for number, how in _TO_WRITE.items()},
    errno.EADDRINUSE: "choose another port, or 0 for any free one",
    errno.EMFILE: "raise the limit on open files (ulimit -n 4096)",
}

_OF_PYTHON = {
    "can't start new thread": (
        "the system lets this node begin no more threads",
        "raise the limit on processes (ulimit -u; in a container --pids-limit)",
    ),
    "Could not determine home directory.": ("this user has no home folder", "set HOME to one, or write whole paths"),
}
"""What Python says by its words alone: message and hint."""


class P2PTrainError(Exception):
    """The root of our errors: `message` says what is wrong, `hint` what to do about it (may be empty)."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Message and hint: what a program that calls p2ptrain shows of it."""
        return self.line()

    def line(self) -> str:
        """Return message and hint on one line, whatever line breaks they came with."""
        parts = [" ".join(part.split()).rstrip(".") for part in (self.message, self.hint) if part.strip()]
        return "; ".join(parts)


class UsageError(P2PTrainError):
    """The command or the configuration asks for something that cannot be."""

    exit_code = EXIT_USAGE


class RunError(P2PTrainError):
    """A run could not start or go on."""


def cannot_write(path: object, error: OSError, otherwise: str = "or give another --run-dir") -> RunError:
    """Return what to raise where the disk does not take a file; `otherwise` follows what would let it be written."""
    how = _TO_WRITE.get(error.errno or 0, "look at its disk")
    return RunError(f"cannot write {path}: {error.strerror or error}", f"{how}, {otherwise}")


def translate(error: BaseException) -> P2PTrainError:
    """Return the P2PTrainError for any exception; of a group, for the first member that is more than a bug."""
    known = [found for leaf in _leaves(error) if (found := _known(leaf)) is not None]
    return known[0] if known else _bug(error)


def told_to_a_program(error: P2PTrainError, log: object) -> P2PTrainError:
    """Return the error for a program that has called p2ptrain, and so has no --debug: `log` has the traceback."""
    if "--debug" not in error.hint:
        return error
    if error.hint == OUR_BUG:
        return type(error)(error.message, f"this is a bug of p2ptrain: report it with the traceback in {log}")
    first, and_more, _ = error.hint.partition("; ")
    return type(error)(error.message, f"{f'{first}; ' if and_more else ''}{log} has the traceback")


def lost_device(error: BaseException) -> str:
    """Return what was said where a device was lost, alone or inside a group; empty where none was."""
    return next((str(leaf).splitlines()[0] for leaf in _leaves(error) if faults.is_device_lost(leaf)), "")


def first_leaf(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """Return the first exception of this kind, alone or inside a group; None where there is none."""
    return next((leaf for leaf in _leaves(error) if isinstance(leaf, kind)), None)


def is_interrupt(error: BaseException) -> bool:
    """Return whether it is Ctrl-C, alone or inside a group."""
    return any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _known(error: BaseException) -> P2PTrainError | None:
    if isinstance(error, P2PTrainError):
        return error
    if _is_raised_by("p2ptrain.tasks.calling", "TaskFaultError", error):
        return _of_a_task(error)
    if isinstance(error, UnknownMemberError | BadOptionError) or _is_raised_by(
        "p2ptrain.tasks.base", "TaskError", error
    ):
        return UsageError(str(error))
    if isinstance(error, LocalError):
        return RunError(str(error))
    if isinstance(error, OSError):
        return _from_os(error)
    if isinstance(error, UnicodeError):
        return None  # a ValueError only by ancestry
    if isinstance(error, ValueError):
        return UsageError(str(error), "--debug shows where this was found")
    if said := lost_device(error):
        return RunError(f"the device was lost ({said})", LOOK_AT_THE_DEVICE)
    if isinstance(error, RuntimeError) and str(error) in _OF_PYTHON:
        return RunError(*_OF_PYTHON[str(error)])
    if faults.is_out_of_memory(error):
        return RunError(faults.out_of_memory(error), "use a smaller model or batch (--set train.batch_size=...)")
    return None


def _is_raised_by(module_name: str, class_name: str, error: BaseException) -> bool:
    """Without importing torch: an error of a module that was never imported cannot have been raised."""
    module = sys.modules.get(module_name)
    return module is not None and isinstance(error, getattr(module, class_name))


def _of_a_task(error: BaseException) -> RunError:
    return RunError(getattr(error, "message", str(error)), getattr(error, "hint", ""))


def _from_os(error: OSError) -> RunError:
    where = f"{error.filename}: " if error.filename else ""
    return RunError(f"{where}{error.strerror or error}", _OS_HINTS.get(error.errno or 0, ""))


def _bug(error: BaseException) -> RunError:
    leaf = next(_leaves(error), error)
    what = f"{type(leaf).__name__}: {leaf}" if str(leaf) else type(leaf).__name__
    theirs = "" if faults.called_ours(leaf) else faults.place_of(leaf)
    if theirs:
        return RunError(f"{theirs} raised {what}", "mend it there; --debug shows how it was reached")
    return RunError(f"unexpected {what}", OUR_BUG)


def describe_code(code: int | None) -> str:
    """Describe an exit code in words."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
