"""Checkpoints: a folder each, whole or absent, and the newest valid one is what a node goes on from.

    checkpoint/round-00000040/state.safetensors     tensors, by dotted name: trainer.*, sync.*
    checkpoint/round-00000040/meta.json             round, config, totals, and digests of itself and of the tensors

A checkpoint is written under a temporary name, synced, renamed, and its folder synced; only then is anything older
removed. One of a round that is there already becomes `round-00000040.1`, and takes the plain name when the older one is
gone: so nothing is ever moved out of the way, and wherever a save is killed, the newest whole checkpoint is the old one
or the new one. One that is damaged anyway (a dying drive) fails a digest and is skipped for the one before it, with the
reason told.
"""

import hashlib
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gossip.atomic_file import sync_file, sync_folder, write_atomic
from node.checkpoint_meta import MAX_META_BYTES, CheckpointError, Meta, Totals, dump, parse, totals_of

_NAME: Final = re.compile(r"round-([0-9]{8,16})(?:\.([0-9]{1,9}))?")
"""A checkpoint's folder: its round, and how often that round was saved before."""

_TEMPORARY: Final = ".writing-"
_OLD: Final = ".writing-old-"
"""Where older releases put the checkpoint of a round while they saved that round again: a crash left it there."""

_DAMAGED: Final = "damaged-"
_STATE: Final = "state.safetensors"
_META: Final = "meta.json"

_Place = tuple[int, int]
"""A checkpoint's place among others: its round, and the number of the save of that round."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that a node needs to go on."""

    round: int
    """The next round to train."""
    meta: Meta
    """JSON: config, counters, peer id (checkpoint_meta.py)."""
    tensors: dict[str, torch.Tensor]

    @property
    def totals(self) -> Totals:
        """What the run had come to. CheckpointError where the meta is not one that `read` took."""
        return totals_of(self.meta)

    def part(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors under `name.`, without that prefix."""
        return {
            key.removeprefix(f"{name}."): value for key, value in self.tensors.items() if key.startswith(f"{name}.")
        }


class CheckpointStore:
    """The checkpoints of one node: write, prune, find the newest valid one."""

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint durably and prune the oldest. OSError when the disk does not take it; the checkpoints
        that were there stay."""
        self._make_folder()
        saves = [save for folder in self._folders() for number, save in [_place(folder)] if number == checkpoint.round]
        final = self.folder / _name(checkpoint.round, max(saves, default=-1) + 1)
        temporary = self.folder / f"{_TEMPORARY}{checkpoint.round:08d}-{secrets.token_hex(4)}"
        try:
            _write(temporary, checkpoint)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(self.folder)
        self._prune(final)
        return self._with_plain_name(final)

    def newest(self, on_skip: Callable[[Path, str], None] | None = None) -> Checkpoint | None:
        """The newest checkpoint that is whole; `on_skip` hears of each newer one that is not, and why."""
        for folder in reversed(self._folders()):
            try:
                return read(folder)
            except CheckpointError as error:
                if on_skip is not None:
                    on_skip(folder, str(error))
        return None

    def newest_meta(self) -> Meta | None:
        """The newest whole meta, without a look at the tensors beside it; None: there is none."""
        for folder in reversed(self._folders()):
            with suppress(CheckpointError):
                return _read_meta(folder)
        return None

    def set_aside(self, folder: Path) -> None:
        """Rename a damaged checkpoint, so that it neither counts as one nor takes the place of one that is kept."""
        aside = self.folder / f"{_DAMAGED}{folder.name.lstrip('.')}"
        with suppress(OSError):
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)

    def _folders(self) -> list[Path]:
        """All that may be checkpoints, the newest last."""
        if not self.folder.is_dir():
            return []
        named = (folder for folder in self.folder.glob("round-*") if _NAME.fullmatch(folder.name))
        return sorted([*named, *self.folder.glob(f"{_OLD}*")], key=lambda folder: (_place(folder), folder.name))

    def _make_folder(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)

    def _prune(self, saved: Path) -> None:
        """Remove what `saved` replaces, and the oldest others. What cannot be removed stays. Only for a `saved` that is
        durable."""
        folders = self._folders()
        of_other_rounds = [folder for folder in folders if _place(folder)[0] != _place(saved)[0]]
        kept = {saved, *(of_other_rounds[-(self._keep - 1) :] if self._keep > 1 else ())}
        for folder in (*folders, *self.folder.glob(f"{_TEMPORARY}*")):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _with_plain_name(self, saved: Path) -> Path:
        """The name that a round's only checkpoint has. Another one does as well, where something of that round could
        not be removed, or this fails."""
        round = _place(saved)[0]
        plain = self.folder / _name(round, 0)
        if saved != plain and [folder for folder in self._folders() if _place(folder)[0] == round] == [saved]:
            with suppress(OSError):
                saved.rename(plain)
                saved = plain
                sync_folder(self.folder)
        return saved


def read(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`. Raises CheckpointError when it is not whole."""
    meta = _read_meta(folder)
    state = folder / _STATE
    try:
        if not state.is_file() or _digest(state) != meta["digest"]:
            raise CheckpointError(f"{state} does not match its digest: cut short or damaged")
        tensors = load_file(state)
    except CheckpointError:
        raise
    except Exception as error:  # a header may lie in any way: safetensors and torch raise a dozen kinds of errors
        raise CheckpointError(f"{state} cannot be read: {type(error).__name__}: {error}") from error
    return Checkpoint(round=meta["round"], meta=meta, tensors=tensors)


def _read_meta(folder: Path) -> Meta:
    path = folder / _META
    try:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing")
        with path.open("rb") as file:
            meta = parse(file.read(MAX_META_BYTES + 1))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    named = _NAME.fullmatch(folder.name)
    if named is not None and int(named[1]) != meta["round"]:
        raise CheckpointError(f"{path} is of round {meta['round']}")
    return meta


def _name(round: int, save: int) -> str:
    return f"round-{round:08d}" + (f".{save}" if save else "")


def _place(folder: Path) -> _Place:
    """Before all others where an older release's leftover does not say its round."""
    named = _NAME.fullmatch(folder.name)
    if named is not None:
        return int(named[1]), int(named[2] or 0)
    with suppress(CheckpointError):
        return _read_meta(folder)["round"], -1
    return -1, -1


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir()
    state = folder / _STATE
    try:
        save_file({key: value.contiguous() for key, value in checkpoint.tensors.items()}, state)
    except SafetensorError as error:  # how that library reports what the system said: mostly a full disk
        raise OSError(str(error)) from error
    sync_file(state)
    meta = dump(checkpoint.meta, round=checkpoint.round, state_digest=_digest(state))
    write_atomic(folder / _META, meta)  # syncs the folder too


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
