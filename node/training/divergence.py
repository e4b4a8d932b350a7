"""A model that is of no use any more: how a node notices, and what it says when it stops.

A model is of use while its parameters and its loss on held-out data are finite. A step whose loss or gradient is not
finite is skipped by the trainer, so that training which has diverged goes on without moving: the parameters are finite,
only far too large. So the model is tried wherever steps were skipped, wherever it is evaluated, and before every
checkpoint. Only the node's own model and data have a say in this: what neighbours send is refused before it comes near
them where it is not finite (p2ptrain/sync/vectors.py), and outvoted by the aggregator where it is.
"""

import math
from typing import Final

import torch

from node.events.event_types import Diverged
from node.system.errors import RunError
from node.system.next_command import command
from node.training.inner_loop import Phase
from node.training.node import Node

MAX_IDLE_ROUNDS: Final = 3
"""Rounds in a row of which no step was taken, while the model's held-out loss is finite: all batches are bad, and
nothing is learned. Chosen: one bad batch must not end a run of one step a round."""

LOWER: Final = 10.0
"""By how much lower the learning rate is that is named as an example."""


async def check_phase(node: Node, phase: Phase) -> None:
    """Try the model where steps of the phase were skipped. RunError where it is of no use, or no step is taken any
    more."""
    node.state.idle_rounds = node.state.idle_rounds + 1 if phase.skipped == phase.steps else 0
    if not phase.skipped:
        return
    why = await unusable(node, phase.theta_d)
    if why is not None:
        raise diverged(node, why)
    if node.state.idle_rounds >= MAX_IDLE_ROUNDS:
        raise diverged(node, f"no step of {MAX_IDLE_ROUNDS} rounds was taken, as their loss or gradient is not finite")


async def unusable(node: Node, theta_d: torch.Tensor) -> str | None:
    """Why the model `theta_d` fp32 (d,) is of no use; None where it is of use. One batch of own data tells, as a rule;
    a batch may be the reason itself, so that the held-out data have the last word."""
    if not bool(theta_d.isfinite().all()):
        return "the model's parameters are not finite"
    trainer = node.inner.trainer
    if math.isfinite(await node.executor.offload(lambda: trainer.judge(theta_d, node.state.round))):
        return None
    return why_unusable(await node.executor.offload(lambda: trainer.evaluate(theta_d)))


def why_unusable(eval_loss: float) -> str | None:
    """The same of a held-out loss."""
    return None if math.isfinite(eval_loss) else f"the held-out loss is {eval_loss}"


def why_refused(error: ValueError) -> str:
    """The same where the strategy did not take the model (`check_model` in p2ptrain/sync/vectors.py)."""
    return str(error).partition(":")[0]


def diverged(node: Node, why: str) -> RunError:
    """The error that ends the node, told of as the event `diverged`. On the event loop."""
    good = node.checkpoints.newest_whole()
    told = None if good is None else str(good)
    node.journal.emit(Diverged(round=node.state.round + 1, why=why, checkpoint=told))
    kept = "no checkpoint was written before" if good is None else f"the last good checkpoint is {good}"
    return RunError(
        f"training has diverged in round {node.state.round + 1}: {why}; {kept}", _hint(node, resumes=good is not None)
    )


def untrainable(eval_loss: float) -> RunError:
    """The error where the initial model has no finite loss: no training could be judged."""
    return RunError(
        f"the held-out loss of the initial model is {eval_loss}: no model of this task can be judged",
        "mend the task's loss or its held-out data",
    )


def _hint(node: Node, *, resumes: bool) -> str:
    if node.state.private:  # a private swarm's settings are its manifest's
        return "an admin lowers the learning rate for all: p2ptrain swarm rotate FOLDER --set train.learning_rate=..."
    rate = node.config.train.learning_rate / LOWER
    again = f"{command(node.checkpoints.folder.parent)} --set train.learning_rate={rate:g}"
    return f"{'go on from there' if resumes else 'begin again'} with a lower learning rate: {again}"
