"""The task's model, shared out among the ranks of a site.

Every rank builds the model that any node of the swarm builds, from the same seed, and then lets go of all but its own
parts (FSDP2). What the swarm must know of it, its names and shapes, is noted before.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

from p2ptrain.inner.base import Place
from p2ptrain.tasks.base import PipelineParallel, Task, TaskError, TensorParallel, identity_of, whole_batches
from p2ptrain.training.flat import fingerprint, places, trainable
from p2ptrain.training.layout import StateLayout, layout_of
from p2ptrain.training.model import build_model
from p2ptrain.training.site.pipeline_cut import PipelineCut, cut_pipeline, only_of
from p2ptrain.training.site.site_config import MeshShape, SiteConfig

FUSED_DIMENSIONS: Final = 3


@dataclass(frozen=True, kw_only=True)
class CutModel:
    """A rank's part of the model, and what is known of the whole."""

    model: nn.Module
    stages: Sequence[nn.Module]
    """What of it this rank computes: the model, or its stages of a pipeline."""
    pipeline: PipelineCut | None
    fingerprint: bytes
    identity: bytes
    layout: StateLayout | None
    places: Sequence[Place]
    """Of the whole model's parameters."""
    data_rank: int
    data_ranks: int
    """How many ranks of a stage have data of their own, and which of them this one is."""
    data_groups: Sequence[dist.ProcessGroup]
    """Groups over which a gradient has to be added up, one after another, to be that of all these ranks' data."""
    same: int
    """How many ranks compute the same from the same data."""


def cut_model(task: Task, seed: int, site: SiteConfig, device: torch.device, ranks: int) -> CutModel:
    """Build the model and keep this rank's parts of it on `device`. Collective. Raises TaskError."""
    shape = site.mesh(ranks)
    model = build_model(task, seed)
    for _, each in trainable(model):
        each.data = each.data.float()  # as FlatParameters has them
    whole = partial(
        CutModel,
        model=model,
        fingerprint=fingerprint(model),
        identity=identity_of(task, model),
        layout=layout_of(model),
        places=places(model),
    )
    mesh = _mesh(device.type, shape)
    if shape.tensor > 1:
        model.to(device)
        assert isinstance(task, TensorParallel), "check_parallel says so"
        task.share_tensors(model, mesh["tensor"])
    pipeline = cut_pipeline(task, model, site) if shape.pipeline > 1 else None
    stages = [model] if pipeline is None else list(pipeline.stages.values())
    with nullcontext() if pipeline is None else only_of(model, stages):
        for stage in stages:
            blocks = blocks_of(stage)
            if site.activation_checkpointing:
                _checkpoint(blocks)
            among = mesh["replica", "shard"] if shape.replicas > 1 else mesh["shard"]
            _shard(stage, blocks, among, device, _policies(site, device))
    data_rank = mesh.get_rank() // shape.tensor % shape.data_ranks
    return whole(
        stages=stages,
        pipeline=pipeline,
        data_rank=data_rank,
        data_ranks=shape.data_ranks,
        data_groups=[mesh.get_group(name) for name in ("replica", "shard") if mesh[name].size() > 1],
        same=shape.tensor,
    )


@cache
def _mesh(kind: str, shape: MeshShape) -> DeviceMesh:
    """One mesh of a shape in a process: DTensor keeps what it has worked out by the ranks of a mesh, not by its groups,
    and a thread that has none of that kept would use others than one that has."""
    return init_device_mesh(kind, shape, mesh_dim_names=("pipeline", "replica", "shard", "tensor"))


def check_parallel(task: Task, site: SiteConfig, having: Callable[[str], Sequence[str]]) -> None:
    """Raise TaskError where `site` wants of the task what it has not. `having`: the names of tasks that have a
    method."""
    for name, kind, method, how in (
        ("tensor", TensorParallel, "share_tensors", "its matrices are shared out"),
        ("pipeline", PipelineParallel, "cut_stages", "its model is cut into stages"),
    ):
        count = getattr(site, name)
        if count > 1 and not isinstance(task, kind):
            raise TaskError(
                f"site.{name}={count}: the task {task.name} does not say how {how}; "
                f"{', '.join(having(method))} does; leave site.{name} at 1"
            )
    if site.pipeline > 1 and whole_batches(task):
        raise TaskError(
            f"site.pipeline={site.pipeline}: the loss of the task {task.name} compares the examples of a batch, which "
            "a pipeline would cut; leave site.pipeline at 1"
        )


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the model's blocks, each of which is computed again by itself: the modules of its outermost lists, and of
    lists within these."""
    return [each for each in dict.fromkeys(_listed(model)) if any(True for _ in each.parameters())]


def _listed(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _called_in(child) if isinstance(child, nn.ModuleList) else _listed(child)


def _called_in(modules: nn.ModuleList) -> Iterator[nn.Module]:
    for each in modules:
        if isinstance(each, nn.ModuleList):
            yield from _called_in(each)
        elif type(each).forward is nn.Module.forward:  # a container, which nobody calls
            yield from _listed(each)
        else:
            yield each


def _apart(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Return those of `blocks` that can be gathered by themselves: with no parameter that is elsewhere in `model`, too,
    which FSDP2 would make two of."""
    within = {module for block in blocks for module in block.modules()}
    times = Counter(parameter for block in blocks for parameter in block.parameters())
    outside = (module for module in model.modules() if module not in within)
    times.update(parameter for module in outside for parameter in module.parameters(recurse=False))
    return [block for block in blocks if all(times[parameter] == 1 for parameter in block.parameters())]


def _checkpoint(blocks: Sequence[nn.Module]) -> None:
    """Have each block compute its activations again. By its `forward`, for a wrapper would change parameters' names."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _shard(
    model: nn.Module, blocks: Sequence[nn.Module], mesh: DeviceMesh, device: torch.device, policies: dict[str, Any]
) -> None:
    """Share out what is trained, and can be cut. What is frozen stays whole: nobody has gradients or optimizer state
    for it."""
    whole = {each for each in model.parameters() if not each.requires_grad or not each.ndim or not each.numel()}
    for each in model.parameters():
        if each in whole:
            each.data = each.data.to(device)
        elif not each.is_contiguous():  # as it may be in one process; FSDP2 does not take it
            each.data = each.data.contiguous()
    shards = mesh.size(mesh.ndim - 1)
    options: dict[str, Any] = {
        "mesh": mesh,
        "ignored_params": whole,
        "shard_placement_fn": partial(_placement, shards=shards),
        **policies,
    }
    for block in _apart(model, blocks):
        if any(each not in whole for each in block.parameters()):
            fully_shard(block, **options)
    fully_shard(model, **options)
    if hasattr(model, "set_reduce_scatter_unused_params"):  # of torch 2.13
        # A rank whose examples leave a parameter out, such as an expert, would add up others than the rest of them.
        model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]


def _policies(site: SiteConfig, device: torch.device) -> dict[str, Any]:
    """FSDP2's options: when it lets go of what it has gathered, and where the parts lie."""
    policies: dict[str, Any] = {}
    if site.pipeline > 1:  # the micro-batches follow each other: what was gathered for the first serves the others
        policies["reshard_after_forward"] = False
    if site.offload:
        policies["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    return policies


def _placement(parameter: nn.Parameter, *, shards: int) -> Shard | None:
    """By which dimension a parameter is shared out; None: the first. A fused one has few rows of whole matrices, which
    would leave ranks without any."""
    if parameter.ndim < FUSED_DIMENSIONS or parameter.shape[-1] % shards:
        return None
    return Shard(parameter.ndim - 1)
