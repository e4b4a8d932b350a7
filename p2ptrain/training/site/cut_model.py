"""The task's model, shared out among the ranks of a site.

Every rank builds the model that any node of the swarm builds, from the same seed, and then lets go of all but its own
parts (FSDP2). What the swarm must know of it, its names and shapes, is noted before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from p2ptrain.inner.base import Place
from p2ptrain.tasks.base import Task, identity_of
from p2ptrain.training.flat import fingerprint, places
from p2ptrain.training.layout import StateLayout, layout_of
from p2ptrain.training.model import build_model
from p2ptrain.training.site.site_config import SiteConfig


@dataclass(frozen=True, kw_only=True)
class CutModel:
    """A rank's part of the model, and what is known of the whole."""

    model: nn.Module
    fingerprint: bytes
    identity: bytes
    layout: StateLayout | None
    places: Sequence[Place]
    """Of the whole model's parameters."""
    data_rank: int
    data_ranks: int
    """How many ranks have data of their own, and which of them this one is."""


def cut_model(task: Task, seed: int, site: SiteConfig, device: torch.device, ranks: int) -> CutModel:
    """Build the model and keep this rank's parts of it on `device`. Collective. Raises TaskError."""
    replicas, shards = site.mesh(ranks)
    model = build_model(task, seed)
    whole = partial(
        CutModel,
        model=model,
        fingerprint=fingerprint(model),
        identity=identity_of(task, model),
        layout=layout_of(model),
        places=places(model),
    )
    mesh = init_device_mesh(device.type, (replicas, shards), mesh_dim_names=("replica", "shard"))
    blocks = blocks_of(model)
    if site.activation_checkpointing:
        _checkpoint(blocks)
    _shard(model, blocks, mesh if replicas > 1 else mesh["shard"], device)
    return whole(data_rank=mesh.get_rank(), data_ranks=ranks)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the model's blocks, each of which is gathered, and computed again, by itself: the modules of its outermost
    lists."""
    blocks: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            blocks += [each for each in child if any(True for _ in each.parameters())]
        else:
            blocks += blocks_of(child)
    return blocks


def _checkpoint(blocks: Sequence[nn.Module]) -> None:
    """Have each block compute its activations again. By its `forward`, for a wrapper would change parameters' names."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _shard(model: nn.Module, blocks: Sequence[nn.Module], mesh: DeviceMesh, device: torch.device) -> None:
    """Share out what is trained. What is frozen stays whole: nobody has gradients or optimizer state for it."""
    frozen = {each for each in model.parameters() if not each.requires_grad}
    for each in frozen:
        each.data = each.data.to(device)
    options: dict[str, Any] = {"mesh": mesh, "ignored_params": frozen}
    for block in blocks:
        if any(each.requires_grad for each in block.parameters()):
            fully_shard(block, **options)
    fully_shard(model, **options)
