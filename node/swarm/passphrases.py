"""Passphrases: from a file that its owner alone may read, or asked for on the terminal. Never an argument: those are
seen by every user of the machine."""

import getpass
import sys
from pathlib import Path
from typing import Final

from gossip.core.errors import LocalError
from gossip.core.keyfile import MAX_PASSPHRASE_BYTES
from gossip.core.secret_file import read_private
from node.system import interrupts
from node.system.errors import UsageError

MIN_PASSPHRASE_CHARS: Final = 12
"""Of a new passphrase. Chosen, not measured: a thief of the file may try as long as it likes, each try costs
a third of a second of a core and 256 MiB (argon2id), and four words of a list of 7776 are 51 bits. No estimator of
strength is asked: a rule of length can be said in the message, and is the same everywhere."""

MIN_DIFFERENT_CHARS: Final = 5
"""Of these, as one letter held down is no passphrase, nor are two in turn."""

_NOWHERE = "there is no terminal to ask for the passphrase on"
_FROM_FILE = "give it with --passphrase-file"


def new_passphrase(file: Path | None, *, none: bool, what: str) -> bytes | None:
    """Return the passphrase for a new key: from the file, or typed twice. None where `none` asks for that."""
    if none:
        if file is not None:
            raise UsageError("--no-passphrase and --passphrase-file contradict each other", "give one of them")
        return None
    if file is not None:
        return new_from_file(file)
    if not sys.stdin.isatty():
        raise UsageError(_NOWHERE, f"{_FROM_FILE}, or say --no-passphrase to keep {what} unprotected")
    typed = _strong(_typed(f"A passphrase for {what}: "), "the passphrase")
    if _typed("The same again: ") != typed:
        raise UsageError("the two passphrases differ", "nothing was made: try again")
    return typed


def passphrase_for(file: Path | None, what: str) -> bytes:
    """Return the passphrase of an existing key: from the file, or typed."""
    if file is not None:
        return from_file(file)
    if not sys.stdin.isatty():
        raise UsageError(_NOWHERE, _FROM_FILE)
    return _typed(f"The passphrase of {what}: ")


def new_from_file(path: Path) -> bytes:
    """Return the passphrase in a file, for a new key. UsageError: empty, readable by others, or easy to guess."""
    return _strong(from_file(path), f"the passphrase in {path}")


def from_file(path: Path) -> bytes:
    """Return the file's first and only line. UsageError: empty, or readable by others."""
    try:
        data = read_private(path, MAX_PASSPHRASE_BYTES + 2, "the passphrase file", refuse_shared=True)
    except LocalError as error:
        raise UsageError(str(error)) from None
    passphrase = data.removesuffix(b"\n").removesuffix(b"\r")
    return _checked(passphrase, f"the passphrase in {path}")


def _strong(passphrase: bytes, what: str) -> bytes:
    chars = passphrase.decode("utf-8", "replace")
    if len(chars) < MIN_PASSPHRASE_CHARS or len(set(chars)) < MIN_DIFFERENT_CHARS:
        hint = (
            f"at least {MIN_PASSPHRASE_CHARS} characters, {MIN_DIFFERENT_CHARS} of them different; four words that "
            "have nothing to do with each other are good"
        )
        raise UsageError(f"{what} is too easy to guess", hint)
    return passphrase


def _typed(prompt: str) -> bytes:
    changed = interrupts.raising()  # on Ctrl-C the terminal is to show again what is typed
    try:
        return _checked(getpass.getpass(prompt).encode("utf-8"), "the passphrase")
    finally:
        if changed:
            interrupts.at_once()


def _checked(passphrase: bytes, what: str) -> bytes:
    if not passphrase.strip():
        raise UsageError(f"{what} is empty", "an empty passphrase protects nothing; --no-passphrase says so in words")
    if len(passphrase) > MAX_PASSPHRASE_BYTES:
        raise UsageError(f"{what} is longer than {MAX_PASSPHRASE_BYTES} bytes", "")
    return passphrase
