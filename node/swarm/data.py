"""The digest of training data, for swarms whose members must all learn from the same.

BLAKE2b-256 of a file's bytes; of a folder, of each file below it, sorted by its path in it: the path's length (4 bytes,
big-endian) and UTF-8, the content's length (8 bytes), the content.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from node.system.errors import UsageError

PIECE_BYTES = 1 << 20
DIGEST_BYTES = 32


def digest_of_data(path: Path) -> str:
    """Return the digest of data, 64 hex digits. Reads everything once, a piece at a time. UsageError on data that
    cannot be read, or are empty."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    try:
        for name, file in _files(path):
            if name:
                digest.update(len(name).to_bytes(4, "big") + name + file.stat().st_size.to_bytes(8, "big"))
            with file.open("rb") as opened:
                while piece := opened.read(PIECE_BYTES):
                    digest.update(piece)
    except OSError as error:
        raise UsageError(f"cannot read the data {error.filename or path}: {error.strerror}", "") from None
    return digest.hexdigest()


def _files(path: Path) -> Iterator[tuple[bytes, Path]]:
    if path.is_file():
        yield b"", path
        return
    found = {each.relative_to(path).as_posix().encode(): each for each in path.rglob("*") if each.is_file()}
    if not found:
        raise UsageError(f"there is no data in {path}", "give a file, or a folder with files in it")
    yield from sorted(found.items())
