"""What a run has learned, from its files: the model of a node's newest checkpoint, and the mean over several nodes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from node.config.run_settings import known_part
from node.config.schema import Config, from_raw
from node.system.errors import RunError, UsageError
from node.system.run_dir import CHECKPOINTS, node_dirs
from node.training.checkpoint import Checkpoint, CheckpointStore
from p2ptrain import tasks
from p2ptrain.saved.models import (
    VECTOR,
    NotFiniteError,
    NothingSavedError,
    RunModels,
    SavedModelError,
    check_finite,
    mean_vector,
    models_of,
)
from p2ptrain.tasks import Generative, Shard, Task
from p2ptrain.tasks.metrics import Measures
from p2ptrain.training import Trainer


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A checkpoint's model with its task. Vectors are fp32 (d,)."""

    task: Task
    trainer: Trainer
    genesis_d: torch.Tensor
    """What the run's training began from."""
    vector_d: torch.Tensor
    """What the checkpoint holds."""
    round: int

    def evaluate(self, x_d: torch.Tensor | None = None) -> float:
        """Held-out loss of `x_d`, by default of the checkpoint's model."""
        return self.trainer.evaluate(self.vector_d if x_d is None else x_d)

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """The same, and the task's own metrics."""
        return self.trainer.measure(self.vector_d if x_d is None else x_d)

    def generate(
        self, prompt: str, *, length: int, temperature: float, seed: int, x_d: torch.Tensor | None = None
    ) -> str:
        """Text from `x_d`, by default from the checkpoint's model. UsageError when the task's model cannot speak."""
        if not isinstance(self.task, Generative):
            raise UsageError(f"the task {self.task.name} has no text to generate", "p2ptrain evaluate measures it")
        model = self.trainer.model_with(self.vector_d if x_d is None else x_d)
        return self.task.generate(model, prompt, length=length, temperature=temperature, seed=seed)


def load_run(node_dir: Path, *, device: str = "cpu", overrides: dict[str, Any] | None = None) -> LoadedModel:
    """The newest whole checkpoint of a node's folder. RunError when there is none.

    `overrides` replaces options of the task, such as where its data lies on this machine.
    """
    checkpoint = CheckpointStore(node_dir / CHECKPOINTS).newest()
    if checkpoint is None:
        raise RunError(f"there is no whole checkpoint in {node_dir / CHECKPOINTS}", "give a node's folder of a run")
    return load(checkpoint, device=device, overrides=overrides)


def load(checkpoint: Checkpoint, *, device: str = "cpu", overrides: dict[str, Any] | None = None) -> LoadedModel:
    """The model of `checkpoint`, its task built anew. Raises TaskError, RunError."""
    try:
        raw = known_part(checkpoint.meta["config"])
        raw["task"] = {**raw["task"], **(overrides or {})}
        raw["train"] = {**raw["train"], "device": device}
    except (KeyError, TypeError) as error:
        raise RunError("the checkpoint's meta.json holds no configuration", "give another node's folder") from error
    config: Config = from_raw(raw)
    task = tasks.get(config.task.name, **config.task.options)
    trainer = Trainer(task, config.train, Shard())
    trainer.load_untrained(checkpoint.part("model"))
    vector_d = checkpoint.tensors[VECTOR]
    if vector_d.shape != (trainer.numel,):
        raise RunError("the checkpoint's model does not fit its own configuration", "its files were mixed up")
    return LoadedModel(
        task=task, trainer=trainer, genesis_d=trainer.vector(), vector_d=vector_d, round=checkpoint.round
    )


def mean_model(models: list[LoadedModel]) -> torch.Tensor:
    """The mean of the models' parameters, fp32 (d,)."""
    return mean_vector([model.vector_d for model in models])


def load_models(
    run: Path, node: str | None = None, *, device: str = "cpu", overrides: dict[str, Any] | None = None
) -> list[LoadedModel]:
    """The models of a run that belong together (`p2ptrain/saved/models.py`), or a node's newest one. UsageError for a
    folder that is no run's, RunError where nothing was saved yet, or what was saved is not finite."""
    saved = find_models(run, node).models
    try:
        check_finite(saved)
    except NotFiniteError as error:
        hint = "give another node's folder, or train again with a lower train.learning_rate"
        raise RunError(str(error), hint) from error
    checkpoints = [Checkpoint(round=each.round, meta=each.meta, tensors=each.tensors) for each in saved]
    return [load(checkpoint, device=device, overrides=overrides) for checkpoint in checkpoints]


def find_models(run: Path, node: str | None = None) -> RunModels:
    """The same without building the task."""
    node_dirs(run)  # its messages say what a run's folder is
    try:
        return models_of(run, node)
    except NothingSavedError as error:
        hint = (
            "they come every node.checkpoint_every rounds" if "yet" in str(error) else "give a node's folder of a run"
        )
        raise RunError(str(error), hint) from error
    except SavedModelError as error:
        raise UsageError(str(error)) from error


def consensus_distance(models: list[LoadedModel]) -> float:
    """Root mean square over models of the L2 distance to their mean."""
    stacked_nd = torch.stack([model.vector_d for model in models])
    return float((stacked_nd - stacked_nd.mean(0)).square().sum(1).mean().sqrt())
