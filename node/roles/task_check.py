"""A user's own task is tried before anything is launched on it, and its memory is estimated.

Built-in tasks are not tried: their start would be delayed by a step and an evaluation, and tests cover these checks.
"""

from typing import Final

import psutil
import torch

from node.config.schema import Config
from node.roles.memory_forecast import memory_forecast
from node.system import text
from p2ptrain.tasks import Shard, Task
from p2ptrain.tasks.base import HoldsOutOwn
from p2ptrain.training.preflight import Preflight, is_built_in, preflight

BYTES_PER_PARAMETER_GPU: Final = 20
"""Of a GPU's memory, with AdamW: docs/operations.md ("What a node needs")."""


def check_task(config: Config, task: Task, shard: Shard, *, data_seed: int | None = None, nodes: int = 1) -> list[str]:
    """Try the task before `nodes` nodes of this machine train it. Return the doubts, a line each. Raises TaskFaultError
    for a fault that would end or spoil the run."""
    if is_built_in(task):
        return []
    found = preflight(task, config.train, shard, data_seed=data_seed)
    return [*found.doubts(), *_of_personal(config, task), *_memory(config, found, nodes)]


def _of_personal(config: Config, task: Task) -> list[str]:
    if isinstance(task, HoldsOutOwn) or not (config.train.local or config.personal.find()):
        return []
    return [
        f"the task {task.name} holds nothing out shard by shard (shard_eval_batches): models that stay personal are "
        "measured on what is held out for all"
    ]


def _memory(config: Config, found: Preflight, nodes: int) -> list[str]:
    neighbours = nodes - 1 if nodes > 1 else None
    one = memory_forecast(found.parameters, found.device, config, kept=found.kept_bytes, neighbours=neighbours)
    doubts = [_too_much(nodes * one.total, psutil.virtual_memory().available, "memory", nodes)]
    if found.device.startswith("cuda"):
        need = nodes * (BYTES_PER_PARAMETER_GPU * found.parameters + found.kept_bytes)
        doubts.append(_too_much(need, torch.cuda.mem_get_info(found.device)[0], f"memory of {found.device}", nodes))
    return [doubt for doubt in doubts if doubt]


def _too_much(need: int, free: int, what: str, nodes: int) -> str:
    if need <= free:
        return ""
    fewer = "--nodes, " if nodes > 1 else ""
    return (
        f"{text.plural(nodes, 'node')} of this task will want about {text.size(need)} of {what}, and "
        f"{text.size(free)} are free: lower {fewer}train.batch_size or the model"
    )
