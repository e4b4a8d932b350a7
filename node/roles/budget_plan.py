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
from node.roles.assembly import why_not_filed
from node.system import text
from node.system.errors import UsageError
from node.training.checkpoint_room import MARGIN_BYTES, estimates_bytes, expected_bytes, optimizer_bytes
from p2ptrain.sync.strategy_spec import GOSSIP

LOG_BYTES: Final = 16 << 20
"""Of the folder's events, logs and small files, as far as a plan counts them: some 20,000 rounds. Chosen."""

WRITTEN: Final = 2
"""Checkpoints that the next one takes while it is written: the file, and the state that it is written from, which is
kept in a file without a name."""


@dataclass(frozen=True, kw_only=True)
class BudgetPlan:
    """What was chosen."""

    config: Config
    """The node's settings, with what was chosen."""
    needed: int
    """Bytes of memory that the node needs with them."""
    moves: tuple[str, ...] = ()
    """What was chosen, for people; empty: all fits as it is."""


def plan_memory(config: Config, need: Callable[[Config], int], *, least_examples: int = 1) -> BudgetPlan:
    """Return the settings that cost the least and need no more than `budget.memory`, by `need`, which returns the bytes
    that a node with these settings takes. `least_examples`: how few may go through the model at a time. Raises
    UsageError where none do."""
    budget, least = config.budget.memory, 0
    if budget is None:
        return BudgetPlan(config=config, needed=need(config))
    for candidate, moves in _candidates(config, least_examples):
        least = need(candidate)
        if least <= budget:
            return BudgetPlan(config=candidate, needed=least, moves=moves)
    raise UsageError(
        f"budget.memory of {text.size(budget)} is too little: this node needs {text.size(least)} at least",
        "give it that much, or lower the model or network.degree",
    )


def plan_disk(config: Config, parameters: int) -> BudgetPlan:
    """Return the settings with as many checkpoints kept as fit into `budget.disk`, of a model of so many parameters.
    `needed` is of the disk. Raises UsageError where one does not fit beside the next."""
    one = expected_bytes(parameters, late_average=config.train.late_average > 0)
    beside = LOG_BYTES + MARGIN_BYTES + estimates_bytes(config, parameters) + optimizer_bytes(config, parameters)
    budget, keep = config.budget.disk, config.node.checkpoint_keep
    if budget is None:
        return BudgetPlan(config=config, needed=beside + (keep + WRITTEN) * one)
    fit = min(keep, (budget - beside) // one - WRITTEN)
    if fit < 1:
        least = beside + (1 + WRITTEN) * one
        raise UsageError(
            f"budget.disk of {text.size(budget)} is too little: this node needs {text.size(least)} at least",
            "give it that much, or lower the model",
        )
    moves = () if fit == keep else (f"{text.plural(fit, 'checkpoint')} kept",)
    node = replace(config.node, checkpoint_keep=fit)
    return BudgetPlan(
        config=config.model_copy(update={"node": node}), needed=beside + (fit + WRITTEN) * one, moves=moves
    )


def _candidates(config: Config, least_examples: int) -> Iterator[tuple[Config, tuple[str, ...]]]:
    """Yield settings, each of which takes less than the one before, and what was chosen."""
    node = config.node
    moves: tuple[str, ...] = ()
    yield config, moves
    if node.estimates_on == "memory" and config.sync.spec().averager == GOSSIP:
        node, moves = replace(node, estimates_on="disk"), (*moves, "neighbours' models on disk")
        yield config.model_copy(update={"node": node}), moves
    if node.optimizer_on == "memory" and not why_not_filed(config):
        node, moves = replace(node, optimizer_on="disk"), (*moves, "optimizer on disk")
        yield config.model_copy(update={"node": node}), moves
    examples = node.micro_batch or config.train.batch_size
    while examples // 2 >= least_examples:
        examples //= 2
        node = replace(node, micro_batch=examples)
        yield config.model_copy(update={"node": node}), (*moves, f"{text.plural(examples, 'example')} at a time")
