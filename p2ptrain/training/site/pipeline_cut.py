"""A model cut into the stages of a pipeline, of which each rank keeps its own.

The model stays one module with the names of all its parameters. Those of other ranks' stages become parameters without
values (on torch's meta device), so that the flat vector has the same order in every rank, and a rank has an empty block
of what is not its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from p2ptrain.tasks.base import PipelineParallel, Task, TaskError
from p2ptrain.tasks.calling import calling
from p2ptrain.training.flat import trainable
from p2ptrain.training.site.site_config import SiteConfig


@dataclass(frozen=True, kw_only=True)
class PipelineCut:
    """A rank's stages, and the ranks with which it computes."""

    stages: Mapping[int, nn.Module]
    """Its own, by their numbers."""
    count: int
    """Of the stages of all ranks."""
    group: dist.ProcessGroup
    """The ranks of this pipeline, in the order of the stages."""
    shared: Mapping[int, dist.ProcessGroup]
    """By the number of a parameter of this rank that stages of other ranks have as well: the ranks that have it."""


def cut_pipeline(task: Task, model: nn.Module, site: SiteConfig) -> PipelineCut:
    """Cut `model` into stages. Collective. TaskError where that cannot be."""
    assert isinstance(task, PipelineParallel), "check_parallel says so"
    with calling(task, "cut_stages"):
        stages = list(task.cut_stages(model, site.stages))
    holders = stage_holders(task, model, stages, site.pipeline)
    width = dist.get_world_size() // site.pipeline
    place = dist.get_rank() // width
    everywhere = tuple(range(site.pipeline))
    several = dict.fromkeys([everywhere, *(places for places in holders if len(places) > 1)])
    groups = {places: _group_of(places, width, site.timeout_s) for places in several}
    shared = {index: group for index, places in enumerate(holders) if place in places and (group := groups.get(places))}
    whole = groups[everywhere]
    assert whole is not None, "every rank is of one"
    own = {index: stages[index] for index in range(place, len(stages), site.pipeline)}
    return PipelineCut(stages=own, count=len(stages), group=whole, shared=shared)


def stage_holders(task: Task, model: nn.Module, stages: Sequence[nn.Module], ranks: int) -> list[tuple[int, ...]]:
    """Return for each trained parameter which of a pipeline's `ranks` have it, by their places. TaskError where the
    stages are not the model."""
    cut = f"cut_stages of the task {task.name}"
    trained = trainable(model)
    if len(trained) < len(list(model.parameters())) or any(True for _ in model.buffers()):
        raise TaskError(f"the model of the task {task.name} has buffers or frozen parameters: leave site.pipeline at 1")
    having = [{id(parameter) for parameter in stage.parameters()} for stage in stages]
    if set().union(*having) - {id(parameter) for _, parameter in trained}:
        raise TaskError(f"{cut} has made stages with parameters that are none of the model's")
    holders = []
    for name, parameter in trained:
        places = [stage % ranks for stage, ids in enumerate(having) if id(parameter) in ids]
        if not places:
            raise TaskError(f"{cut} has left out parameter {name}: each must be in a stage")
        if len(set(places)) < len(places):
            raise TaskError(
                f"parameter {name} would be in two stages of one rank: take site.pipeline_schedule=1f1b, or another "
                "site.pipeline"
            )
        holders.append(tuple(sorted(places)))
    return holders


@contextmanager
def only_of(model: nn.Module, stages: Iterable[nn.Module]) -> Iterator[None]:
    """Within the block the parameters of `stages` may be replaced, such as by shards. After it `model` has what the
    stages have then, under all its names, and all its other parameters are without values."""
    places = [(module, name, parameter) for module in model.modules() for name, parameter in _own(module)]
    kept = {
        id(parameter): (module, name)
        for each in stages
        for module in each.modules()
        for name, parameter in _own(module)
    }
    yield
    absent: dict[int, nn.Parameter] = {}
    for module, name, before in places:
        if id(before) in kept:
            holder, held = kept[id(before)]
            setattr(module, name, getattr(holder, held))
        else:
            setattr(module, name, absent.setdefault(id(before), _without_values(before)))


def _own(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return module.named_parameters(recurse=False, remove_duplicate=False)


def _without_values(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"))


def _group_of(places: Sequence[int], width: int, timeout_s: float) -> dist.ProcessGroup | None:
    """Make the groups of those ranks of each pipeline that have these places in it, `width` ranks being abreast. Return
    this rank's; None where it is in none."""
    columns = [[column + place * width for place in places] for column in range(width)]
    groups = [(ranks, dist.new_group(ranks, timeout=timedelta(seconds=timeout_s))) for ranks in columns]
    return next((group for ranks, group in groups if dist.get_rank() in ranks), None)
