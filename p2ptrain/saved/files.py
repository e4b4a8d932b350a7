"""A checkpoint on disk: a folder with a meta.json and the tensors, both under digests.

    checkpoint/round-00000040/state.safetensors     tensors, by dotted name: trainer.*, sync.*, model.*
    checkpoint/round-00000040/meta.json             round, config, names, and digests of itself and of the tensors

Here is what every reader has to know. What else stands in a meta.json is its writer's
(`node/training/checkpoint_meta.py`).
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch

from p2ptrain.saved.tensor_file import OpenedFile, TensorsInFile
from p2ptrain.training.layout import LayoutError, StateLayout

Meta = dict[str, Any]

CHECKPOINTS: Final = "checkpoint"
"""The folder of checkpoints in a node's folder."""

STATE: Final = "state.safetensors"
META: Final = "meta.json"
FORMAT: Final = 1

NAME: Final = re.compile(r"round-([0-9]{8,16})(?:\.([0-9]{1,9}))?")
"""A checkpoint's folder: its round, and how often that round was saved before."""

OLD: Final = ".writing-old-"
"""Where older releases put the checkpoint of a round while they saved that round again: a crash left it there."""

MAX_META_BYTES: Final = 1 << 20
"""Settings take some 6 kB, and the names of a model up to half of this (`layout.MAX_LAYOUT_BYTES`). Chosen, so that a
file of junk is not read to its end."""

MAX_COUNT: Final = 2**53 - 1
"""Of rounds: exact in a double, so in every language's JSON."""

_SHOWN_CHARS: Final = 128
"""Of a number that is wrong, in the message that says so."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

Place = tuple[int, int]
"""A checkpoint's place among others: its round, and the number of the save of that round."""


class CheckpointError(ValueError):
    """A folder that is no valid checkpoint; the message says what is wrong with it."""


def parse(data: bytes) -> Meta:
    """Return the fields of a meta.json, those that every reader needs within their bounds: format, round, digest,
    config, and `model` where there is one. CheckpointError for what is damaged."""
    if len(data) > MAX_META_BYTES:
        raise CheckpointError(f"it has more than {MAX_META_BYTES} bytes")
    try:
        meta = json.loads(data.decode("utf-8"), parse_float=_finite)
        if not isinstance(meta, dict):
            raise CheckpointError("it holds no fields")
        if "meta_digest" in meta and meta["meta_digest"] != own_digest(meta):
            raise CheckpointError("it does not match its digest: cut short or damaged")
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested a thousand deep
        raise CheckpointError(f"it is no JSON of a checkpoint's: {error}") from error
    _check(meta)
    return meta


def layout_in(meta: Meta) -> StateLayout | None:
    """Return the model's names in what `parse` returned; None where it has none: an older release wrote it, or the
    names are not enough. CheckpointError when they are damaged."""
    if meta.get("model") is None:
        return None
    try:
        return StateLayout.from_meta(meta["model"])
    except LayoutError as error:
        raise CheckpointError(f"its model is none: {error}") from error


def own_digest(meta: Meta) -> str:
    """Return the digest over all fields but itself."""
    covered = {key: value for key, value in meta.items() if key != "meta_digest"}
    return digest_of(json.dumps(covered, sort_keys=True, separators=(",", ":")).encode("ascii"))


def digest_of(data: bytes) -> str:
    """BLAKE2b with 32 bytes, in hex."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the digest of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def checkpoint_dirs(folder: Path) -> list[Path]:
    """All in a folder of checkpoints that may be one, the newest last."""
    if not folder.is_dir():
        return []
    named = (each for each in folder.glob("round-*") if NAME.fullmatch(each.name))
    return sorted([*named, *folder.glob(f"{OLD}*")], key=lambda each: (place_of(each), each.name))


def place_of(folder: Path) -> Place:
    """Before all others where an older release's leftover does not say its round."""
    named = NAME.fullmatch(folder.name)
    if named is not None:
        return int(named[1]), int(named[2] or 0)
    with suppress(CheckpointError):
        return read_meta(folder)["round"], -1
    return -1, -1


def read(
    folder: Path,
    *,
    parser: Callable[[bytes], Meta] = parse,
    wanted: Callable[[str], bool] = lambda _: True,
) -> tuple[Meta, dict[str, torch.Tensor]]:
    """Return the fields and the `wanted` tensors of a checkpoint. Raises CheckpointError when it is not whole."""
    meta, tensors = mapped(folder, parser=parser)
    with _readable(folder / STATE):
        return meta, {name: tensors[name] for name in tensors if wanted(name)}


def mapped(folder: Path, *, parser: Callable[[bytes], Meta] = parse) -> tuple[Meta, TensorsInFile]:
    """Return the fields of a checkpoint, and its tensors, which stay in the file until they are asked for. All is that
    of one checkpoint: each file is opened once, and what a running node removes or writes in its place meanwhile is
    not seen. Raises CheckpointError when it is not whole."""
    state = folder / STATE
    with _opened(folder) as directory:
        described = _open(META, directory, folder)
        file = _open(STATE, directory, folder)
    meta = _meta_in(described, folder, parser)
    with _readable(state):
        if not file.path.is_file() or digest_of_file(file.path) != meta["digest"]:
            raise CheckpointError(f"{state} does not match its digest: cut short or damaged")
        return meta, TensorsInFile(file)


@contextmanager
def _readable(state: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # a header may lie in any way: safetensors and torch raise a dozen kinds of errors
        raise CheckpointError(f"{state} cannot be read: {type(error).__name__}: {error}") from error


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The folder's descriptor: it stays this folder's, whatever gets its name."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"{folder / META} is missing") from error
    try:
        yield directory
    finally:
        os.close(directory)


def _open(name: str, directory: int, folder: Path) -> OpenedFile:
    try:
        return OpenedFile(name, folder=directory)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder / name} is missing") from error
    except OSError as error:
        raise CheckpointError(f"{folder / name} cannot be read: {error.strerror}") from error


def read_meta(folder: Path, parser: Callable[[bytes], Meta] = parse) -> Meta:
    """Return the fields of a checkpoint's meta.json. Raises CheckpointError."""
    with _opened(folder) as directory:
        return _meta_in(_open(META, directory, folder), folder, parser)


def _meta_in(file: OpenedFile, folder: Path, parser: Callable[[bytes], Meta]) -> Meta:
    path = folder / META
    try:
        if not file.path.is_file():
            raise CheckpointError(f"{path} is missing")
        with file.path.open("rb") as opened:
            meta = parser(opened.read(MAX_META_BYTES + 1))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    named = NAME.fullmatch(folder.name)
    if named is not None and int(named[1]) != meta["round"]:
        raise CheckpointError(f"{path} is of round {meta['round']}")
    return meta


def _check(meta: Meta) -> None:
    if type(meta.get("format")) is not int or meta["format"] != FORMAT:
        raise CheckpointError(f"it is not of format {FORMAT}")
    if type(meta.get("round")) is not int or not 0 <= meta["round"] <= MAX_COUNT:
        raise CheckpointError(f"its round is no count up to {MAX_COUNT}")
    if not (isinstance(meta.get("digest"), str) and _DIGEST.fullmatch(meta["digest"])):
        raise CheckpointError("its digest of the tensors is none")
    if not isinstance(meta.get("config"), dict):
        raise CheckpointError("its config is none")
    layout_in(meta)


def _finite(text: str) -> float:
    """Of a JSON number with a fraction or an exponent. `1e400` is infinite to `float`, and never what we wrote."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:_SHOWN_CHARS]} is beyond all bounds")
    return value
