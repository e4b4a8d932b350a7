"""The synchronization loop: the path of one value through a node, once a round.

inner steps -> difference to the tracked estimate -> compress -> sign -> announce -> neighbours pull -> (theirs: verify,
decode, tracked estimate) -> quorum or deadline -> robust aggregate -> outer step -> correction of the moving model.

Training runs beside this and does not wait for it, unless it is told to (`node.overlap`): while a round closes, the
next one's steps run, and the result is added to the moving parameters. When closing takes longer than the next phase,
that phase only becomes longer.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial

import torch
import trio

from gossip.core.api import Update
from gossip.core.errors import Reason
from gossip.core.limits import MAX_DETAIL_CHARS
from node.system import free_memory
from node.training.bandwidth import plan_phase
from node.training.divergence import check_phase
from node.training.executors import SideWork
from node.training.inner_loop import Phase
from node.training.joining import rejoin
from node.training.lengthening import lengthen
from node.training.node import Node
from node.training.outcome import note_lost_device
from node.training.pausing import stand_still
from node.training.remote_trainer import TrainerLostError
from node.training.rollback import roll_back
from node.training.round_report import record_round
from node.training.shift_watching import watch_shift
from node.training.spent_budget import is_spent, tell_spent
from node.training.trainer_restart import forget_trainer, go_on_anew
from node.training.visiting import take_visits
from p2ptrain.compress.base import PayloadError
from p2ptrain.protocols import implements
from p2ptrain.saved.filed_vector import LostVectorError
from p2ptrain.sync import StepsAnchor, SyncStrategy
from p2ptrain.sync.base import Layered
from p2ptrain.sync.sliced_vectors import LostSliceError

FINAL_ROUND_PATIENCE = 2.0
"""Phases' time that a node waits at most for slower ones after its last step, when it has nothing to train meanwhile
(nodes drift apart by at most `catch_up_rounds`, 2)."""


MEDIAN_OF = 3
"""Donors of whose models one that is odd does not count."""

LARGE_MODEL = 1 << 22
"""Parameters from which freed memory is given back after every round. What the C library keeps of a smaller model's
chunks and payloads is small beside the program. Chosen."""


async def train(node: Node, phases: trio.MemorySendChannel[Phase]) -> None:
    """Train phase after phase, handing each to `synchronize`, until the last round is trained."""
    async with phases:
        while not node.state.finished:
            try:
                phase = await _next_phase(node)
            except TrainerLostError as lost:
                await go_on_anew(node, lost)
                continue
            if phase is None:  # the loop that takes the steps has ended, or the budget of privacy is spent
                if is_spent(node):
                    tell_spent(node)
                break
            node.watch.check_arrivals(phase)
            node.watch.check_micro_batch(node.inner.trainer.micro_batch)
            node.watch.check_compiled(node.inner.trainer.compile_fault)
            node.state.begin_closing(waits_for_group=node.averager.waits_for_group)
            plan_phase(node, phase.step_seconds)
            await phases.send(phase)
            del phase  # its parameters are a whole model
            if not (node.config.node.overlap or node.state.finished):
                await node.state.until_closed()
        node.state.training_over.set()


async def _next_phase(node: Node) -> Phase | None:
    """Train a phase. Where the device is lost, its error is raised once the round before is closed: what was trained in
    that one is on the host, to be sent and saved."""
    try:
        return await _driven(
            node,
            node.inner.phase(
                enough=node.state.enough,
                keep_state=node.state.checkpoint_due,
                schedule_step=node.state.schedule_step,
                rate_factor=node.state.rate_factor,
                planned=node.pace.steps,
            ),
        )
    except Exception as error:
        if note_lost_device(node, error):
            await node.state.until_closed()
        raise


async def _driven(node: Node, phase: Generator[None, None, Phase | None]) -> Phase | None:
    """Run a phase to its end, and wait wherever it stands still meanwhile."""
    while True:
        trained = await node.executor.drive(phase if node.pauses is None else node.inner.until_standing(phase))
        if not node.inner.stands:
            return trained
        await stand_still(node)


async def synchronize(node: Node, phases: trio.MemoryReceiveChannel[Phase]) -> None:
    """Close one round for every trained phase."""
    async with phases:
        async for phase in phases:
            if not phase.gathering.ended:
                await node.executor.offload(phase.gathering.finish)
            node.state.look_around(node.service.swarm_round())
            if node.state.lost and await rejoin(node):
                continue
            if await roll_back(node):
                continue
            if await _asks_for_model(node) and await rejoin(node, donors=MEDIAN_OF):
                continue
            await check_phase(node, phase)
            shift_d = await lengthen(node, phase)
            began = trio.current_time()
            node.closing_times.clear()
            view, result = await node.averager.close(node, phase, at_most_s=patience(node, phase, began))
            if result.robust:
                node.service.outvotes_liars(view.staleness)
            if shift_d is not None:
                result, shift_d = replace(result, correction_d=shift_d.add_(result.correction_d)), None
            node.inner.correct(result.correction_d, taken_at=phase.end_step, optimizer_state=result.optimizer_state)
            node.state.closed_round = node.state.round
            await take_visits(node, phase.theta_d, result)
            if result.snapshot_d is not None:  # the others are whole models too, which nobody reads any more
                nothing_d = torch.empty(0)
                phase = replace(phase, theta_d=nothing_d, inner_state=None)
                result = replace(result, correction_d=nothing_d, optimizer_state=())
            if (
                node.state.training_over.is_set()
            ):  # no step comes before which the correction would be applied: it is a whole model
                try:
                    await node.executor.drive(node.inner.settling())
                except TrainerLostError as lost:
                    forget_trainer(node, lost)
            await watch_shift(node, phase, result)
            await record_round(node, phase, view, result, close_seconds=trio.current_time() - began)
            del phase, result  # before the next phase ends
            if node.inner.trainer.numel >= LARGE_MODEL or node.config.budget.memory is not None:
                await node.executor.offload(free_memory.trim)
            node.state.enter_round(node.state.round + 1)


async def _asks_for_model(node: Node) -> bool:
    """Return whether the strategy wants the others' model in place of its own."""
    if not implements(node.strategy, StepsAnchor):
        return False
    async with node.strategy_lock:
        return node.strategy.asks_for_model()


def _ignore(update: Update) -> None:
    """Default callback: ignores updates."""


async def follow(node: Node, taken: Callable[[Update], None] = _ignore) -> None:
    """Advance the neighbours' estimates by their updates. Report each result to the network; `taken` gets the accepted
    ones."""
    async for update in node.service.updates:
        strategy, peer, payload = node.strategy, str(update.peer), update.payload
        base = payload if update.filed is None else update.filed
        try:
            async with node.strategy_lock:
                if not node.estimates.wants(peer):  # it has left meanwhile, and nobody waits for an answer
                    continue
                if update.kind != "delta":
                    node.forget(node.estimates.make_room(peer))
                spent = partial(node.service.spent, update)
                with node.pace.work():
                    if update.layer:
                        assert payload is not None, "a refinement always has a payload"
                        await node.compute(partial(_refine, strategy, update, payload), spent, SideWork.DECODE)
                    elif update.kind == "delta":
                        assert payload is not None, "a delta always has a payload"
                        await node.compute(
                            lambda: strategy.apply(peer, update.codec, payload),  # noqa: B023
                            spent,
                            SideWork.DECODE,
                        )
                    else:
                        await node.compute(lambda: strategy.track(peer, base), spent, SideWork.DECODE)  # noqa: B023
        except PayloadError as offence:
            node.counts.note_refused(peer)
            node.service.rejected(update, *_charge(offence))
        except (LostVectorError, LostSliceError):  # our disk's fault, or our ranks', and nobody else's
            raise
        except Exception as error:  # the sender chose codec and bytes: no decoder error may end our node
            node.counts.note_refused(peer)
            node.service.rejected(update, Reason.MALFORMED, f"{type(error).__name__} while decoding {update.codec}")
        else:
            node.service.accepted(update)
            if update.layer:
                continue
            node.counts.note_accepted(peer, delta=update.kind == "delta")
            taken(update)
            node.pace.took(peer, update.steps if update.kind == "delta" else None)
            node.state.look_around(node.service.swarm_round())


def _refine(strategy: SyncStrategy, update: Update, payload: bytes) -> None:
    if not implements(strategy, Layered):
        raise PayloadError("unknown_codec", "a refinement where the run has none")
    strategy.refine(str(update.peer), update.layer, update.codec, payload)


def _charge(offence: PayloadError) -> tuple[Reason, str]:
    """Return the offence that the sender is charged with, and the detail for the log. A third-party codec may give a
    reason that gossip does not know: such a payload counts as malformed, and the codec's words are kept."""
    try:
        return Reason(str(getattr(offence, "reason", ""))), ""
    except ValueError:
        return Reason.MALFORMED, str(offence)[:MAX_DETAIL_CHARS]


def patience(node: Node, phase: Phase, began: float) -> float:
    """Return the seconds that closing may take at most: the time of tau steps, so that no correction is older. Where an
    exchange takes longer, its time: otherwise the correction would contain nobody's update."""
    exchange_s = node.averager.least_s(node)
    if node.state.last_round:
        return max(exchange_s, FINAL_ROUND_PATIENCE * phase.step_seconds * max(phase.steps, node.pace.steps))
    return max(exchange_s, node.state.overlap_steps * phase.step_seconds - (trio.current_time() - began))
