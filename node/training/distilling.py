"""A student of a run's model: a smaller model of the same task, trained on the same data, with a folder of its own.

The folder is a node's, with one checkpoint: `evaluate`, `generate` and `export` take it like any other.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from node.config.run_settings import known_part
from node.config.schema import Config, from_raw
from node.system.errors import RunError, UsageError
from node.system.run_dir import CHECKPOINTS, EVENTS
from node.training.checkpoint import Checkpoint, CheckpointStore
from node.training.evaluation import LoadedModel, build_models, find_models, mean_model
from p2ptrain import tasks
from p2ptrain.saved.models import RunModels, SavedModel
from p2ptrain.tasks import Shard, Task
from p2ptrain.tasks.batches import tensors_in
from p2ptrain.tasks.calling import calling
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.distillation import DistillConfig, DistilledTask, Ensemble
from p2ptrain.training.flat import all_finite
from p2ptrain.training.trainer import UNTRAINED_PREFIX

WARMUP_SHARE: Final = 5
"""A fifth of a student's steps are its warm-up at most, as of a short run of `p2ptrain tune`."""

TOLD_TIMES: Final = 10
"""How often a person is told how far it is."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a person asks of a student; None: as the run has it."""

    task_options: Mapping[str, Any]
    """Options of the task that differ from the run's, such as its size."""
    data_options: Mapping[str, Any]
    """Options that differ for the teachers as well: where the data lie on this machine."""
    steps: int | None = None
    learning_rate: float | None = None
    seed: int | None = None
    device: str = "auto"
    distill: DistillConfig
    ensemble: bool = False
    """Whether every node's model is a teacher, and not their mean."""
    without_privacy: bool = False
    """Whether data that a run protects may be read by a training that does not."""


@dataclass(frozen=True, kw_only=True)
class Student:
    """A student that is about to learn. Losses are held-out ones."""

    trainer: Trainer
    config: Config
    meta: Mapping[str, Any]
    """How it is made, for its checkpoint."""
    task: str
    metric: str
    teachers: int
    teacher_parameters: int
    """Of one of them."""
    teacher_loss: float
    before: float
    """Of the student that has learned nothing."""

    @property
    def steps(self) -> int:
        """Steps to take."""
        return self.trainer.config.total_steps


def student_of(runs: Sequence[Path], wishes: Wishes) -> Student:
    """Load the teachers and build their student. Raises UsageError, TaskError or RunError."""
    found = [find_models(run) for run in runs]
    first = found[0].models[0]
    _check_alike(found)
    if not wishes.without_privacy:
        _check_unprotected([model for each in found for model in each.models])
    config = _config_of(first, wishes)
    teachers, task_of_teachers = _teachers(found, wishes)
    teacher = teachers[0] if len(teachers) == 1 else Ensemble(teachers).eval()
    task = tasks.get(config.task.name, **config.task.options)
    _check_held_out(task_of_teachers, task, config.train.eval_examples)
    taught = DistilledTask(task, teacher, wishes.distill)
    trainer = Trainer(taught, config.train, Shard())
    teacher.to(trainer.device)
    held_out = task.eval_batches(config.train.eval_examples)
    taught.check(trainer.model, trainer.machine.take(held_out[0]))
    teacher_loss = _loss(task, teacher, [trainer.machine.take(batch) for batch in held_out])
    if not math.isfinite(teacher_loss):  # no step that asks it could be taken
        message = f"the teacher's held-out loss is {teacher_loss}: its training diverged"
        raise RunError(message, "give another run's folder")
    return Student(
        trainer=trainer,
        config=config,
        meta=_origin(found, wishes),
        task=task.name,
        metric=task.metric,
        teachers=len(teachers),
        teacher_parameters=sum(each.numel() for each in teachers[0].parameters()),
        teacher_loss=teacher_loss,
        before=trainer.evaluate(),
    )


def teach(student: Student, *, stopped: Callable[[], bool], tell: Callable[[str], None]) -> int:
    """Take the student's steps, until all are taken or `stopped`; return how many were."""
    steps = student.steps
    every = max(1, steps // TOLD_TIMES)
    for step in range(steps):
        if stopped():
            return step
        loss = student.trainer.step()
        if (step + 1) % every == 0:
            tell(f"step {step + 1} of {steps}: training loss {loss:.4f}")
    return steps


def write_student(student: Student, out: Path, steps: int) -> float:
    """Write the student's folder `out`, which must not be there, whole or not at all; return its held-out loss. Raises
    RunError where its model or that loss is not finite, or the disk does not take it."""
    state = student.trainer.state_dict()
    if not all_finite(state["parameters"]):
        raise RunError("the student's training diverged: nothing is written", "give a lower --learning-rate")
    loss, layout = student.trainer.evaluate(), student.trainer.layout()
    if not math.isfinite(loss):  # steps without a finite loss are skipped: the parameters are finite, and far too large
        message = f"the student's training diverged: its held-out loss is {loss}, and nothing is written"
        raise RunError(message, "give a lower --learning-rate")
    meta = {
        "config": student.config.model_dump(mode="json"),
        "model": None if layout is None else layout.to_meta(),
        "steps": steps,
        "distilled": {**student.meta, "steps": steps},
    }
    tensors = {
        name if name.startswith(UNTRAINED_PREFIX) else f"trainer.{name}": value
        for name, value in state.items()
        if name == "parameters" or name.startswith(UNTRAINED_PREFIX)
    }
    try:
        out.mkdir()
        CheckpointStore(out / CHECKPOINTS).save(Checkpoint(round=1, meta=meta, tensors=tensors))
        (out / EVENTS).touch()  # by which a folder is known as a node's
    except BaseException as error:
        if not isinstance(error, FileExistsError):
            with suppress(OSError):
                shutil.rmtree(out)
        if isinstance(error, OSError):
            raise RunError(f"cannot write {out}: {error.strerror}", "give another --out") from error
        raise
    return loss


def _config_of(first: SavedModel, wishes: Wishes) -> Config:
    """The student's settings: the run's task and training, with what belongs to a swarm left out."""
    try:
        raw = known_part(first.meta["config"])
        task = {**raw["task"], **wishes.data_options, **wishes.task_options}
        run = from_raw({"task": raw["task"], "train": raw["train"]}).train
    except (KeyError, TypeError) as error:
        raise RunError("the checkpoint's meta.json holds no configuration", "give another run's folder") from error
    steps = run.total_steps if wishes.steps is None else wishes.steps
    return Config(
        task=from_raw({"task": task}).task,
        train=replace(
            _alone(run),
            rounds=1,
            inner_steps=steps,
            warmup_steps=min(run.warmup_steps, steps // WARMUP_SHARE),
            learning_rate=run.learning_rate if wishes.learning_rate is None else wishes.learning_rate,
            seed=run.seed if wishes.seed is None else wishes.seed,
            device=wishes.device,
        ),
    )


def _alone(train: TrainConfig) -> TrainConfig:
    """The settings without those that only members of a swarm have. Steps are not compiled: a teacher is asked in
    them."""
    return replace(
        train,
        inner_steps_schedule="constant",
        least_inner_steps=None,
        synchronous_share=None,
        late_average=0.0,
        drift="none",
        drift_strength=None,
        step_normalization="none",
        normalization_exponent=None,
        most_lengthening=None,
        local=(),
        local_steps=0,
        compile=False,
    )


def _teachers(found: Sequence[RunModels], wishes: Wishes) -> tuple[list[nn.Module], Task]:
    """One of each run, or every node's, in eval mode; and the task of the first."""
    teachers: list[nn.Module] = []
    loaded: list[LoadedModel] = []
    for each in found:
        models = build_models(each, overrides=dict(wishes.data_options))
        loaded += models
        if wishes.ensemble:
            teachers += [model.trainer.model_with(model.vector_d) for model in models]
        else:
            x_d = mean_model(models) if len(models) > 1 else models[0].vector_d
            teachers.append(models[0].trainer.model_with(x_d))
    return [teacher.eval().requires_grad_(False) for teacher in teachers], loaded[0].task


def _check_alike(found: Sequence[RunModels]) -> None:
    names = {model.task for each in found for model in each.models}
    if len(names) > 1:
        raise UsageError(f"the runs have different tasks: {', '.join(sorted(names))}", "give runs of one task")


def _check_unprotected(models: Sequence[SavedModel]) -> None:
    """UsageError where a run protects its data: what a student learns of them is in no ledger."""
    for model in models:
        section = model.meta["config"].get("privacy", {})
        privatizer = section.get("privatizer", "none") if isinstance(section, dict) else "none"
        if privatizer != "none":
            raise UsageError(
                f"{model.node} trained with privacy.privatizer={privatizer}: distilling reads its data again, without "
                "protection, and its privacy ledger would not cover that",
                "give public data by --data, or accept it; --without-privacy says so",
            )


def _check_held_out(teachers: Task, student: Task, examples: int) -> None:
    """UsageError where the student's held-out examples may be ones that the teachers were trained on."""
    with calling(teachers, "eval_batches"):
        theirs = tensors_in(teachers.eval_batches(examples))
    with calling(student, "eval_batches"):
        ours = tensors_in(student.eval_batches(examples))
    same = len(theirs) == len(ours) and all(
        one.shape == two.shape and torch.equal(one, two) for (_, one), (_, two) in zip(theirs, ours, strict=True)
    )
    if not same:
        raise UsageError(
            "the student would be measured on other held-out examples than the run was, and might learn from those",
            "keep what cuts the data as in the run, such as --task-set context=64",
        )


def _loss(task: Task, model: nn.Module, batches: Sequence[Any]) -> float:
    total, count = 0.0, 0
    with torch.no_grad(), calling(task, "loss"):
        for batch in batches:
            tokens = task.tokens(batch)
            total, count = total + float(task.loss(model, batch)) * tokens, count + tokens
    return total / max(1, count)


def _origin(found: Sequence[RunModels], wishes: Wishes) -> dict[str, Any]:
    return {
        "teachers": [{"node": model.node, "round": model.round} for each in found for model in each.models],
        "ensemble": wishes.ensemble or len(found) > 1,
        "temperature": wishes.distill.temperature,
        "alpha": wishes.distill.alpha,
        "fading": wishes.distill.fading,
    }
