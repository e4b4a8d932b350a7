"""What a node records of its rounds: the round's event, evaluations, checkpoints, and the summary at the end."""

import math
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch
import trio

from gossip.core.api import RoundView
from gossip.core.ids import PeerId
from gossip.discovery.topology import tag_of
from gossip.updates.announced_pauses import MAX_SAID_S, WORD_S
from node.events.event_types import CheckpointFailed, CheckpointWritten, Evaluated, RoundTrained, WarningEvent
from node.events.journal import Journal
from node.events.sent_bits import bits_each
from node.events.summary import NodeSummary
from node.metrics.gpu_metrics import gpu_use
from node.metrics.live_metrics import Readings
from node.page.feed import LiveSnapshot
from node.system.disk import disk_free
from node.system.process_use import held_bytes
from node.training.checkpoint import Checkpoint
from node.training.checkpoint_meta import PRIVACY, STOOD_WITH, VISITS
from node.training.checkpoint_room import bytes_of, lacking_words
from node.training.divergence import diverged, untrainable, unusable, why_unusable
from node.training.inner_loop import Phase
from node.training.neighbours_predictions import divergence_of
from node.training.node import Node
from node.training.remote_learner import gpu_memory_of
from node.visits.visitor_ledger import VisitorLedger
from p2ptrain.aggregate.topology import spectral_gap
from p2ptrain.saved.tensor_file import FiledTensor, Storable
from p2ptrain.sync.base import RoundResult
from p2ptrain.training.base import Learner
from p2ptrain.training.late_average import LATE
from p2ptrain.training.layout import StateLayout
from p2ptrain.training.trainer import UNTRAINED_PREFIX

BYTES_PER_PARAMETER = 4
"""fp32, which "dense" means in every ratio that we report."""

PRIVACY_SPENT: Final = "privacy"
"""What a spent budget of privacy is called among the reasons of pauses, as on the page."""

LAST_WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between the attempts to write the last checkpoint: half a minute in all. In it an operator who sees that the
disk is full can make room, and other nodes of a swarm remove what they do not need. Chosen."""


async def record_round(node: Node, phase: Phase, view: RoundView, result: RoundResult, *, close_seconds: float) -> None:
    """Emit the event of a closed round; evaluate the outer parameters and write a checkpoint where due."""
    node.journal.measured(consensus_distance=result.consensus_distance)
    node.counts.steps += phase.steps
    loss = told_loss(phase.loss, node.inner.trainer, node.journal)
    if loss is not None and not node.config.privacy.on:  # that on private examples is told to nobody
        node.journal.measured(train_loss=loss)
    node.state.neighbours = view.neighbours
    if not node.state.last_round:  # at the end neighbours leave, as they should
        node.watch.check_margin(result.members)
    node.watch.check_skipped(node.inner.trainer.skipped_steps)
    node.watch.check_refused()
    node.journal.emit(_round(node, phase, view, result, close_seconds))
    evaluates = node.state.evaluation_due() and node.inner.trainer.evaluates and not node.state.device_lost
    done, rounds = node.state.round + 1, node.config.train.rounds
    averages = node.late.covers(done, rounds)
    if evaluates or averages or phase.state is not None:
        phi_d = result.snapshot_d
        if phi_d is None:
            phi_d = await node.executor.offload(lambda: phase.theta_d + result.correction_d)
        await node.executor.offload(lambda: node.late.add(phi_d, round=done, rounds=rounds))
        if evaluates:
            await evaluate(node, phi_d, rounds=done)
        if phase.state is None:
            return
        if (averages or not evaluates) and (why := await unusable(node, phi_d)) is not None:
            raise diverged(node, why)
        await save(node, phi_d, phase.state, next_round=node.state.round + 1, last=node.state.last_round)


async def evaluate(node: Node, phi_d: torch.Tensor | None = None, *, rounds: int = 0) -> None:
    """Measure the held-out loss of the outer parameters (by default the moving ones) after `rounds` rounds, and the
    task's own metrics, and emit them: of the mean of late weights, where there is one. Raises RunError where the loss
    is not finite."""
    shown_d = phi_d if node.late.mean_d is None else node.late.mean_d
    found = await node.executor.evaluate(lambda: node.inner.trainer.measure(shown_d))
    node.journal.measured(eval_loss=found.loss)
    node.journal.eval_round, node.journal.own = rounds, dict(found.own)
    node.watch.note_metrics_fault(found.fault)
    divergence = await divergence_of(node, phi_d)
    node.journal.emit(Evaluated(round=rounds, eval_loss=found.loss, output_divergence=divergence, own=node.journal.own))
    why = why_unusable(found.loss)
    if why is not None:
        raise diverged(node, why) if rounds else untrainable(found.loss)


async def save(
    node: Node,
    theta_d: torch.Tensor,
    state: Mapping[str, Storable],
    *,
    next_round: int,
    last: bool = False,
    waits_s: tuple[float, ...] = LAST_WAITS_S,
) -> None:
    """Write a checkpoint of the model `theta_d` (d,), with the rest of the trainer's `state`.

    Neither they nor what the strategy keeps of its own may change meanwhile: no round is closed then. When the disk
    does not take it, this is reported, training goes on, and the checkpoint is owed from then on. The `last` one is
    tried again after each of `waits_s` seconds. The reason of a failure is left in `node.state.unsaved`."""
    async with node.strategy_lock:
        sync = node.strategy.state_dict()
    layout = await node.executor.offload(node.inner.trainer.layout)
    checkpoint = checkpoint_of(node, theta_d, state, sync, layout, next_round)
    waits_s = waits_s if last else ()
    again = f"for {sum(waits_s):g} s" if waits_s else "" if last or node.state.owes_checkpoint else "after every round"
    for wait_s in (*waits_s, None):
        try:
            path = await node.executor.offload(lambda: node.checkpoints.save(checkpoint))
        except OSError as error:
            _could_not_save(node, checkpoint, error.strerror or str(error), again=again)
            again = ""
        else:
            _saved(node, path, next_round)
            return
        if wait_s is not None:
            await trio.sleep(wait_s)


def _could_not_save(node: Node, checkpoint: Checkpoint, why: str, *, again: str) -> None:
    """Emit the failure: for programs each time, for people only where `again` says when it is tried again."""
    folder, needed = node.checkpoints.folder, bytes_of(checkpoint.storable)
    node.state.owes_checkpoint, node.state.unsaved = True, why + lacking_words(folder, needed)
    node.journal.emit(
        CheckpointFailed(round=checkpoint.round, why=why, needed_bytes=needed, free_bytes=disk_free(folder))
    )
    if again:
        message = f"no checkpoint of round {checkpoint.round}: {node.state.unsaved}; it is tried again {again}"
        node.journal.emit(WarningEvent(message=message, about="checkpoint"))


def _saved(node: Node, path: Path, next_round: int) -> None:
    node.state.unsaved = None
    node.state.saved_round = next_round
    node.journal.emit(CheckpointWritten(round=next_round, path=str(path)))
    if node.state.owes_checkpoint:
        node.state.owes_checkpoint = False
        message = f"the checkpoint of round {next_round} could be written"
        node.journal.emit(WarningEvent(message=message, about="checkpoint", recovered=True))


def checkpoint_of(
    node: Node,
    theta_d: torch.Tensor,
    state: Mapping[str, Storable],
    sync: dict[str, torch.Tensor],
    layout: StateLayout | None,
    next_round: int,
) -> Checkpoint:
    """Return the checkpoint from which `resume` (roles/assembly.py) goes on, and from which the model is exported."""
    storable: dict[str, Storable] = {
        name if name.startswith(UNTRAINED_PREFIX) else f"trainer.{name}": value
        for name, value in {"parameters": theta_d, **state}.items()
    }
    tensors = {name: value for name, value in storable.items() if isinstance(value, torch.Tensor)}
    tensors |= {f"sync.{name}": value for name, value in sync.items()}
    if node.shifts is not None:
        tensors |= node.shifts.tensors()
    tensors |= {LATE + name: value for name, value in node.late.state_dict().items()}
    filed = {name: value for name, value in storable.items() if isinstance(value, FiledTensor)}
    meta: dict[str, Any] = {
        "config": node.config.model_dump(mode="json"),
        "model": None if layout is None else layout.to_meta(),
        "peer_id": node.peer_id,
        "first": node.journal.first,
        "steps": node.inner.steps,
        "compute_s": node.inner.compute_seconds,
        "wall_s": node.journal.wall_seconds,
        "epoch": node.epochs.used,
    }
    if node.privacy is not None:
        meta[PRIVACY] = node.privacy.mark._asdict()
    if node.visitors is not None and node.visitors.noise is not None:
        meta[VISITS] = node.visitors.noise.ledger.mark._asdict()
    if node.shifts is not None:
        meta["shift"] = node.shifts.state()
    if node.service.outvoted_liars:
        meta[STOOD_WITH] = list(node.service.stood_with)
    return Checkpoint(round=next_round, meta=meta, tensors=tensors, filed=filed)


def summarize(node: Node, resumed_from: str | None) -> NodeSummary:
    """Return the node's run so far, as `summary.json` has it."""
    journal, stats, wire = node.journal, node.service.stats, node.service.wire
    dense = BYTES_PER_PARAMETER * node.inner.trainer.numel
    ratio = dense / node.counts.mean_bytes if stats.payload_bytes_sent and node.counts.mean_bytes else None
    return NodeSummary(
        peer_id=node.peer_id,
        rounds=node.state.round,
        steps=node.inner.steps,
        tokens=node.inner.trainer.tokens,
        wall_s=journal.wall_seconds,
        compute_s=node.inner.compute_seconds,
        utilization=node.utilization,
        train_loss_first=journal.first.get("train_loss"),
        train_loss_last=journal.last.get("train_loss"),
        eval_loss_first=journal.first.get("eval_loss"),
        eval_loss_last=journal.last.get("eval_loss"),
        eval_round=journal.eval_round,
        own=journal.own,
        consensus_distance=journal.last.get("consensus_distance"),
        payload_bytes_sent=stats.payload_bytes_sent,
        payload_bytes_received=stats.payload_bytes_received,
        dense_bytes_equivalent=round(stats.payload_bytes_sent * (ratio or 0.0)),
        compression_ratio=ratio,
        updates_accepted=stats.updates_accepted,
        updates_rejected={str(reason): count for reason, count in stats.rejected_by_reason.items()},
        updates_in_time=node.watch.in_time.total,
        neighbours=node.state.neighbours,
        aggregator=node.config.sync.aggregator,
        compressor=node.config.sync.compressor,
        resumed_from=resumed_from,
        bytes_sent=wire.sent,
        bytes_received=wire.received,
        parameters=node.inner.trainer.numel,
        sent_bits=_bits_each(node, wire.sent),
        published_bits=_bits_each(node, node.counts.published_bytes),
    )


def _bits_each(node: Node, size: int) -> float | None:
    """Return bytes of this process as bits for each parameter and inner step."""
    return bits_each(size, parameters=node.inner.trainer.numel, steps=node.counts.steps)


def readings(node: Node) -> Readings:
    """Return the current values for a scrape of the metrics."""
    service, network = node.service, node.config.network
    visitors = _visitors_ledger(node)
    return Readings(
        reachability=service.reachability(),
        accepted={str(peer): node.counts.accepted[str(peer)] for peer in service.neighbours()},
        layers={str(peer): layers for peer, layers in service.layers_taken().items()},
        fetched_first=_fetched_first(node),
        read_seconds={str(peer): seconds for peer, seconds in service.read_seconds.items()},
        queues=node.queues(),
        blob_seconds=service.stats.blob_seconds,
        drops=service.drops(),
        relaying=service.relaying(),
        relay_limit=network.relay_bytes_per_s if network.relay else 0.0,
        disk_free=disk_free(node.checkpoints.folder),
        visits={} if node.visitors is None else node.visitors.counts,
        paused=_paused_seconds(node),
        neighbours_paused=len(service.paused_neighbours()),
        shift_deviation={} if node.shifts is None else node.shifts.watch.deviations,
        privacy_epsilon={} if node.privacy is None else node.privacy.spent_by_delta(),
        privacy_epsilon_budget={} if node.privacy is None else node.privacy.budget_by_delta(),
        visits_epsilon={} if visitors is None else visitors.spent_by_delta(),
        visits_epsilon_budget={} if visitors is None else visitors.budget_by_delta(),
        crossed={"sent": service.stats.crossed_bytes_sent, "received": service.stats.crossed_bytes_received},
        spectral_gap=_gap_of(frozenset(service.known_graph().items())),
    )


def _paused_seconds(node: Node) -> dict[str, float]:
    """Return how long training was paused, by reason. A spent budget of privacy is one: a node that serves on closes no
    round either, and no alert about nodes that train is for it."""
    seconds = {} if node.pauses is None else node.pauses.seconds_now()
    if node.privacy is not None and node.privacy.settings.epsilon is not None:
        since = node.state.spent_at
        seconds[PRIVACY_SPENT] = 0.0 if since is None else trio.current_time() - since
    return seconds


def _visitors_ledger(node: Node) -> VisitorLedger | None:
    noise = None if node.visitors is None else node.visitors.noise
    return None if noise is None else noise.ledger


def _fetched_first(node: Node) -> dict[str, int]:
    choice = None if node.chooser is None else node.chooser.newest
    return {} if choice is None else {str(peer): int(str(peer) in choice.first) for peer in node.service.neighbours()}


def moment(node: Node, lag_s: float | None) -> LiveSnapshot:
    """Return the current values for the node's page."""
    service, stats, speeds = node.service, node.service.stats, node.service.link_speeds()
    paused = {
        str(peer): {"paused": True, "returns_at": _minute(left)} for peer, left in service.paused_neighbours().items()
    }
    refused: dict[str, dict[str, int]] = {}
    for (peer, reason), count in stats.rejected.items():
        refused.setdefault(str(peer), {})[str(reason)] = count
    peers = {
        str(peer): {
            "here": True,
            "round": it.round,
            "staleness": it.staleness,
            "score": round(it.score),
            "tracked": it.tracked,
            "address": it.address,
            "neighbours": it.neighbours,
            "accepted": node.counts.accepted[str(peer)],
            "rejected": refused.get(str(peer), {}),
            "sent_bytes_per_s": speeds[peer].sent,
            "received_bytes_per_s": speeds[peer].received,
            **paused.get(str(peer), {"paused": False, "returns_at": None}),
        }
        for peer, it in service.neighbours().items()
    }
    return LiveSnapshot(
        peers=peers,
        graph=service.known_graph(),
        tags={str(peer): tag_of(peer) for peer in (PeerId(node.peer_id), *service.neighbours())},
        loop_lag_s=lag_s,
    )


def _minute(seconds: float | None) -> float | None:
    """Return the minute in so many seconds from now, in Unix seconds: finer, it would seem to change at every look.
    None for the longest pause that can be said: who says that does not come back (spent_budget.py)."""
    return None if seconds is None or seconds >= MAX_SAID_S - WORD_S else 60.0 * round((time.time() + seconds) / 60.0)


@lru_cache(maxsize=1)
def _gap_of(graph: frozenset[tuple[bytes, frozenset[bytes]]]) -> float:
    """Return the graph's spectral gap. It takes some 10 ms for as many members as an address book has, so it is not
    computed again while the graph is the same."""
    return spectral_gap(dict(graph)) if len(graph) > 1 else -1.0


def told_loss(loss: float, learner: Learner, journal: Journal) -> float | None:
    """Return a round's mean training loss, NaN where no step had one that is a number; None where a loop of the user's
    own takes the steps and has told none in this run. It need not, and NaN in its place would be an alert."""
    untold = learner.steps_elsewhere and math.isnan(loss) and "train_loss" not in journal.last
    return None if untold else loss


def _round(node: Node, phase: Phase, view: RoundView, result: RoundResult, close_seconds: float) -> RoundTrained:
    stats, wire = node.service.stats, node.service.wire
    round_seconds = node.journal.lap()
    gpu = gpu_use(node.inner.trainer.device, gpu_memory_of(node.inner.trainer))
    visitors = _visitors_ledger(node)
    return RoundTrained(
        round=node.state.round + 1,
        rounds=node.config.train.rounds,
        train_loss=told_loss(phase.loss, node.inner.trainer, node.journal),
        steps=phase.steps,
        inner_steps=node.pace.steps,
        tokens=node.inner.trainer.tokens,
        tokens_per_s=phase.tokens / round_seconds if round_seconds else 0.0,
        neighbours=view.neighbours,
        members=result.members,
        fresh=view.fresh,
        updates_in_time=node.watch.in_time.share,
        exchange_s=node.service.exchange_seconds(),
        closed_by=view.closed_by,
        payload_bytes=node.counts.newest_bytes,
        payload_bytes_sent=stats.payload_bytes_sent,
        compression_ratio=BYTES_PER_PARAMETER * node.inner.trainer.numel / node.counts.mean_bytes,
        payload_bytes_received=stats.payload_bytes_received,
        accepted=stats.updates_accepted,
        rejected=sum(stats.rejected_by_reason.values()),
        consensus_distance=result.consensus_distance,
        clipped=list(result.clipped),
        robust_margin=node.watch.robust_margin(result.members),
        link_bytes_per_s=node.state.link_speed,
        rung=node.strategy.rung,
        round_s=round_seconds,
        close_s=close_seconds,
        publish_s=node.closing_times.seconds.get("publish"),
        collect_s=node.closing_times.seconds.get("collect"),
        aggregate_s=node.closing_times.seconds.get("aggregate"),
        step_s=phase.step_seconds,
        compute_s=node.inner.compute_seconds,
        staleness={str(peer): rounds for peer, rounds in view.staleness.items()},
        weights={
            str(peer): (1 + rounds) ** -node.config.sync.staleness_exponent for peer, rounds in view.staleness.items()
        },
        peers_known=node.service.peers_known,
        rejected_by_reason={str(reason): count for reason, count in stats.rejected_by_reason.items()},
        snapshot_bytes_sent=stats.snapshot_bytes_sent,
        snapshot_bytes_received=stats.snapshot_bytes_received,
        energy_j={} if node.meter is None else dict(node.meter.joules()),
        skipped_steps=node.inner.trainer.skipped_steps,
        late_steps=node.inner.late_steps,
        utilization=node.utilization,
        rss_bytes=node.use.rss_bytes(),
        held_bytes=None if node.config.budget.memory is None else held_bytes(),
        cpu_s=node.use.cpu_s(),
        gpu_share=gpu.share,
        gpu_memory_bytes=gpu.memory_bytes,
        learning_rate=node.inner.trainer.learning_rate,
        bytes_sent=wire.sent,
        bytes_received=wire.received,
        sent_bits=_bits_each(node, wire.sent),
        published_bits=_bits_each(node, node.counts.published_bytes),
        epsilon=None if node.privacy is None else node.privacy.epsilon,
        epsilon_budget=None if node.privacy is None else node.privacy.settings.epsilon,
        visits_epsilon=None if visitors is None else visitors.epsilon,
        visits_epsilon_budget=None if visitors is None else visitors.budget,
        layers=_layers(node, view) if node.config.sync.layers else None,
    )


def _layers(node: Node, view: RoundView) -> dict[str, int]:
    """Return how many refinements are held of each member of the round."""
    held = node.service.layers_taken()
    return {str(peer): held.get(peer, 0) for peer in view.staleness}
