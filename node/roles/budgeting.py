"""Bring a node within its budget before it starts: what it takes is planned, and then held.

settings ── model built ── its memory read, one example tried ── `plan_memory`, `plan_disk` ── settings of the plan
── the node is built ── `hold`
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from node.config.budget_section import BudgetConfig
from node.config.schema import Config
from node.events.event_types import BudgetPlanned
from node.events.log import EventLog
from node.roles.assembly import NodeContext, learner_of
from node.roles.budget_plan import BudgetPlan, DiskPlan, plan_disk, plan_memory
from node.roles.memory_forecast import FP32, memory_forecast
from node.roles.memory_forecast import optimizer_bytes as state_bytes
from node.roles.observer import observes
from node.system import free_memory, text
from node.system.cgroups import HeldProcess, Limits, machine_memory
from node.system.disk import lies_in_memory
from node.system.errors import UsageError
from node.system.process_use import held_bytes
from node.training.budget_meter import folder_bytes
from node.training.budget_watch import BudgetWatch
from node.training.checkpoint import CheckpointStore
from node.training.checkpoint_room import estimates_bytes, optimizer_bytes
from node.training.estimates import MAX_DEPARTED
from node.training.gpu_budget import GpuBudget, gpu_budget
from node.training.machine_readings import nvml_reader
from p2ptrain.sync.strategy_spec import GOSSIP
from p2ptrain.training import Learner, Trainer
from p2ptrain.training.logits_trainer import LogitsTrainer

STARTED_BYTES: Final = 18_000_000
"""What a node's network, page and log take once they run, beside the program that is loaded. Measured."""

ACTIVATIONS: Final = 1.25
"""Times what a batch keeps for the backward pass that it takes at work: micro, 16 examples, 119 MB for 100. Measured.
"""

SPARE: Final = 1.05
"""Times its forecast that a node is taken to need: gaps that the C library leaves, and what the kernel keeps for a
process (page tables, sockets, pages that are being written), which a cgroup counts. Measured."""

FRESH_VECTORS: Final = 3
"""Vectors of the model that are in memory when it has been built and tried, beside the optimizer's: parameters,
gradient, initial model."""


@dataclass(frozen=True, kw_only=True)
class Budgeted:
    """A node's parts as they fit its budget."""

    config: Config
    around: NodeContext
    learned: tuple[Learner, torch.Tensor]
    memory: BudgetPlan
    disk: DiskPlan
    gpu: GpuBudget | None
    """None: the GPU's memory has no budget."""
    watches: Sequence[BudgetWatch | GpuBudget]
    """What runs beside the node, to follow what it takes."""

    def hold(self, process: HeldProcess, log: EventLog) -> BudgetPlanned:
        """Hold the process and its log of events to the budget, and return what to tell of it. Call it once the node is
        built."""
        free_memory.trim()
        process.limit(limits_of(self.config.budget))
        log.bound(self.disk.event_bytes)
        return _planned(self, process.holds)


def check_budget(config: Config, *, user_loop: bool) -> None:
    """Raise UsageError where a node with these settings cannot have a budget."""
    if not config.budget.is_set:
        return
    for wrong, what in (
        (user_loop, "a loop of your own, whose memory is yours"),
        (observes(config), "an observer"),
        (config.node.lane == "process", "node.lane=process"),
    ):
        if wrong:
            raise UsageError(
                f"[budget] is not for {what}", "leave it out, or run `p2ptrain node` with node.lane=thread"
            )


def limits_of(budget: BudgetConfig) -> Limits:
    """Return what a cgroup holds of a budget."""
    return Limits(memory=budget.memory, cpu=budget.cpu)


def within_budget(config: Config, around: NodeContext, *, used: Callable[[], int] = held_bytes) -> Budgeted:
    """Build what trains, and return the settings with which the node stays within its budget. Raises UsageError where
    it cannot."""
    config = with_threads(config)
    learned = learner_of(config, around)
    trainer = learned[0].own if isinstance(learned[0], LogitsTrainer) else learned[0]
    assert isinstance(trainer, Trainer), "check_budget lets no other through"
    least = trainer.least_at_a_time()
    gpu = None
    if config.budget.gpu_memory is not None:
        gpu = gpu_budget(config.budget.gpu_memory, trainer.device, nvml_reader(trainer.device))
        trainer.kept_by(least)  # loads most of the kernels that a step needs
        gpu.hold()
    folder = around.checkpoints.folder
    in_memory = lies_in_memory(folder)
    memory = plan_memory(
        config,
        needs_of(trainer, least, used, in_memory=in_memory),
        least_examples=least,
        machine=machine_memory(),
        in_memory=in_memory,
    )
    disk = plan_disk(memory.config, trainer.trained_numel, spare_memory=spare_memory(memory), in_memory=in_memory)
    if disk.config.node.micro_batch:
        trainer.take_at_a_time(disk.config.node.micro_batch)
    keep, most = disk.config.node.checkpoint_keep, memory.config.budget.memory

    def taken() -> int:
        return used() + (folder_bytes(folder.parent) if in_memory else 0)

    memory_watch = None if most is None else BudgetWatch(most, taken, trainer, least)
    return Budgeted(
        config=disk.config,
        around=replace(
            around,
            checkpoints=CheckpointStore(
                folder, keep=keep, room=disk_room(disk, folder, trainer.trained_numel), in_memory=disk.state_in_memory
            ),
        ),
        learned=learned,
        memory=memory,
        disk=disk,
        gpu=gpu,
        watches=[each for each in (memory_watch, gpu) if each is not None],
    )


def spare_memory(plan: BudgetPlan) -> int | None:
    """Return the bytes of `budget.memory` that its plan leaves; None without that budget."""
    budget = plan.config.budget.memory
    return None if budget is None else budget - plan.needed


def disk_room(plan: DiskPlan, checkpoints: Path, parameters: int) -> Callable[[], int] | None:
    """Return what measures how many bytes the node may still write: `budget.disk` without its folder, which has
    `checkpoints` in it, and without the most that its files without names take; None without that budget."""
    config = plan.config
    most = config.budget.disk
    if most is None:
        return None
    nameless = estimates_bytes(config, parameters) + optimizer_bytes(config, parameters)
    named = most - nameless - (0 if plan.state_in_memory else state_bytes(config, parameters))
    return lambda: named - folder_bytes(checkpoints.parent)


def needs_of(
    trainer: Trainer, least: int, used: Callable[[], int] = held_bytes, *, in_memory: bool = False
) -> Callable[[Config], int]:
    """Return what forecasts the memory, in bytes, of a node in this process with this trainer, which has just been
    built. Tries `least` examples, the fewest that may go through the model at a time. `used` returns what the process
    holds. `in_memory`: whether the node's folder lies in memory, and its files with it."""
    on_cpu = trainer.device.type == "cpu"
    example = trainer.kept_by(least) / least if on_cpu else 0.0
    free_memory.trim()
    vector = FP32 * trainer.trained_numel
    built = FRESH_VECTORS * vector + optimizer_bytes_of(trainer) if on_cpu else vector
    program = max(0, used() - built) + STARTED_BYTES

    def need(candidate: Config) -> int:
        examples = candidate.node.micro_batch or candidate.train.batch_size
        kept = round(ACTIVATIONS * example * min(examples, candidate.train.batch_size))
        forecast = memory_forecast(trainer.trained_numel, str(trainer.device), candidate, kept=kept, program=program)
        return round(SPARE * (forecast.total + departed_bytes(candidate, trainer.numel))) + (
            files(candidate) if in_memory else 0
        )

    def files(candidate: Config) -> int:
        initial = candidate.sync.estimate_dtype.itemsize * trainer.numel
        return plan_disk(candidate, trainer.trained_numel, in_memory=True).needed + initial

    return need


def departed_bytes(config: Config, parameters: int) -> int:
    """Return the most bytes of memory that models of departed neighbours take, beside those of `network.degree`. Peers
    that join and leave would otherwise have the kernel end the node."""
    if config.node.estimates_on == "disk" or config.sync.spec().averager != GOSSIP:
        return 0
    return MAX_DEPARTED * config.sync.estimate_dtype.itemsize * parameters


def optimizer_bytes_of(trainer: Trainer) -> int:
    """Return the bytes of the buffers that a trainer's optimizer and drift correction hold."""
    local = {} if trainer.local is None else trainer.local.buffers
    buffers = (trainer.optimizer.buffers, trainer.drift.buffers, local)
    return sum(each.nbytes for held in buffers for each in held.values())


def with_threads(config: Config) -> Config:
    """Return the settings with as many threads as cores may be taken, where no number is set, and no more than torch
    takes by itself."""
    if config.budget.cpu is None or config.train.threads:
        return config
    threads = min(max(1, math.floor(config.budget.cpu)), torch.get_num_threads())
    train = replace(config.train, threads=threads)
    return config.model_copy(update={"train": train})


def plan_words(memory: BudgetPlan, disk: DiskPlan) -> str:
    """Return the plan for people: what may be taken, what is needed, and what was chosen."""
    budget = disk.config.budget
    parts = []
    if budget.memory is not None:
        parts.append(f"memory {text.size(budget.memory)}, about {text.size(memory.needed)} needed")
    if budget.gpu_memory is not None:
        parts.append(f"GPU memory {text.size(budget.gpu_memory)}")
    if budget.disk is not None:
        parts.append(f"disk {text.size(budget.disk)}, about {text.size(disk.needed)} needed")
    if budget.cpu is not None:
        parts.append("1 core" if budget.cpu == 1 else f"{budget.cpu:g} cores")
    return f"{'; '.join(parts)}; {', '.join((*memory.moves, *disk.moves)) or 'all as it is'}"


def _planned(budgeted: Budgeted, holds: frozenset[str]) -> BudgetPlanned:
    memory = budgeted.memory
    budget, words = budgeted.config.budget, plan_words(memory, budgeted.disk)
    bounded = [name for name in ("memory", "cpu") if getattr(budget, name) is not None]
    unheld = [name for name in bounded if name not in holds]
    if holds:
        words += f"; {' and '.join(sorted(holds, reverse=True))} held by a cgroup"
    if unheld:
        words += f"; {' and '.join(unheld)} watched, not held: no cgroup can be made here"
    if budgeted.gpu is not None and not budgeted.gpu.counts_driver:
        words += "; GPU memory without the driver's own part, which is not told here (nvidia-ml-py tells it)"
    return BudgetPlanned(message=words, needed_bytes=memory.needed, memory_bytes=budget.memory, held=sorted(holds))
