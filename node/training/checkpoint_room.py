"""Disk space for a checkpoint: how much one takes, and whether it is free.

A file system may report free space and then refuse (quotas), or report nothing at all. So a check comes before a write,
but only the write decides.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from node.config.schema import Config
from node.system import text
from node.system.disk import disk_free
from node.system.errors import RunError
from node.training.estimates import MAX_DEPARTED
from p2ptrain.saved.tensor_file import Storable

CHECKPOINT_BYTES_PER_PARAMETER: Final = 20
"""Measured with AdamW: a checkpoint has 16 bytes a parameter (the model, two moments, the anchor), and 20 with the
outer momentum of `noloco`."""

PERSONAL_BYTES_PER_PARAMETER: Final = 16
"""Of a personal model (Ditto): the model, AdamW's two moments, and the anchor that it is held near."""

KEPT_BYTES_PER_PARAMETER: Final = 4
"""Of the model that is kept to notice shifts of data, fp32."""

OPTIMIZER_BYTES_PER_PARAMETER: Final = 8
"""Of an inner optimizer in files: adamw and schedule_free have two vectors, sgd one."""

MARGIN_BYTES: Final = 2 << 20
"""Bytes left free beside a checkpoint's tensors: the largest meta.json (1 MiB), and as much for the event log and the
small files that a node replaces. Chosen."""


def bytes_of(tensors: Mapping[str, Storable]) -> int:
    """Return the bytes of a checkpoint of these tensors, with the margin."""
    return MARGIN_BYTES + sum(each.nbytes for each in tensors.values())


def expected_bytes(parameters: int, *, late_average: bool = False) -> int:
    """Return the bytes of a checkpoint of a model with so many parameters, with the margin. `late_average`: whether the
    mean of late weights is kept."""
    return MARGIN_BYTES + (CHECKPOINT_BYTES_PER_PARAMETER + 4 * late_average) * parameters


def checkpoint_bytes(config: Config, parameters: int) -> int:
    """Return the bytes of a checkpoint of this node, with the margin, of a model with so many parameters, local ones
    (`train.local`) among them: with its personal model and the one that is kept to notice shifts."""
    beside = (
        PERSONAL_BYTES_PER_PARAMETER * (config.personal.find() is not None) + KEPT_BYTES_PER_PARAMETER * config.shift.on
    )
    return expected_bytes(parameters, late_average=config.train.late_average > 0) + beside * parameters


def missing(folder: Path, needed: int) -> int:
    """Return how many of the `needed` bytes the disk of `folder` lacks; 0 where none, or where that is not known."""
    free = disk_free(folder)
    return 0 if free < 0 else max(0, needed - free)


def lacking_words(folder: Path, needed: int) -> str:
    """Return the space needed, free and lacking there, to append to a reason; empty where nothing is lacking."""
    lacking, free = missing(folder, needed), text.size(disk_free(folder))
    return f", {text.size(needed)} needed, {free} free at {folder}: free {text.size(lacking)} more" if lacking else ""


def estimates_bytes(config: Config, parameters: int) -> int:
    """Return the most bytes that the neighbours' models take on disk."""
    if config.node.estimates_on == "memory":
        return 0
    return (config.network.degree + MAX_DEPARTED) * config.sync.estimate_dtype.itemsize * parameters


def optimizer_bytes(config: Config, parameters: int) -> int:
    """Return the most bytes that the inner optimizer's vectors take on disk: of two, which is what known ones have."""
    return 0 if config.node.optimizer_on == "memory" else OPTIMIZER_BYTES_PER_PARAMETER * parameters


def check(folder: Path, parameters: int, config: Config, *, spare: int = 0, nodes: int = 1) -> None:
    """Raise RunError unless each of `nodes` nodes can write one checkpoint of its model on the disk of `folder`, beside
    its neighbours' models, where these lie there. `spare` is the bytes of older checkpoints, which may be removed."""
    held = estimates_bytes(config, parameters) + optimizer_bytes(config, parameters)
    needed = nodes * (checkpoint_bytes(config, parameters) + held)
    lacking = missing(folder, max(0, needed - spare))
    if not lacking:
        return
    beside, instead = (" and its neighbours' models", ", or leave node.estimates_on at memory") if held else ("", "")
    what = f"a checkpoint{beside}" if nodes == 1 else f"a checkpoint{beside} of each of {nodes} nodes"
    raise RunError(
        f"there is no room for {what}: {text.size(needed)} needed, {text.size(disk_free(folder))} free at {folder}",
        f"free {text.size(lacking)} more, or give another --run-dir{instead}",
    )
