"""A run's model in other programs' formats: a folder of transformers', or an ONNX graph; whole, or not at all."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from gossip.core.atomic_file import rename_durably
from node.system.errors import RunError, UsageError, cannot_write
from node.training.evaluation import LoadedModel, mean_model
from node.training.replaced_folder import put_folder
from p2ptrain.tasks.base import Pretrained
from p2ptrain.tasks.batches import pair_of
from p2ptrain.tasks.hf.built_model import BuiltModel
from p2ptrain.training.onnx_file import Quantized, data_of, quantize_onnx, write_onnx

TRACED_EXAMPLES: Final = 3
"""From which a graph is made: more than one, so that their number is not taken for a constant."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written."""

    tensors: int
    parameters: int
    """Those that were trained."""
    difference: float | None = None
    """Between onnxruntime's outputs and the model's own, the largest; of a graph that is not quantized."""
    quantized: Quantized | None = None


def export_folder(models: list[LoadedModel], out: Path, *, merged: bool) -> Exported:
    """Write the models' mean as a folder of transformers', replacing one that is there. Raises UsageError for a task
    whose models are no transformers' ones, and where the base model is what would be replaced, TaskError or
    RunError."""
    task, model = models[0].task, _model_of(models)
    if not isinstance(task, Pretrained):
        raise UsageError(
            f"the model of {task.name} is none of transformers', and has no config.json",
            "export it --to safetensors or --to onnx",
        )
    _check_no_base(task, out)
    try:
        beside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    except OSError as error:
        raise RunError(f"cannot write beside {out}: {error.strerror}", "give another --out") from error
    try:
        beside.chmod(0o755)
        _save(task, model, beside, merged=merged)
        for file in beside.rglob("*"):
            if file.is_file():
                _sync(file)
        put_folder(beside, out)
    except OSError as error:
        raise cannot_write(out, error, "or give another --out") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Exported(tensors=_tensors_in(out), parameters=models[0].trainer.numel)


def export_graph(models: list[LoadedModel], out: Path, *, int8: bool = False) -> Exported:
    """Write the models' mean as an ONNX graph, its weights as 8-bit numbers where `int8`, replacing a file that is
    there. Raises UsageError, TaskError or RunError."""
    task, model = models[0].task, _model_of(models)
    if isinstance(task, Pretrained):
        model = task.without_adapters(model)
    pair = pair_of(task.eval_batches(TRACED_EXAMPLES)[0])
    if pair is None:
        raise UsageError(f"the batches of {task.name} are no inputs with targets", "export it --to safetensors")
    quantized = None
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            whole, small = Path(folder, out.name), Path(folder, "int8", out.name)
            difference = write_onnx(model, pair[0], whole)
            if int8:
                small.parent.mkdir()
                quantized = quantize_onnx(whole, small, _held_out_pairs(models[0]))
            _put_graph(small if int8 else whole, out)
    except OSError as error:
        raise cannot_write(out, error, "or give another --out") from error
    return Exported(
        tensors=len(model.state_dict()),
        parameters=models[0].trainer.numel,
        difference=difference,
        quantized=quantized,
    )


def _put_graph(made: Path, out: Path) -> None:
    """Put a graph in its place. Where weights are beside it, or beside the one before, there is none for a moment: it
    would be one with the weights of another."""
    data, data_out = data_of(made), data_of(out)
    if data.exists() or data_out.exists():
        out.unlink(missing_ok=True)
        data_out.unlink(missing_ok=True)
    if data.exists():
        _sync(data)
        rename_durably(data, data_out)
    _sync(made)
    rename_durably(made, out)


def _sync(file: Path) -> None:
    """Make what was written durable, or a power cut leaves a file of the right name that is empty."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _held_out_pairs(model: LoadedModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    batches = model.task.eval_batches(model.trainer.config.eval_examples)
    return [pair for batch in batches if (pair := pair_of(batch)) is not None]


def _check_no_base(task: Pretrained, out: Path) -> None:
    """An adapter is worth nothing without its base model, which may be nowhere else."""
    built = getattr(task, "built", None)
    base = built.base.folder if isinstance(built, BuiltModel) else None
    if base is not None and base.resolve().is_relative_to(out.resolve()):
        raise UsageError(f"the run's base model lies in {out}, and would be removed", "give another --out")


def _save(task: Pretrained, model: nn.Module, folder: Path, *, merged: bool) -> None:
    try:
        task.save(model, folder, merged=merged)
    except SafetensorError as error:  # of a full disk, too
        raise RunError(f"cannot write {folder}: {error}", "free some disk space, or give another --out") from error


def _tensors_in(folder: Path) -> int:
    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            count += len(file.keys())
    return count


def _model_of(models: list[LoadedModel]) -> nn.Module:
    first = models[0]
    x_d: torch.Tensor = mean_model(models) if len(models) > 1 else first.vector_d
    return first.trainer.model_with(x_d)
