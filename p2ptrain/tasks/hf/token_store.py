"""The tokens of all examples in one memory-mapped file, beside which example begins where and what its key is.

Tokenizing is done once: the files lie in the user's cache folder, under a name that changes with the data, the
tokenizer and the chat template. They are made in a folder beside and renamed, so that nodes that start together may
all make them and none sees half of one. Where the cache cannot be written, everything stays in memory.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.byte_lm.corpus import Source, cache_folder
from p2ptrain.tasks.hf.sources import Example, files_of, read_examples
from p2ptrain.tasks.hf.text_encoder import Encoded, TextEncoder

FORMAT: Final = 3
"""Of the files; another one makes them anew."""

AT_ONCE: Final = 1024
"""Examples that are tokenized in one call: a tokenizer in Rust then uses all cores."""

CACHED_STORES: Final = 8
"""Kept in the cache, the least recently made dropped first: one a data set that a person works with."""

ABANDONED_S: Final = 24 * 3600.0
"""After which what a process that was killed has begun is removed. Longer than tokenizing takes."""


@dataclass(frozen=True, kw_only=True)
class TokenStore:
    """m examples of n tokens together."""

    tokens: npt.NDArray[np.uint32]
    """(n,)"""
    trained: npt.NDArray[np.bool_]
    """(n,): whether a token is to be predicted."""
    starts: npt.NDArray[np.int64]
    """(m + 1,): example i is the tokens from starts[i] to starts[i + 1]."""
    keys: npt.NDArray[np.uint64]
    """(m,): the hash of each example's content."""
    text_bytes: int
    """Bytes of UTF-8 of all documents and, as the chat template writes them, conversations."""

    @property
    def bytes_per_token(self) -> float:
        """How much text a token stands for, on average."""
        return self.text_bytes / max(1, len(self.tokens))


def open_store(data: str | Path | None, encoder: TextEncoder, *, block_chars: int) -> TokenStore:
    """Return the tokens of `data`, made where they are not in the cache. TaskError where the data cannot be read."""
    files = files_of(data)
    folder = cache_folder() / f"tokens-{_key(files, encoder, block_chars)}"
    found = cached_store(folder, lambda: read_examples(files, block_chars=block_chars), encoder)
    assert found is not None
    return found


def cached_store(folder: Path, read: Callable[[], Iterable[Example] | None], encoder: TextEncoder) -> TokenStore | None:
    """Return the tokens in `folder`, made of the examples that `read` gives where they are not there; None where it
    gives none. TaskError where these cannot be read."""
    found = _whole(folder)
    if found is not None:
        return found
    examples = read()
    if examples is None:
        return None
    with suppress(OSError):
        _make(folder, examples, encoder)
        found = _whole(folder)
    return found or _in_memory(read() or (), encoder)


def _key(files: Sequence[Source], encoder: TextEncoder, block_chars: int) -> str:
    digest = hashlib.blake2b(digest_size=12)
    digest.update(f"{FORMAT}\0{block_chars}\0".encode() + encoder.digest + encoder.rules_digest)
    for source in files:
        digest.update(f"{source.path.absolute()}\0{source.size}\0{source.changed_ns}\0".encode(errors="replace"))
    if not files:
        digest.update(sys.version.encode())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class _Piece:
    encoded: Encoded
    key: int


def _pieces(examples: Iterable[Example], encoder: TextEncoder) -> Iterator[_Piece]:
    several = iter(examples)
    while some := list(islice(several, AT_ONCE)):
        for example, encoded in zip(some, encoder.encode(some), strict=True):
            yield _Piece(encoded=encoded, key=example.key)


def _make(folder: Path, examples: Iterable[Example], encoder: TextEncoder) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".tokens-"))
    try:
        lengths, keys, text_bytes = [0], [], 0
        with (beside / "tokens").open("wb") as tokens, (beside / "trained").open("wb") as trained:
            for piece in _pieces(examples, encoder):
                tokens.write(piece.encoded.ids.astype("<u4").tobytes())
                trained.write(piece.encoded.trained.tobytes())
                lengths.append(len(piece.encoded.ids))
                keys.append(piece.key)
                text_bytes += piece.encoded.text_bytes
        if len(lengths) > 1:
            np.save(beside / "starts.npy", np.cumsum(lengths, dtype=np.int64))
            np.save(beside / "keys.npy", np.array(keys, np.uint64))
            (beside / "text_bytes").write_text(str(text_bytes))
        for file in beside.iterdir():
            _sync(file)  # or a power cut leaves a file of the right length that holds zeros
        if _whole(folder) is None:  # else another node was quicker
            _drop(folder)  # where it is damaged
            with suppress(OSError):
                beside.rename(folder)
        drop_oldest(folder.parent, "tokens-*", CACHED_STORES)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _whole(folder: Path) -> TokenStore | None:
    """Return what lies in the cache; None where nothing does, or its files do not fit each other."""
    try:
        found = _read(folder)
    except (OSError, ValueError, EOFError):  # EOFError: of numpy, for an empty file
        return None
    count = len(found.starts) - 1
    whole = count >= 0 and found.starts[-1] == len(found.tokens) == len(found.trained) and count == len(found.keys)
    return found if whole else None


def _drop(path: Path) -> None:
    """Remove a folder, or the file that stands in its place."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read(folder: Path) -> TokenStore:
    return TokenStore(
        tokens=np.memmap(folder / "tokens", "<u4", "r"),
        trained=np.memmap(folder / "trained", np.bool_, "r"),
        starts=np.load(folder / "starts.npy"),
        keys=np.load(folder / "keys.npy"),
        text_bytes=int((folder / "text_bytes").read_text()),
    )


def _in_memory(examples: Iterable[Example], encoder: TextEncoder) -> TokenStore:
    pieces = list(_pieces(examples, encoder))
    if not pieces:
        raise TaskError("the data have no example; give a file or a folder with --data")
    return TokenStore(
        tokens=np.concatenate([each.encoded.ids for each in pieces]),
        trained=np.concatenate([each.encoded.trained for each in pieces]),
        starts=np.cumsum([0, *(len(each.encoded.ids) for each in pieces)], dtype=np.int64),
        keys=np.array([each.key for each in pieces], np.uint64),
        text_bytes=sum(each.encoded.text_bytes for each in pieces),
    )


def drop_oldest(folder: Path, pattern: str, kept: int) -> None:
    """Remove all but so many folders of a pattern, the newest, and what was begun and left."""
    made = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    old = time.time() - ABANDONED_S
    left = [path for path in folder.glob(".tokens-*") if path.stat().st_mtime < old]
    for path in [*made[kept:], *left]:
        shutil.rmtree(path, ignore_errors=True)
