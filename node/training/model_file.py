"""A run's model as one file: its state, its header, and how it is written, whole or not at all."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from safetensors.torch import save

from gossip.core.atomic_file import write_atomic
from node.system.errors import RunError, UsageError, cannot_write
from p2ptrain.saved.models import NotFiniteError, RunModels, SavedModelError, state_dict
from p2ptrain.training.layout import DTYPES


def state_of(found: RunModels) -> dict[str, torch.Tensor]:
    """Return the `state_dict` of the models' mean. Raises RunError where it is not finite, or no file can hold it;
    TaskError where the task has to be built for its names, and cannot be."""
    try:
        state = state_dict(found.models)
    except NotFiniteError as error:
        hint = "give another node with --node, or train again with a lower train.learning_rate"
        raise RunError(str(error), hint) from error
    except SavedModelError as error:
        raise UsageError(str(error)) from error
    for name, value in state.items():
        if value.layout is not torch.strided or value.dtype not in DTYPES.values():
            raise UsageError(f"{name} of the task's model is {value.dtype}, {value.layout}: no file holds it")
    return state


def metadata_of(found: RunModels) -> dict[str, str]:
    """Return the fields of the file's header that describe the model."""
    try:
        release = version("p2ptrain")
    except PackageNotFoundError:
        release = ""
    return {
        "format": "pt",
        "task": found.models[0].task,
        "round": str(found.round),
        "release": release,
        "nodes": ",".join(model.node for model in found.models),
    }


def write(out: Path, state: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write `out` whole or not at all, and replace an existing file. Raises RunError when the disk does not take it."""
    try:
        write_atomic(out, save(state, metadata))
    except OSError as error:
        raise cannot_write(out, error, "or give another --out") from error
