"""Diverged training: how a node notices that its model is unusable, and what it reports when it stops.

A model is usable while its parameters and its loss on held-out data are finite. The trainer skips a step whose loss or
gradient is not finite, so training that has diverged continues without moving: the parameters are finite, only far too
large. So the model is checked wherever steps were skipped, wherever it is evaluated, and before every checkpoint. Only
the node's own model and data decide. What neighbours send is refused where it is not finite
(p2ptrain/sync/vectors.py), and outvoted by the aggregator where it is.
"""

import math
from typing import Final

import torch

from node.events.event_types import Diverged
from node.system.errors import RunError
from node.system.next_command import command
from node.training.inner_loop import Phase
from node.training.node import Node
from p2ptrain.training.flat import all_finite

MAX_IDLE_ROUNDS: Final = 3
"""Most rounds in a row without a step taken while the held-out loss is finite: all batches are bad, and nothing is
learned. Chosen: one bad batch must not end a run of one step a round."""

LOWER: Final = 10.0
"""The hint's example is the learning rate divided by this."""


async def check_phase(node: Node, phase: Phase) -> None:
    """Check the model where steps of the phase were skipped. Raises RunError where it is unusable, or no step was taken
    for too many rounds."""
    node.state.idle_rounds = node.state.idle_rounds + 1 if phase.skipped == phase.steps else 0
    if not phase.skipped:
        return
    why = await unusable(node, phase.theta_d)
    if why is not None:
        raise diverged(node, why)
    if node.state.idle_rounds >= MAX_IDLE_ROUNDS:
        raise diverged(node, f"no step of {MAX_IDLE_ROUNDS} rounds was taken, as their loss or gradient is not finite")


async def unusable(node: Node, theta_d: torch.Tensor) -> str | None:
    """Return why the model `theta_d` fp32 (d,) is unusable; None where it is usable. One batch of own data usually
    shows it. That batch may itself be bad, so the held-out data decide."""
    if not all_finite(theta_d):
        return "the model's parameters are not finite"
    trainer = node.inner.trainer
    if not trainer.evaluates or node.state.device_lost:
        return None
    if math.isfinite(await node.executor.evaluate(lambda: trainer.judge(theta_d, node.state.round))):
        return None
    return why_unusable(await node.executor.evaluate(lambda: trainer.evaluate(theta_d)))


def why_unusable(eval_loss: float) -> str | None:
    """Return why a model with this held-out loss is unusable; None where it is usable."""
    return None if math.isfinite(eval_loss) else f"the held-out loss is {eval_loss}"


def why_refused(error: ValueError) -> str:
    """Return why a model is unusable that the strategy refused (`check_model` in p2ptrain/sync/vectors.py)."""
    return str(error).partition(":")[0]


def diverged(node: Node, why: str) -> RunError:
    """Emit the event `diverged`, and return the error that ends the node. Call it on the event loop."""
    good = node.checkpoints.newest_whole()
    told = None if good is None else str(good)
    node.journal.emit(Diverged(round=node.state.round + 1, why=why, checkpoint=told))
    kept = "no checkpoint was written before" if good is None else f"the last good checkpoint is {good}"
    return RunError(
        f"training has diverged in round {node.state.round + 1}: {why}; {kept}", _hint(node, resumes=good is not None)
    )


def untrainable(eval_loss: float) -> RunError:
    """Return the error for an initial model without a finite loss: no training could be judged."""
    return RunError(
        f"the held-out loss of the initial model is {eval_loss}: no model of this task can be judged",
        "mend the task's loss or its held-out data",
    )


def _hint(node: Node, *, resumes: bool) -> str:
    if node.inner.trainer.steps_elsewhere:  # and so is the learning rate
        return f"{'go on from there' if resumes else 'begin again'} with a lower learning rate in your own loop"
    if node.state.private:  # a private swarm's settings are its manifest's
        return "an admin lowers the learning rate for all: p2ptrain swarm rotate FOLDER --set train.learning_rate=..."
    rate = node.config.train.learning_rate / LOWER
    again = f"{command(node.checkpoints.folder.parent)} --set train.learning_rate={rate:g}"
    return f"{'go on from there' if resumes else 'begin again'} with a lower learning rate: {again}"
