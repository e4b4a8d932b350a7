"""The p2ptrain that is installed, packed into a wheel again: what an upgrade that fails goes back to.

pip keeps nothing of what it replaces, and no index may have it any more. A wheel is a zip of the installed files with a
list of their digests (PEP 427), and pip makes the scripts anew from its entry points.
"""

import base64
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from gossip.core.atomic_file import rename_durably, sync_file
from node.system.errors import RunError, UsageError

PACKAGE: Final = "p2ptrain"

KEPT: Final = 3
"""Wheels of versions before that are kept, of 2 MB each. Chosen."""

_OF_PIP: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""What an installer writes beside a wheel's own files."""


def installed_package() -> Distribution:
    """Return the installed package. UsageError where it runs from a checkout, which pip cannot replace."""
    hint = "update the checkout (git pull, make setup), and start the service again"
    try:
        found = distribution(PACKAGE)
    except PackageNotFoundError:
        raise UsageError(f"this {PACKAGE} is not installed: it runs from a checkout", hint) from None
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        checkout = unquote(urlparse(str(origin.get("url"))).path)
        raise UsageError(f"this {PACKAGE} runs from the checkout {checkout}", hint)
    return found


def pack(package: Distribution, folder: Path) -> Path:
    """Write the installed files as a wheel into `folder`, which exists, and return its path. RunError where some are
    missing, or the disk does not take it."""
    files = [(name, path) for name, path in _files(package)]
    if not files:
        raise RunError("the installed p2ptrain does not say which files it has", "install it again by pip")
    # Written before the others are removed: whatever happens, there is one.
    wheel = folder / f"{PACKAGE}-{package.version}-{_tag(package)}.whl"
    info = next(name.partition("/")[0] for name, _ in files if name.partition("/")[0].endswith(".dist-info"))
    beside = wheel.with_suffix(".new")
    try:
        _write_wheel(beside, files, f"{info}/RECORD")
        sync_file(beside)
        rename_durably(beside, wheel)
        for old in sorted(folder.glob("*.whl"), key=lambda each: each.stat().st_mtime)[:-KEPT]:
            old.unlink()
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunError(
            f"cannot keep the p2ptrain of now in {folder}: {error.filename or ''} {error.strerror or error}",
            "free some disk space there",
        ) from error
    return wheel


def kept_folder() -> Path:
    """Return where the package before is kept: an upgrade that was cut off can be mended from there."""
    given = os.environ.get("XDG_STATE_HOME", "")
    home = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    return home / PACKAGE / "before"


def _files(package: Distribution) -> Iterator[tuple[str, Path]]:
    for file in package.files or ():
        own = file.parts[0] != ".." and not file.is_absolute() and file.suffix != ".pyc"
        if own and not (file.parts[0].endswith(".dist-info") and file.name in _OF_PIP):
            yield file.as_posix(), Path(str(package.locate_file(file)))


def _tag(package: Distribution) -> str:
    lines = (package.read_text("WHEEL") or "").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("Tag: ")), "py3-none-any")


def _write_wheel(path: Path, files: list[tuple[str, Path]], record: str) -> None:
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, source in files:
            data = source.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{_csv(name)},sha256={digest},{len(data)}\n")
            wheel.writestr(name, data)
        wheel.writestr(record, "".join([*lines, f"{record},,\n"]))


def _csv(name: str) -> str:
    return f'"{name}"' if "," in name else name
