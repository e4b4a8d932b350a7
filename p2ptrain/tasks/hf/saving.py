"""A trained model as a folder that `from_pretrained` opens: the whole model, or its adapter alone."""

from pathlib import Path
from typing import Any

from torch import nn

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.hf.built_model import BuiltModel


def save_pretrained(model: nn.Module, built: BuiltModel, folder: Path, *, merged: bool) -> None:
    """Write the model with its configuration; of a model with adapters these alone, for its base model, or with
    `merged` the base model with their products added. Merging changes the base model's weights in place. TaskError
    where that cannot be."""
    plain: Any = merged_model(model, built) if merged else model
    if built.lora is not None and not merged:
        if built.base.folder is None:
            raise TaskError("the base model was drawn from the seed, so no adapter can name it: export it --merged")
        plain.peft_config["default"].base_model_name_or_path = str(built.base.folder.absolute())
        plain.save_pretrained(folder, save_embedding_layers=False)
    else:
        plain.save_pretrained(folder)


def merged_model(model: nn.Module, built: BuiltModel) -> nn.Module:
    """Return the model without adapters, their products added to the base model's weights in fp32, in place; a model
    without adapters as it is. TaskError for a base model in 4 bits, whose weights are not there to be added to."""
    if built.lora is None:
        return model
    if built.four_bit:
        raise TaskError("a base model in 4 bits cannot be merged: export with --set task.load_in_4bit=false")
    whole: Any = model.float()
    merged: nn.Module = whole.merge_and_unload()
    return merged
