"""Visitors in a round: what they left is added to the moving model, as a part of the node's own next difference.

Their mean is queued together with the correction of the round that is being closed, and so is applied between two
steps of the next one. No strategy and no neighbour knows of it: what is published is an ordinary update.
"""

import math
from typing import Final

import torch

from node.config.schema import Config
from node.events.event_types import WarningEvent
from node.system.errors import UsageError
from node.training.executors import SideWork
from node.training.node import Node
from node.training.run_state import RunState
from node.visits.tls_certificate import certificate_of
from node.visits.visit_noise import VisitNoise
from node.visits.visitor_ledger import VisitorLedger
from node.visits.visitors import ClosedVisits, StepAdvice, VisitedRun, Visitors
from p2ptrain.drift.none import NoCorrection
from p2ptrain.step_normalization.unnormalized import Unnormalized
from p2ptrain.sync import SECURE
from p2ptrain.sync.base import RoundResult
from p2ptrain.tasks import EXTERNAL
from p2ptrain.training import Learner

LONG_NOISE: Final = 3.0
"""Norm of the noise on visitors' mean, over that of the node's own steps, from which there is a warning. A host of the
digits learns with 1.2. Chosen."""


def check_visits(config: Config) -> None:
    """Raise UsageError for settings with which visitors' differences cannot be a part of the node's own, and for a
    certificate that cannot be used: before the settings are kept for the next start."""
    if not config.visits.on:
        return
    certificate_of(config.visits)
    for wrong, what in (
        (config.node.role != "trainer", f"a node of role {config.node.role}, which trains nothing"),
        (config.task.name == EXTERNAL, "a loop of the user's own, whose steps the node does not know"),
        (config.train.drift != NoCorrection.name, f"train.drift={config.train.drift}, which would take them for drift"),
        (
            config.train.step_normalization != Unnormalized.name,
            f"train.step_normalization={config.train.step_normalization}, which would lengthen what they left",
        ),
        (
            bool(config.sync.residency),
            "sync.residency: visitors take the model out of its region, unrecorded",
        ),
        (
            config.sync.spec().averager == SECURE,
            f"sync.strategy={config.sync.strategy}: visitors would be given the model of this node, of which nobody is "
            "to see more than sums",
        ),
        (config.sync.spec().steps_anchor, f"sync.strategy={config.sync.strategy}, which averages gradients"),
    ):
        if wrong:
            raise UsageError(f"[visits] does not go with {what}", "leave out one of them")


def visitors_for(
    config: Config,
    run_id: bytes,
    learner: Learner,
    state: RunState,
    *,
    private: bool = False,
    ledger: VisitorLedger | None = None,
) -> Visitors | None:
    """Return the visits that the settings ask for, if any. `ledger`: what visitors have spent, where there is noise.
    Raises UsageError for a private swarm's model that strangers could take, and for noise without a ledger."""
    if not config.visits.on:
        return None
    if private and config.visits.token_file is None:
        message = "[visits] would give the model of a private swarm to everybody who reaches the address"
        raise UsageError(message, "set visits.token_file, and give the token to those who may have it")
    if config.visits.noise is not None and ledger is None:
        raise UsageError("visits.noise: nothing here writes down what visitors spend", "run it with `p2ptrain node`")
    layout = learner.layout()
    run = VisitedRun(
        run_id=run_id,
        task=config.task.name,
        numel=learner.numel,
        parameters=() if layout is None else [(each.name, each.shape) for each in layout.parameters],
    )

    def advice() -> StepAdvice:
        train = state.config.train
        return StepAdvice(
            steps=state.pace.steps,
            batch_size=train.batch_size,
            learning_rate=train.learning_rate if learner.learning_rate is None else learner.learning_rate,
            clip_norm=train.clip_norm,
        )

    return Visitors(config.visits, run, advice, None if ledger is None else VisitNoise(config.visits, ledger))


def long_noise(config: Config, numel: int) -> str | None:
    """Return a warning where the noise on visitors' mean may be much longer than this node's own steps; None: it is
    not, or there is none. With the mean it is shortened by `share` times their norm over the clipping norm, so that
    `noise` `share` numel^(1/2) / `buffer` is the most that it has of them."""
    visits = config.visits
    if not visits.on or visits.noise is None:
        return None
    times = visits.noise * visits.share * math.sqrt(numel) / visits.buffer
    if times <= LONG_NOISE:
        return None
    return (
        f"the noise on what visitors leave may be {times:.3g} times as long as this node's own steps of a round: "
        "give more visits.buffer, or less visits.share"
    )


async def take_visits(node: Node, theta_d: torch.Tensor, result: RoundResult) -> None:
    """Count the visitors of the round that is being closed. `theta_d` (d,) is the model after its steps, where the
    result has no other one: else its memory is the correction's."""
    visitors = node.visitors
    if visitors is None:
        return
    if node.state.last_round or node.state.training_over.is_set():  # no step comes that they could be a part of
        visitors.end()
        return
    visitors.follow(node.inner.adoptions)
    closing, round_ = visitors.begin_closing(), node.state.round

    def close() -> ClosedVisits:
        model_d = theta_d + result.correction_d if result.snapshot_d is None else result.snapshot_d
        return closing.close(model_d, result.correction_d, round=round_)

    closed = await node.executor.offload(close, work=SideWork.AGGREGATE)
    if closed.visited_d is not None:
        node.inner.add(closed.visited_d)
    if closed.failed:
        node.journal.emit(WarningEvent(message=f"no visitor is counted any more: {closed.failed}", about="privacy"))
    visitors.finish_closing(closed)
