"""Watches the node's own data for shift, once a round: looks, tells, and does what is configured.

    a closed round ── look at fresh own data with the kept model ── ShiftWatch ── "here": event, claim to neighbours
                      neighbours' claims ── ShiftVerdict ── "everywhere": event

A newcomer's data are compared once, before its first round, with the held-out data that all have alike.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from node.config.schema import Config
from node.config.shift_section import ShiftConfig
from node.events.event_types import ShiftDetected, WarningEvent
from node.shift.newcomer import differs
from node.shift.shift_verdict import ShiftVerdict
from node.shift.watch import KEPT_MODEL, ShiftWatch
from node.system.errors import UsageError
from node.training.inner_loop import Phase
from node.training.neighbours_predictions import typical_divergence_of
from node.training.node import Node
from p2ptrain.protocols import implements
from p2ptrain.sync.base import RoundResult
from p2ptrain.training import Learner, Trainer
from p2ptrain.training.base import LooksAtData
from p2ptrain.training.data_looks import DataLook

META: Final = "shift"
"""Name of its state in a checkpoint's meta.json."""


class Shifts:
    """What a node knows of shifts, its own and its neighbours'."""

    def __init__(self, settings: ShiftConfig) -> None:
        self.settings = settings
        self.watch: ShiftWatch
        self.forget()
        self.verdict = ShiftVerdict(settings.window)
        self.rate_until = 0
        """The first round with the learning rate as it was; before it, it is another one."""

    def rate_factor(self, round: int) -> float:
        """Return by what the learning rate is multiplied in this round."""
        raises = self.settings.action == "learning_rate"  # it may have been asked for before a restart alone
        return self.settings.rate_factor if raises and round < self.rate_until else 1.0

    def state(self) -> dict[str, Any]:
        """Return everything but the kept model, as JSON."""
        told = {"claim": self.verdict.claim, "everywhere": self.verdict.everywhere_at}
        return {**self.watch.state(), **told, "rate_until": self.rate_until}

    def load(self, state: Mapping[str, Any], kept_d: torch.Tensor | None) -> None:
        """Take up `state`. Raises ValueError for what is none."""
        self.watch.load(state, kept_d)
        claim, everywhere_at, rate_until = (state.get(name) for name in ("claim", "everywhere", "rate_until"))
        if type(rate_until) is not int or not all(it is None or type(it) is int for it in (claim, everywhere_at)):
            raise ValueError("the state of shift detectors is none")
        self.verdict.claim, self.verdict.everywhere_at, self.rate_until = claim, everywhere_at, rate_until

    def forget(self) -> None:
        """Learn anew what is usual."""
        self.watch = ShiftWatch(self.settings.make, self.settings.signals, settle=self.settings.settle)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the kept model for a checkpoint; nothing while there is none."""
        return {} if self.watch.kept_d is None else {KEPT_MODEL: self.watch.kept_d}


def shifts_for(config: Config, learner: Learner) -> Shifts | None:
    """Return what watches for shift; None for a node that does not. UsageError where it cannot."""
    if not config.shift.on or config.node.role != "trainer":
        return None
    if not implements(learner, LooksAtData):
        message = "shift.detector wants a task that the node trains itself, in one process"
        raise UsageError(message, "leave node.lane at thread, or leave [shift] out")
    if config.budget.memory is not None:
        raise UsageError("shift.detector keeps a model for which budget.memory plans no room", "leave out one of them")
    return Shifts(config.shift)


def resume_shifts(node: Node, meta: Mapping[str, Any], kept_d: torch.Tensor | None, round: int) -> None:
    """Take up the state in a checkpoint, where there is one, for a node that goes on with this round; with one that is
    none everything is learned anew."""
    if node.shifts is None or META not in meta:
        return
    try:
        if kept_d is not None and kept_d.shape != (_kept_numel(node.inner.trainer),):
            raise ValueError("the kept model is of another size")
        node.shifts.load(meta[META], kept_d)
        node.state.shift_factor = node.shifts.rate_factor(round)
    except ValueError as error:
        node.shifts.forget()
        node.journal.emit(WarningEvent(message=f"[shift] learns anew what is usual: {error}", about="shift"))


async def look_as_newcomer(node: Node) -> None:
    """Compare own data with held-out ones by the model that the node begins with, and tell where they differ."""
    shifts, trainer = node.shifts, node.inner.trainer
    if shifts is None or not shifts.settings.reads_own_data or not implements(trainer, LooksAtData):
        return
    await node.executor.drive(node.inner.settling())  # a model that was joined with is still to be applied
    model_d, step, examples = trainer.vector(), trainer.global_step, shifts.settings.examples
    own = await node.executor.evaluate(lambda: trainer.look_at_own(model_d, step, examples=examples))
    held_out = await node.executor.evaluate(lambda: trainer.look_at_held_out(model_d, examples=examples))
    by = differs(own, held_out)
    if by:
        _tell(node, "newcomer", by, said=0, members=len(node.service.neighbour_ids) + 1)


async def watch_shift(node: Node, phase: Phase, result: RoundResult) -> None:
    """Look at own data and neighbours' claims, once a round is closed and before it is recorded."""
    shifts, round_ = node.shifts, node.state.round
    if shifts is None or node.state.device_lost:
        return
    by = await _shifted_by(node, shifts, phase, result)
    seated = {str(peer) for peer in node.service.seated(node.service.neighbour_ids)}
    claims = {str(peer): at for peer, at in node.service.shift_claims().items() if str(peer) in seated}
    members = len(seated) + 1
    if by:
        shifts.verdict.note_own(round_)
        if shifts.settings.action == "learning_rate":
            shifts.rate_until = round_ + 1 + shifts.settings.rate_rounds
    said = len(shifts.verdict.supporters(round_, claims))
    if by:
        _tell(node, "here", by, said=said, members=members)
    if shifts.verdict.is_everywhere(round_, claims, members):
        _tell(node, "everywhere", [], said=said, members=members)
    if shifts.verdict.claim is not None:
        node.service.say_shifted(shifts.verdict.claim)
    node.state.shift_factor = shifts.rate_factor(round_ + 1)


async def _shifted_by(node: Node, shifts: Shifts, phase: Phase, result: RoundResult) -> list[str]:
    """Return the signals by which own data have shifted in the round that was closed."""
    watch, trainer = shifts.watch, node.inner.trainer
    if not implements(trainer, LooksAtData):
        return []
    if not await node.executor.offload(lambda: watch.settled(lambda: trainer.kept(_closed_model(phase, result)))):
        return []
    kept_d, look, divergence = watch.kept_d, None, None
    assert kept_d is not None, "`settled` keeps it"
    if shifts.settings.reads_own_data:
        look = await _look(node, trainer, kept_d, phase.end_step, shifts.settings.examples)
    if "predictions" in watch.signals:
        model_d = await node.executor.offload(lambda: _closed_model(phase, result))
        divergence = await typical_divergence_of(node, model_d)
    return watch.add(look, divergence)


def _kept_numel(trainer: Learner) -> int:
    """Return the length of a kept model: local parameters are kept with the shared ones."""
    return trainer.trained_numel if isinstance(trainer, Trainer) else trainer.numel


async def _look(node: Node, trainer: LooksAtData, kept_d: torch.Tensor, end_step: int, examples: int) -> DataLook:
    step = max(0, end_step - 1)  # the newest that was trained on
    return await node.executor.evaluate(lambda: trainer.look_at_own(kept_d, step, examples=examples))


def _closed_model(phase: Phase, result: RoundResult) -> torch.Tensor:
    """Return the model of the closed round, fp32 (d,)."""
    return phase.theta_d + result.correction_d if result.snapshot_d is None else result.snapshot_d


def _tell(node: Node, where: str, by: list[str], *, said: int, members: int) -> None:
    node.journal.emit(ShiftDetected(round=node.state.round, where=where, signals=by, said=said, members=members))
