"""The token for the page: a file that only its owner reads, never a setting that others see.

It comes as `Authorization: Bearer TOKEN` (Prometheus, programs), or once as `?token=TOKEN` in a browser, which is given
a cookie for it. A cookie goes to every port of its host, so it is not the token but a digest of it.
"""

import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
from pathlib import Path

from node.system.errors import RunError, UsageError

MIN_CHARACTERS = 16
"""Nobody guesses 16 random letters at a hundred tries a second; what we make has 43."""

MAX_BYTES = 4096
"""A token file is a line."""

_COOKIE = b"p2ptrain-status-cookie-v1"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address, in brackets or not. A name other than localhost may be
    anybody's."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(
    host: str,
    token_file: object,
    *,
    setting: str = "node.metrics_host",
    token_setting: str = "node.status_token_file=FILE",
) -> None:
    """Raise UsageError for an address that others reach, without a token. The settings are named in its words."""
    if token_file is None and not is_loopback(host):
        hint = f"set {token_setting} as well (it is made with a new token if it is not there)"
        raise UsageError(f"{setting} {host} is not loopback, and there is no token for the page", hint)


def load_or_create(path: Path) -> str:
    """Return the token in a file, made if there is none. UsageError where others may read it, or it holds none."""
    try:
        return load(path)
    except FileNotFoundError:
        return _create(path)


def load(path: Path) -> str:
    """Return the token in a file. FileNotFoundError; UsageError where others may read it, or it holds none."""
    try:
        return _read(path)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeError) as error:
        raise _unusable(path, error) from error


def _read(path: Path) -> str:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_IMODE(mode) & 0o077:
            raise UsageError(f"others may read the token in {path}", f"chmod 600 {path}")
        token = file.read(MAX_BYTES).decode("ascii").strip()
    if len(token) < MIN_CHARACTERS or not token.isprintable() or " " in token:
        hint = "remove the file, and a node makes one at its start"
        raise UsageError(f"{path} holds no token: one line of {MIN_CHARACTERS} characters or more", hint)
    return token


def _create(path: Path) -> str:
    token = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:  # another node of this machine was quicker
        return _read(path)
    except OSError as error:
        raise _unusable(path, error) from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    return token


def _unusable(path: Path, error: Exception) -> RunError:
    why = getattr(error, "strerror", None) or type(error).__name__
    return RunError(f"no token in {path}: {why}", "give another file with node.status_token_file")


def matches(token: str, given: str) -> bool:
    """Return whether both are the same, in a time that does not depend on where they differ."""
    return hmac.compare_digest(token.encode(), given.encode("utf-8", "surrogateescape"))


def cookie_of(token: str) -> str:
    """Return the cookie that a browser is given for the token."""
    return hmac.new(token.encode(), _COOKIE, hashlib.sha256).hexdigest()
