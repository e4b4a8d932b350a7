"""The models of a run's checkpoints: which of them belong together, their mean, and its `state_dict`.

A run's folder holds a folder for each node. Its model is the mean of its honest trainers' models: of those that have
done the last round, where there are any, else of the newest round of which more than half of them hold a checkpoint.
A mean over several rounds would be a model that nobody has measured, and who was lost early would pull the others back.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import torch

from p2ptrain import tasks
from p2ptrain.saved.files import CHECKPOINTS, CheckpointError, Meta, checkpoint_dirs, layout_in, place_of, read
from p2ptrain.training.late_average import LATE, MEAN
from p2ptrain.training.layout import LayoutError, layout_of
from p2ptrain.training.local_parameters import is_local, shared_and_local
from p2ptrain.training.model import bind_parameters, build_model
from p2ptrain.training.trainer import PERSONAL_PREFIX, UNTRAINED_PREFIX

VECTOR: Final = "trainer.parameters"
"""The trained parameters in a checkpoint, as one flat vector."""

AVERAGE: Final = LATE + MEAN
"""The mean of late weights in its place, where the run keeps one (p2ptrain/training/late_average.py)."""

UNTRAINED: Final = UNTRAINED_PREFIX
"""Before the names of buffers, frozen and local parameters in a checkpoint."""

PERSONAL: Final = f"trainer.{PERSONAL_PREFIX}parameters"
"""The shared parameters of a personal model (p2ptrain/training/ditto.py), as one flat vector."""

PERSONAL_UNTRAINED: Final = f"trainer.{PERSONAL_PREFIX}{UNTRAINED}"
"""Before the names of its local ones."""


class SavedModelError(ValueError):
    """The folder is not what was asked for; the message says what is wrong in one line."""


class NothingSavedError(SavedModelError):
    """The run has no whole checkpoint."""


class NotFiniteError(SavedModelError):
    """The model's training diverged: its parameters are not finite. Older releases wrote such checkpoints."""


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """The model of one checkpoint."""

    node: str
    """The node's name: its folder's."""
    round: int
    """The rounds that were trained."""
    meta: Meta
    tensors: dict[str, torch.Tensor]
    """The checkpoint's tensors that are the model: VECTOR fp32 (d,), AVERAGE where there is one, what begins with
    UNTRAINED; and of a personal model PERSONAL (d,), and what begins with PERSONAL_UNTRAINED."""

    @property
    def vector_d(self) -> torch.Tensor:
        """The trained parameters, or the mean of late ones, fp32 (d,)."""
        return shown(self.tensors)

    @property
    def untrained(self) -> dict[str, torch.Tensor]:
        """Buffers, frozen and local parameters, by name."""
        return {
            name.removeprefix(UNTRAINED): value for name, value in self.tensors.items() if name.startswith(UNTRAINED)
        }

    @property
    def local(self) -> tuple[str, ...]:
        """The patterns of its local parameters."""
        patterns = _section(self.meta, "train").get("local", ())
        return tuple(map(str, patterns)) if isinstance(patterns, list | tuple) else ()

    @property
    def task(self) -> str:
        """What was learned; empty where the checkpoint does not say."""
        return str(_section(self.meta, "task").get("name", ""))

    @property
    def rounds(self) -> int:
        """The rounds that were to be trained when it was written."""
        rounds = _section(self.meta, "train").get("rounds", 0)
        return rounds if type(rounds) is int else 0

    @property
    def lies(self) -> bool:
        """Whether its node was told to."""
        return _section(self.meta, "attack").get("name", "none") != "none"

    @property
    def trains_honestly(self) -> bool:
        """Whether its node trains (an observer does not), and was not told to lie."""
        return not self.lies and _section(self.meta, "node").get("role", "trainer") == "trainer"


@dataclass(frozen=True, kw_only=True)
class RunModels:
    """What belongs together."""

    models: tuple[SavedModel, ...]
    """One at least, all of one round."""
    left_out: tuple[str, ...] = ()
    """Nodes of the run that have no part in it, each with the reason."""

    @property
    def round(self) -> int:
        """After how many rounds."""
        return self.models[0].round


def models_of(run: Path, node: str | None = None) -> RunModels:
    """Return the models of a run's folder, or the newest one of a node: of the node `node`, or where `run` is a node's
    folder.

    Raises SavedModelError, of which NothingSavedError when there is no whole checkpoint.
    """
    folders = _node_dirs(run)
    if node is not None:
        named = [folder for folder in folders if _name(folder) == node]
        if not named:
            there = ", ".join(map(_name, folders))
            raise SavedModelError(f"{run} has no node {node!r} with a checkpoint; there are: {there}")
        folders = named
    if len(folders) == 1:
        (folder,) = folders
        found = _newest(folder)
        if found is None:
            raise NothingSavedError(f"there is no whole checkpoint in {folder / CHECKPOINTS}")
        return RunModels(models=(found,))
    return _together(run, folders)


def shown(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return what is evaluated and exported of a checkpoint's tensors, (d,): the mean of late weights, where there is
    one."""
    return tensors[AVERAGE] if AVERAGE in tensors else tensors[VECTOR]


def mean_vector(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean of vectors (d,) of one length."""
    return torch.stack(list(vectors)).mean(0)


def check_finite(models: Sequence[SavedModel]) -> None:
    """NotFiniteError unless all trained parameters are finite. What is not trained may be infinite: masks are."""
    strange = [model.node for model in models if not bool(model.vector_d.isfinite().all())]
    if strange:
        raise NotFiniteError(
            f"the model of {', '.join(strange)} after round {models[0].round} is not finite: its training diverged"
        )


def state_dict(models: Sequence[SavedModel]) -> dict[str, torch.Tensor]:
    """Return the mean of models as `load_state_dict(strict=True)` of the task's model takes it, CPU tensors, each with
    memory of its own. Local parameters are averaged like the others. What is not trained is the first one's, as in an
    evaluation.

    A checkpoint that holds no names (an older release's) makes the task's model anew for them, as it was trained:
    TaskError and whatever a task of the user's own raises. SavedModelError when the models are not of one kind, or
    NotFiniteError.
    """
    check_finite(models)
    first = models[0]
    if len(models) > 1 and _section(first.meta, "train").get("shares") == "logits":
        raise SavedModelError("the members share logits, and each has a model of its own: name one of them")
    for other in models[1:]:
        names = [model.meta["model"] for model in (first, other) if model.meta.get("model") is not None]
        if other.vector_d.shape != first.vector_d.shape or (len(names) > 1 and names[0] != names[1]):
            raise SavedModelError(f"{first.node} and {other.node} hold models of two kinds; name one of them")
    x_d = mean_vector([model.vector_d for model in models])
    layout, untrained = layout_in(first.meta), {**first.untrained, **mean_local(models)}
    if layout is None or any(entry.name not in untrained for entry in layout.untrained):
        return _built(first, x_d, untrained)
    try:
        return layout.state_dict(x_d, untrained)
    except LayoutError as error:
        raise SavedModelError(f"the checkpoint of {first.node} is of two models: {error}") from error


def mean_local(models: Sequence[SavedModel]) -> dict[str, torch.Tensor]:
    """Return the mean of the models' local parameters, by name. No node has that model: it is what one that had none
    might begin with. SavedModelError where one lacks any."""
    first, *others = models
    held = [model.untrained for model in models]
    names = [name for name in held[0] if is_local(name, first.local)]
    lacks = [model.node for model, its in zip(models, held, strict=True) if any(name not in its for name in names)]
    if lacks or any(other.local != first.local for other in others):
        raise SavedModelError(f"{', '.join(lacks) or first.node}: the models have different local parameters")
    return {name: torch.stack([its[name] for its in held]).mean(0) for name in names}


def _built(model: SavedModel, x_d: torch.Tensor, untrained: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    options, seed = dict(_section(model.meta, "task")), _section(model.meta, "train").get("seed")
    name = options.pop("name", None)
    if not isinstance(name, str) or type(seed) is not int:
        raise SavedModelError(f"the checkpoint of {model.node} says neither names nor task")
    try:
        built = build_model(tasks.get(name, **options), seed)
        shared, local = shared_and_local(built, model.local)
        layout = layout_of(built, shared) if local else None
        if layout is not None:
            return layout.state_dict(x_d, untrained)
        bind_parameters(x_d, built)
    except tasks.TaskError:
        raise
    except ValueError as error:  # another shape, or no local parameters
        raise SavedModelError(f"the checkpoint of {model.node} does not fit its own task: {error}") from error
    state = built.state_dict()
    strange = [key for key, value in state.items() if not isinstance(value, torch.Tensor)]
    if strange:
        raise SavedModelError(f"{strange[0]} of the task's model is no tensor, and cannot be exported")
    return {key: value.detach().to("cpu", copy=True).contiguous() for key, value in state.items()}


def _together(run: Path, folders: list[Path]) -> RunModels:
    newest = {folder: found for folder in folders if (found := _newest(folder)) is not None}
    if not newest:
        raise NothingSavedError(f"there is no whole checkpoint in {run}")
    left_out = {folder: "no whole checkpoint" for folder in folders if folder not in newest}
    if any(found.trains_honestly for found in newest.values()):
        for folder, found in list(newest.items()):
            if not found.trains_honestly:
                left_out[folder] = "it was told to lie" if found.lies else "it does not train"
                del newest[folder]
    last = max(found.rounds for found in newest.values())
    finished = {folder: found for folder, found in newest.items() if found.round >= last > 0}
    end = max((found.round for found in finished.values()), default=0)
    chosen = {folder: found for folder, found in finished.items() if found.round == end} or _of_common_round(newest)
    left_out |= {
        folder: f"its newest is of round {found.round}" for folder, found in newest.items() if folder not in chosen
    }
    return RunModels(
        models=tuple(chosen[folder] for folder in folders if folder in chosen),
        left_out=tuple(f"{_name(folder)}: {left_out[folder]}" for folder in folders if folder in left_out),
    )


def _of_common_round(newest: Mapping[Path, SavedModel]) -> dict[Path, SavedModel]:
    """The models of the newest round of which more than half of the nodes hold a checkpoint; where there is none, of
    the round that most hold, and the newest of these."""
    held = {
        folder: {round for round, _ in map(place_of, checkpoint_dirs(folder / CHECKPOINTS)) if round < own.round}
        | {own.round}
        for folder, own in newest.items()
    }
    while True:
        counts = Counter(chain.from_iterable(held.values()))
        enough = min(max(counts.values()), len(newest) // 2 + 1)
        round = max(each for each, count in counts.items() if count >= enough)
        chosen = {
            folder: newest[folder] if newest[folder].round == round else _of_round(folder, round)
            for folder, rounds in held.items()
            if round in rounds
        }
        damaged = [folder for folder, found in chosen.items() if found is None]
        if not damaged:
            return {folder: found for folder, found in chosen.items() if found is not None}
        for folder in damaged:  # or pruned meanwhile. This ends: each node's newest model is held already
            held[folder].discard(round)


def _newest(folder: Path) -> SavedModel | None:
    """The newest whole one. A running node may remove all that were there while they are read: it has written others
    then."""
    seen: list[Path] | None = None
    while (there := checkpoint_dirs(folder / CHECKPOINTS)) != seen:
        found = next(filter(None, map(_read, reversed(there))), None)
        if found is not None:
            return found
        seen = there
    return None


def _of_round(folder: Path, round: int) -> SavedModel | None:
    candidates = (each for each in reversed(checkpoint_dirs(folder / CHECKPOINTS)) if place_of(each)[0] == round)
    return next(filter(None, map(_read, candidates)), None)


def _read(checkpoint: Path) -> SavedModel | None:
    """None where it is not whole, or was pruned meanwhile."""
    try:
        meta, tensors = read(checkpoint, wanted=_is_of_a_model)
    except CheckpointError:
        return None
    vector_d = tensors.get(VECTOR)
    if vector_d is None or vector_d.ndim != 1 or vector_d.dtype is not torch.float32:
        return None
    average_d = tensors.get(AVERAGE, vector_d)
    if average_d.shape != vector_d.shape or average_d.dtype is not torch.float32:
        return None
    return SavedModel(node=_name(checkpoint.parent.parent), round=meta["round"], meta=meta, tensors=tensors)


def _is_of_a_model(name: str) -> bool:
    return name in (VECTOR, AVERAGE, PERSONAL) or name.startswith((UNTRAINED, PERSONAL_UNTRAINED))


def _node_dirs(run: Path) -> list[Path]:
    if not run.is_dir():
        raise SavedModelError(f"there is no run folder {run}")
    if (run / CHECKPOINTS).is_dir():
        return [run]
    found = sorted((each.parent for each in run.glob(f"*/{CHECKPOINTS}") if each.is_dir()), key=_natural)
    if not found:
        raise NothingSavedError(f"no node of {run} has written a checkpoint yet")
    return found


def _name(folder: Path) -> str:
    return folder.name or folder.resolve().name  # `.` has none


def _natural(path: Path) -> list[tuple[int, str]]:
    """node-10 after node-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _section(meta: Meta, name: str) -> dict[str, object]:
    section = meta["config"].get(name, {})
    return section if isinstance(section, dict) else {}
