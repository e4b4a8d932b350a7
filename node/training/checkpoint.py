"""Checkpoints: one folder each, whole or absent. A node resumes from the newest valid one.

    checkpoint/round-00000040/state.safetensors     tensors, by dotted name: trainer.*, sync.*, model.*, shift.*
    checkpoint/round-00000040/meta.json             round, config, names, totals, digests of itself and of the tensors

Reading is in `p2ptrain/saved/files.py`; this module writes, keeps and prunes them.

A checkpoint is written under a temporary name, synced, renamed, and its folder synced; only then is anything older
removed. A second checkpoint of the same round becomes `round-00000040.1`, and takes the plain name when the older one
is gone. So nothing is ever moved out of the way: wherever a save is killed, the newest whole checkpoint is the old one
or the new one. A damaged checkpoint (a dying drive) fails a digest. It is skipped for the one before it, and the reason
is reported. So is one whose model is not finite, which older releases wrote.

When the disk is full, or the node's budget of it, older checkpoints are removed one by one, but never the newest whole
one.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch

from gossip.core.atomic_file import sync_file, sync_folder, write_atomic
from node.training.checkpoint_meta import CheckpointError as CheckpointError
from node.training.checkpoint_meta import Meta, Totals, dump, parse, totals_of
from node.training.checkpoint_room import bytes_of, missing
from p2ptrain.saved import files
from p2ptrain.saved.files import META, STATE, place_of
from p2ptrain.saved.models import UNTRAINED, VECTOR
from p2ptrain.saved.tensor_file import FiledTensor, Storable, TensorsInFile, keep_in_file, save_file
from p2ptrain.training.flat import all_finite

_TEMPORARY: Final = ".writing-"
_DAMAGED: Final = "damaged-"
_ALONE: Final = "alone-"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that a node needs to resume."""

    round: int
    """The next round to train."""
    meta: Meta
    """JSON: config, counters, peer id (checkpoint_meta.py)."""
    tensors: Mapping[str, torch.Tensor]
    """Of one that was read: each is in memory only while somebody holds it."""
    filed: dict[str, FiledTensor] = field(default_factory=dict)
    """Of one that is to be written, the tensors that lie in a file already."""

    @property
    def storable(self) -> dict[str, Storable]:
        """Return all tensors, wherever they lie."""
        return {**self.tensors, **self.filed}

    def without_tensors(self) -> "Checkpoint":
        """Return the rest of it, which is small."""
        return replace(self, tensors={}, filed={})

    @property
    def totals(self) -> Totals:
        """Return the run's totals so far. Raises CheckpointError where the meta is not one that `read` accepted."""
        return totals_of(self.meta)

    def part(self, name: str) -> dict[str, torch.Tensor]:
        """Return the tensors under `name.`, without that prefix."""
        return {new: self.tensors[key] for new, key in self._names(f"{name}.").items()}

    @property
    def trainer_state(self) -> Mapping[str, torch.Tensor]:
        """Return the state that a learner's `load_state_dict` takes."""
        untrained = {key: key for key in self.tensors if key.startswith(UNTRAINED)}
        names = self._names("trainer.") | untrained
        if isinstance(self.tensors, TensorsInFile):
            return self.tensors.renamed(names)
        return {new: self.tensors[key] for new, key in names.items()}

    def _names(self, prefix: str) -> dict[str, str]:
        return {key.removeprefix(prefix): key for key in self.tensors if key.startswith(prefix)}


class CheckpointStore:
    """The checkpoints of one node: write, prune, find the newest valid one."""

    def __init__(
        self, folder: Path, *, keep: int = 3, room: Callable[[], int] | None = None, in_memory: bool = False
    ) -> None:
        """`room` returns how many bytes the node may write beside what is there; None: as many as the disk takes.
        `in_memory`: what is kept for a checkpoint to be saved later takes memory, and no disk."""
        self.folder = folder
        self._keep = keep
        self._room = room
        self._in_memory = in_memory

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint durably and prune the oldest. Raises OSError when the disk does not take it; the newest
        whole checkpoint before it is kept."""
        self._make_folder()
        needed = bytes_of(checkpoint.storable)
        while missing(self.folder, needed):  # check first: a file cut short by a full disk takes space from others
            if not self._give_up_oldest():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        while self._room is not None and self._room() < needed:
            if not self._give_up_oldest():
                where = self.folder.parent
                raise OSError(
                    errno.EDQUOT, f"budget.disk leaves no room for it: raise it, or move files out of {where}"
                )
        while True:
            try:
                return self._save(checkpoint)
            except OSError as error:  # quotas, and files that others wrote meanwhile
                if error.errno not in _FULL or not self._give_up_oldest():
                    raise

    def keep_apart(self, tensors: Mapping[str, Storable]) -> dict[str, Storable]:
        """Return these tensors as they are now, for a checkpoint to be saved later: in a file without a name beside the
        checkpoints, or as copies in memory, where the disk does not take them or is not to."""
        held = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
        with suppress(OSError):
            if not self._in_memory:
                self._make_folder()
                return {**tensors, **keep_in_file(held, self.folder)}
        return {**tensors, **{name: tensor.clone() for name, tensor in held.items()}}

    def _save(self, checkpoint: Checkpoint) -> Path:
        saves = [
            save for folder in self._folders() for number, save in [place_of(folder)] if number == checkpoint.round
        ]
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
        """Return the newest whole checkpoint. `on_skip` is called with each newer damaged one, and the reason."""
        for folder in reversed(self._folders()):
            try:
                return read(folder)
            except CheckpointError as error:
                if on_skip is not None:
                    on_skip(folder, str(error))
        return None

    def newest_whole(self) -> Path | None:
        """Return the folder of the newest whole checkpoint whose model is finite; None when there is none."""
        for folder in reversed(self._folders()):
            with suppress(CheckpointError):
                read(folder)
                return folder
        return None

    def spare_bytes(self) -> int:
        """Return the bytes of all checkpoints before the newest: those are removed when the disk is full."""
        return sum(_size(folder) for folder in self._folders()[:-1])

    def newest_meta(self) -> Meta | None:
        """Return the newest whole meta, without reading the tensors beside it; None when there is none."""
        for folder in reversed(self._folders()):
            with suppress(CheckpointError):
                return files.read_meta(folder, parse)
        return None

    def set_aside(self, folder: Path) -> None:
        """Rename a damaged checkpoint, so that it neither counts as a checkpoint nor replaces one that is kept."""
        aside = self.folder / f"{_DAMAGED}{folder.name.lstrip('.')}"
        with suppress(OSError):
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)

    def set_all_aside(self) -> Path | None:
        """Rename the newest whole checkpoint, so that it no longer counts, and remove all others: another model goes
        on in an earlier round. As many are kept under such names as of others. Return its folder; None where there is
        none. Raises OSError, with nothing removed, where it cannot be renamed."""
        kept, aside = self.newest_whole(), None
        if kept is not None:
            aside = self.folder / f"{_ALONE}{kept.name}"
            shutil.rmtree(aside, ignore_errors=True)
            kept.rename(aside)
            sync_folder(self.folder)
        older = sorted(self.folder.glob(f"{_ALONE}*"), key=lambda each: (each.stat().st_mtime_ns, each.name))
        for folder in (*self._folders(), *older[: -self._keep]):
            shutil.rmtree(folder, ignore_errors=True)
        return aside

    def _folders(self) -> list[Path]:
        """Return all folders that may be checkpoints, the newest last."""
        return files.checkpoint_dirs(self.folder)

    def _make_folder(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)

    def _prune(self, saved: Path) -> None:
        """Remove what `saved` replaces, and the oldest others. What cannot be removed stays. `saved` must be
        durable."""
        folders = self._folders()
        of_other_rounds = [folder for folder in folders if place_of(folder)[0] != place_of(saved)[0]]
        kept = {saved, *(of_other_rounds[-(self._keep - 1) :] if self._keep > 1 else ())}
        for folder in (*folders, *self.folder.glob(f"{_TEMPORARY}*")):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _give_up_oldest(self) -> bool:
        """Remove what a killed save left, or else the oldest checkpoint, but never the newest whole one or anything
        after it. Return False when nothing could be removed."""
        whole = self.newest_whole()
        folders = self._folders()
        older = folders[: folders.index(whole)] if whole in folders else []
        left = [each for each in self.folder.glob(f"{_TEMPORARY}*") if each not in folders]
        for folder in (*left, *older):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return True
        return False

    def _with_plain_name(self, saved: Path) -> Path:
        """Rename a round's only checkpoint to its plain name. It keeps its name where an older one of that round could
        not be removed, or the renaming fails."""
        round = place_of(saved)[0]
        plain = self.folder / _name(round, 0)
        if saved != plain and [folder for folder in self._folders() if place_of(folder)[0] == round] == [saved]:
            with suppress(OSError):
                saved.rename(plain)
                saved = plain
                sync_folder(self.folder)
        return saved


def read(folder: Path) -> Checkpoint:
    """Return the checkpoint in `folder`. Raises CheckpointError when it is not whole, or its model is not finite."""
    meta, tensors = files.mapped(folder, parser=parse)
    if VECTOR in tensors and not all_finite(tensors[VECTOR]):
        raise CheckpointError(f"the model in {folder} is not finite: its training had diverged")
    return Checkpoint(round=meta["round"], meta=meta, tensors=tensors)


def _name(round: int, save: int) -> str:
    return f"round-{round:08d}" + (f".{save}" if save else "")


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*") if file.is_file())


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir()
    state = folder / STATE
    save_file(checkpoint.storable, state)
    sync_file(state)
    meta = dump(checkpoint.meta, round=checkpoint.round, state_digest=files.digest_of_file(state))
    write_atomic(folder / META, meta)  # syncs the folder too
