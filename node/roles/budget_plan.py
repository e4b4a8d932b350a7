"""What a node moves out of memory so that it stays within its budget, chosen before it starts, by its own forecast.

In the order of what they cost: the neighbours' models to the disk, which are read and written once a round; then the
inner optimizer's vectors, read and written at every step; then fewer examples at a time, down to as few as the task can
be trained on. Each keeps what the ones before it have given. The numbers that training comes to are the same, but for
rounding where a batch is cut.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from node.config.schema import Config
from node.events.library_logs import LOG_BYTES
from node.events.log import MAX_BYTES
from node.roles.assembly import why_not_filed
from node.roles.memory_forecast import optimizer_bytes as state_bytes
from node.system import text
from node.system.errors import UsageError
from node.training.checkpoint_room import MARGIN_BYTES, checkpoint_bytes, estimates_bytes, optimizer_bytes
from p2ptrain.sync.strategy_spec import GOSSIP

EVENT_FILES_SHARE: Final = 16
"""The part of a budget of disk that the two files of events may take: one in so many. Chosen."""

LEAST_EVENT_BYTES: Final = 3 << 20
"""Of each of them on the smallest disk: some 2,000 rounds. Chosen."""


@dataclass(frozen=True, kw_only=True)
class BudgetPlan:
    """What was chosen."""

    config: Config
    """The node's settings, with what was chosen."""
    needed: int
    """Bytes of memory that the node needs with them."""
    moves: tuple[str, ...] = ()
    """What was chosen, for people; empty: all fits as it is."""


def plan_memory(
    config: Config,
    need: Callable[[Config], int],
    *,
    least_examples: int = 1,
    machine: int | None = None,
    in_memory: bool = False,
) -> BudgetPlan:
    """Return the settings that cost the least and need no more than `budget.memory`, by `need`, which returns the bytes
    that a node with these settings takes. `least_examples`: how few may go through the model at a time. `machine`: the
    bytes of memory that there are, which a budget cannot go beyond. `in_memory`: whether the node's folder lies there,
    so that nothing is gained by files. Raises UsageError where none do."""
    budget, least = config.budget.memory, 0
    if budget is None:
        return BudgetPlan(config=config, needed=need(config))
    beyond: tuple[str, ...] = ("with the run folder, which lies in memory",) if in_memory else ()
    what = f"budget.memory of {text.size(budget)}"
    if machine is not None and machine < budget:
        what = f"the memory of this machine, {text.size(machine)},"
        beyond = (*beyond, f"all that this machine has, and not the {text.size(budget)} that were asked for")
        budget = machine
        config = config.model_copy(update={"budget": replace(config.budget, memory=budget)})
    for candidate, moves in _candidates(config, least_examples, in_memory=in_memory):
        least = need(candidate)
        if least <= budget:
            return BudgetPlan(config=candidate, needed=least, moves=(*beyond, *moves))
    files = " with its run folder, which lies in memory," if in_memory else ""
    raise UsageError(
        f"{what} is too little: this node{files} needs {text.size(least)} at least",
        f"give it that much, or lower the model{', visits.most_a_round' if config.visits.on else ''} or network.degree",
    )


@dataclass(frozen=True, kw_only=True)
class DiskPlan(BudgetPlan):
    """What was chosen of the disk, whose bytes `needed` are."""

    event_bytes: int = MAX_BYTES
    """The most bytes of each of the two files of events."""
    state_in_memory: bool = False
    """Whether the optimizer's state, which the next checkpoint is written from, is kept in memory and not on disk."""


def plan_disk(config: Config, parameters: int, *, spare_memory: int | None = None, in_memory: bool = False) -> DiskPlan:
    """Return the settings with as many checkpoints kept as fit into `budget.disk`, of a model of so many parameters. A
    checkpoint is replaced by one that is whole, so that two must fit; where the optimizer's state does not fit beside
    them, it is kept in memory, of which `spare_memory` bytes are left (None: unbounded). `in_memory`: whether the
    node's folder lies in memory, whose budget then bounds the logs as well. Raises UsageError where even so too little
    is left."""
    one, state = checkpoint_bytes(config, parameters), state_bytes(config, parameters)
    budget, keep = config.budget.disk, config.node.checkpoint_keep
    bound = config.budget.memory if budget is None and in_memory else budget
    events = MAX_BYTES if bound is None else event_bytes(bound)
    logs = 2 * (events + LOG_BYTES)
    beside = logs + MARGIN_BYTES + estimates_bytes(config, parameters) + optimizer_bytes(config, parameters)
    if budget is None:
        return DiskPlan(config=config, needed=beside + state + (keep + 1) * one, event_bytes=events)
    has_memory = spare_memory is None or state <= spare_memory
    in_memory = has_memory and budget < beside + state + 2 * one
    beside += 0 if in_memory else state
    fit = min(keep, (budget - beside) // one - 1)
    if fit < 1:
        hint = "give it that much, or lower the model"
        if not has_memory and beside - state + 2 * one <= budget:
            hint = f"give it that much, or budget.memory {text.size(state - (spare_memory or 0))} more"
        raise UsageError(
            f"budget.disk of {text.size(budget)} is too little: this node needs {text.size(beside + 2 * one)} at least",
            hint,
        )
    moves = () if fit == keep else (f"{text.plural(fit, 'checkpoint')} kept",)
    if in_memory:
        moves = (*moves, f"{text.size(state)} more of memory while a checkpoint is written")
    return DiskPlan(
        config=config.model_copy(update={"node": replace(config.node, checkpoint_keep=fit)}),
        needed=beside + (fit + 1) * one,
        moves=moves,
        event_bytes=events,
        state_in_memory=in_memory,
    )


def event_bytes(disk: int) -> int:
    """Return the most bytes of each of the two files of events within a budget of `disk` bytes."""
    return min(MAX_BYTES, max(LEAST_EVENT_BYTES, disk // (2 * EVENT_FILES_SHARE)))


def _candidates(config: Config, least_examples: int, *, in_memory: bool) -> Iterator[tuple[Config, tuple[str, ...]]]:
    """Yield settings, each of which takes less than the one before, and what was chosen."""
    node = config.node
    moves: tuple[str, ...] = ()
    yield config, moves
    if in_memory and node.checkpoint_keep > 1:
        node, moves = replace(node, checkpoint_keep=1), (*moves, "1 checkpoint kept")
        yield config.model_copy(update={"node": node}), moves
    if not in_memory and node.estimates_on == "memory" and config.sync.spec().averager == GOSSIP:
        node, moves = replace(node, estimates_on="disk"), (*moves, "neighbours' models on disk")
        yield config.model_copy(update={"node": node}), moves
    if not in_memory and node.optimizer_on == "memory" and not why_not_filed(config):
        node, moves = replace(node, optimizer_on="disk"), (*moves, "optimizer on disk")
        yield config.model_copy(update={"node": node}), moves
    examples = node.micro_batch or config.train.batch_size
    while examples // 2 >= least_examples:
        examples //= 2
        node = replace(node, micro_batch=examples)
        yield config.model_copy(update={"node": node}), (*moves, f"{text.plural(examples, 'example')} at a time")
