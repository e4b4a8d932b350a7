"""Room on the disk for a checkpoint: how much one takes, and whether it is there.

A file system may answer that there is room and refuse (quotas), or not answer at all; so a check comes before a write,
and the write says in the end.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from node.system import text
from node.system.disk import disk_free
from node.system.errors import RunError

CHECKPOINT_BYTES_PER_PARAMETER: Final = 20
"""Measured with AdamW, of which a checkpoint has 16 bytes a parameter (the model, two moments, the anchor), and 20 with
the outer momentum of `noloco`."""

MARGIN_BYTES: Final = 2 << 20
"""Left free beside a checkpoint's tensors: a meta.json at its largest (1 MiB), and as much for the event log and the
small files that a node replaces. Chosen."""


def bytes_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """What a checkpoint of these tensors takes, with the margin."""
    return MARGIN_BYTES + sum(each.numel() * each.element_size() for each in tensors.values())


def expected_bytes(parameters: int) -> int:
    """What a checkpoint of a model of so many parameters takes, with the margin."""
    return MARGIN_BYTES + CHECKPOINT_BYTES_PER_PARAMETER * parameters


def missing(folder: Path, needed: int) -> int:
    """Bytes that are missing of `needed` on the disk of `folder`. 0: none are, or nobody can say."""
    free = disk_free(folder)
    return 0 if free < 0 else max(0, needed - free)


def lacking_words(folder: Path, needed: int) -> str:
    """What is needed, free, and missing there, to be put behind a reason; empty where nothing is missing."""
    lacking, free = missing(folder, needed), text.size(disk_free(folder))
    return f", {text.size(needed)} needed, {free} free at {folder}: free {text.size(lacking)} more" if lacking else ""


def check(folder: Path, parameters: int, *, spare: int = 0, nodes: int = 1) -> None:
    """RunError unless each of so many nodes can write one checkpoint of its model on the disk of `folder`. `spare`:
    bytes of older checkpoints, which may make room."""
    needed = nodes * expected_bytes(parameters)
    lacking = missing(folder, max(0, needed - spare))
    if not lacking:
        return
    what = "a checkpoint" if nodes == 1 else f"a checkpoint of each of {nodes} nodes"
    raise RunError(
        f"there is no room for {what}: {text.size(needed)} needed, {text.size(disk_free(folder))} free at {folder}",
        f"free {text.size(lacking)} more, or give another --run-dir",
    )
