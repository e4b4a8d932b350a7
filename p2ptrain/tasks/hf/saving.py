"""A trained model as a folder that `from_pretrained` opens: the whole model, or its adapter alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
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
        said, hub = plain.peft_config["default"], built.base.hub
        said.base_model_name_or_path = str(built.base.folder.absolute()) if hub is None else hub.repo
        said.revision = None if hub is None else hub.revision
        plain.save_pretrained(folder, save_embedding_layers=False)
    else:
        plain.save_pretrained(folder)


def merged_model(model: nn.Module, built: BuiltModel) -> nn.Module:
    """Return the model without adapters, their products added to the base model's weights in fp32, in place; a model
    without adapters as it is. What was trained over a base model in 4 bits is added to its weights as they are in
    their files: rounded ones would be rounded again wherever the sum is held in 4 bits."""
    if built.lora is None:
        return model
    whole: Any = (_unquantized(model, built) if built.four_bit else model).float()
    merged: nn.Module = whole.merge_and_unload()
    return merged


@torch.no_grad()
def _unquantized(model: nn.Module, built: BuiltModel) -> nn.Module:
    """Return the model built again with its base model as it is in its files, and the adapters of `model`."""
    with torch.random.fork_rng(devices=[]):
        whole = replace(built, four_bit=False).build()
    theirs = dict(model.named_parameters())
    for name, parameter in whole.named_parameters():
        if parameter.requires_grad or ".lora_" in name:
            parameter.copy_(theirs[name])
    return whole
