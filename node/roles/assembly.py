"""Build a node from its configuration and its context, and resume its newest checkpoint where there is one."""

import hashlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import trio

from gossip.core.api import (
    BlobFile,
    BlobSource,
    GossipEvent,
    Head,
    Recorder,
    RegionLayout,
    RunInfo,
    SnapshotSource,
    Tracked,
    unrecorded,
)
from gossip.core.backoff import peer_in
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId, RunId
from gossip.core.said_once import SaidOnce
from gossip.core.statements import check_region
from gossip.eager_lock import EagerLock
from gossip.membership import MembershipAdmission
from gossip.membership.private_swarm import PrivateMembership
from gossip.membership.refusal import Refusal
from gossip.transport.base import Transport
from node import exporters
from node.config.schema import Config
from node.config.sections import AUTO_REGION, NetworkConfig
from node.events.event_types import CheckpointSkipped, Resumed, WarningEvent
from node.events.gossip_events import translate
from node.events.journal import Emit, Journal
from node.metrics.energy import Meter
from node.privacy.budget import PrivacyBudget
from node.roles import byzantine
from node.roles.logits_check import check_logits
from node.roles.memory_forecast import genesis_filed_from
from node.roles.personal_check import check_personal
from node.roles.privacy_check import check_first_round, check_ledger, check_privacy, private_training
from node.roles.residency_check import check_residency, residency_of
from node.roles.secure_check import check_draw, check_secure, largest_of_sums
from node.roles.visitors_privacy import check_visitor_ledger
from node.shift.watch import KEPT_MODEL
from node.system.errors import RunError, UsageError
from node.system.process_use import ProcessUse
from node.training.averagers.averager_registry import AVERAGERS
from node.training.checkpoint import Checkpoint, CheckpointStore
from node.training.checkpoint_meta import VISITS, Totals, mark_of, stood_with
from node.training.choosing import chooser_for
from node.training.epochs import EpochCounter
from node.training.estimates import MAX_DEPARTED, HeldEstimates
from node.training.executors import Executor
from node.training.former_member import Outside
from node.training.inner_loop import InnerLoop
from node.training.machine_readings import ReaderOf, pauses_of
from node.training.node import Node
from node.training.pace import Pace
from node.training.region_turns import RegionTurns, stated_models
from node.training.remote_trainer import RemoteTrainer
from node.training.run_state import RunState
from node.training.run_watch import RunWatch
from node.training.shift_watching import resume_shifts, shifts_for
from node.training.snapshots import LARGE, SnapshotCutter
from node.training.update_counts import UpdateCounts
from node.training.visiting import check_visits, long_noise, visitors_for
from node.training.warming_up import warm_up_for
from node.visits.visitor_ledger import VisitorLedger
from p2ptrain import aggregate, inner, tasks
from p2ptrain.compress.by_parts import cut
from p2ptrain.inner.base import MomentBuffer
from p2ptrain.inner.filed_optimizer import can_be_filed
from p2ptrain.inner.inner_state import whole_buffers
from p2ptrain.privacy.base import Spend
from p2ptrain.protocols import implements
from p2ptrain.saved.filed_vector import FiledVector
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync import SyncStrategy, averages_gradients, build
from p2ptrain.sync.base import EstimatesInFiles, InPlace, StepsAnchor
from p2ptrain.sync.regional import RegionalAveraging, RegionalStrategy
from p2ptrain.sync.sliced_averaging import SlicedAveraging
from p2ptrain.sync.strategy_spec import GOSSIP
from p2ptrain.sync.vectors import Vector, set_values, values_of
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import whole_batches
from p2ptrain.tasks.sharding import shards_of
from p2ptrain.training import Learner, Trainer
from p2ptrain.training.anchor_optimizer import ONE_MATRIX, AnchorOptimizer
from p2ptrain.training.base import HoldsSlices, KeepsItsModel, TellsInnerState
from p2ptrain.training.ditto import DittoTrainer
from p2ptrain.training.flat import vector_pieces
from p2ptrain.training.late_average import LATE, LateAverage
from p2ptrain.training.logits_trainer import LogitsTrainer, is_of_logits

DIGEST_BYTES = 32
RUN_ID_BYTES = 16
SNAPSHOT_BYTES_PER_PARAMETER = 4
PAYLOAD_SLACK_BYTES = 1 << 16
"""Bytes for scales and headers: a codec that does not compress at all may need some bytes more than fp32."""
GENESIS_DIGITS = 16
"""Hex digits of the initial model's digest that are reported, for programs to compare: 64 bits. Chosen."""
GIVEN = "the state that was given"
"""In place of a folder of checkpoints, where a user's own loop keeps the state."""
MAX_REFUSALS = 8
"""How many of the newest reasons for refusals between peers and this node are kept, for the message when no peer is
left."""


def not_metered(device: torch.device, use: ProcessUse) -> Meter | None:
    """Default: energy is not measured."""
    return None


TrainerOf = Callable[[Config, str], Learner]
"""Builds what trains the task, for the node with this peer id."""


def own_learner(config: Config, peer_id: str, *, spend: Spend | None = None) -> Trainer | LogitsTrainer:
    """Return `own_trainer`, or what shares its logits where the run's members do."""
    trainer = own_trainer(config, peer_id, spend=spend)
    return LogitsTrainer(trainer) if is_of_logits(config.train) else trainer


def own_trainer(config: Config, peer_id: str, *, spend: Spend | None = None) -> Trainer:
    """Build the task's model, and what trains it on the data of the node with this peer id. `spend` is called before
    what is private of them is released: where anything is, there must be one. Raises TaskError or ValueError."""
    privacy = private_training(config, spend)
    attack = byzantine.attack_of(config.attack)
    task = byzantine.poisoned(tasks.get(config.task.name, **config.task.options), attack)
    shard, data_seed = own_data(config, peer_id)
    personal, tells = config.personal.find(), config.sync.spec().wants
    trainer: Trainer
    if personal is not None and config.node.role == "trainer":
        check_personal(config)
        trainer = DittoTrainer(task, config.train, shard, personal=personal, data_seed=data_seed, tells=tells)
    else:
        trainer = Trainer(task, config.train, shard, data_seed=data_seed, tells=tells, privacy=privacy)
    if config.node.micro_batch:
        if whole_batches(task):
            message = f"node.micro_batch is set, and the loss of task {config.task.name} compares a batch's examples"
            raise UsageError(message, "leave it out")
        trainer.take_at_a_time(config.node.micro_batch)
    return trainer


def own_data(config: Config, peer_id: str) -> tuple[Shard, int]:
    """Return the node's shard and the seed of its order. Where they are not configured they follow from its peer id, so
    that two volunteers who know nothing of each other do not train on the same batches."""
    count, seed = config.node.shard_count, config.train.seed
    if config.node.shard_index is not None:
        return Shard(index=config.node.shard_index, count=count), seed
    drawn = int.from_bytes(hashlib.blake2b(f"{seed}|{peer_id}".encode(), digest_size=8).digest(), "big")
    (index,) = shards_of(np.array([drawn], np.uint64), count).tolist()
    return Shard(index=index, count=count), drawn


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """What a node receives instead of making it: everything that differs between a real run and a simulated one."""

    identity: Identity
    transport: Transport
    executor: Executor
    emit: Emit
    clock: Callable[[], float] = time.perf_counter
    """Seconds, for durations."""
    unix_time: Callable[[], float] = time.time
    """Seconds, for chain epochs and the order of own records over restarts."""
    rng: random.Random
    checkpoints: CheckpointStore
    epoch_file: Path
    meter_of: Callable[[torch.device, ProcessUse], Meter | None] = not_metered
    """Returns the energy meter of training on a device, by processes that take so much."""
    reads_device: ReaderOf | None = None
    """Returns what reads the machine for `[participation]`; None: a simulation, whose nodes always train."""
    trainer_of: TrainerOf = own_learner
    """Builds what trains the task: `own_trainer`, or another in a process of its own."""
    private: PrivateMembership | None = None
    """Its membership of a private swarm; None in an open swarm."""
    new_file: Callable[[], NamelessFile] | None = None
    """Makes a file for what is too large for memory; None: everything is held there."""
    recorder: Recorder = unrecorded
    """Records what passes between regions."""
    sums_begun: Path | None = None
    """The file that remembers which secure sums were begun; None: a simulation, whose nodes do not return."""
    regional_stated: Path | None = None
    """The file that remembers after which rounds our region's model was stated; None: as of the sums."""
    statistics_file: Path | None = None
    """Keeps the noised statistics that it shares with newcomers; None: nothing does."""
    privacy: PrivacyBudget | None = None
    """What its data may tell, where they are protected."""
    visitor_ledger: VisitorLedger | None = None
    """What its visitors have spent, where noise hides what they leave."""
    user: "UserLearner | None" = None
    """The model of a user's own loop; None: the task's, which the node trains itself."""


@dataclass(frozen=True, kw_only=True)
class UserLearner:
    """What a user's own loop brings to its node."""

    learner: Learner
    genesis_d: torch.Tensor
    """The model with which the run began, fp32 (d,)."""
    start: "Checkpoint | Literal['newest', 'genesis']" = "newest"
    """Where to go on from: this checkpoint, the folder's newest where there is one, or from the beginning."""


def check_runnable(config: Config) -> None:
    """Raise UsageError for a setting that only a simulation can run, before anything is written or started."""
    if averages_gradients(config.sync.strategy):
        message = f"no node can run the strategy {config.sync.strategy}: training would wait for it at every step"
        hint = "use tracked_gossip with train.inner_steps=1 (every strategy: `p2ptrain bench strategies`)"
        raise UsageError(message, hint)
    if config.sync.spec().steps_anchor:
        try:
            AnchorOptimizer(config.train, ONE_MATRIX)
        except ValueError as error:
            raise UsageError(f"sync.strategy={config.sync.strategy}: {error}") from error
    byzantine.attack_of(config.attack)
    check_filed_optimizer(config)
    _check_region(config)
    check_residency(config)
    check_visits(config)
    check_privacy(config)
    check_personal(config)
    check_logits(config)
    check_secure(config)
    if "moments" in config.sync.spec().wants:
        _check_moments(config)
    exporters.check(config.monitoring.exporters)


def _check_region(config: Config) -> None:
    """Raise UsageError where the node's region is none of the run's, or a run with regions has none for it, or a
    strategy that cannot average between them."""
    region, regions, strategy = config.node.region, config.sync.regions, config.sync.strategy
    if regions and config.sync.spec().averager != GOSSIP:
        message = f"sync.regions: the strategy {strategy} does not average between regions"
        raise UsageError(message, "use sync.strategy=tracked_gossip, or leave sync.regions out")
    try:
        for label in regions:
            check_region(label)
    except ValueError as error:
        raise UsageError(f"sync.regions: {error}") from error
    if AUTO_REGION in regions:
        raise UsageError(f"sync.regions: no region can be called {AUTO_REGION}", "give it another name")
    if region == AUTO_REGION:
        _check_auto_region(config)
    elif region and region not in regions:
        there = ", ".join(regions) or "none"
        raise UsageError(
            f"node.region {region!r} is none of the run's regions, which are {there}",
            'name all of them, in the same way on every node: sync.regions = ["east", "west"]',
        )
    if regions and not region and config.node.role == "trainer":
        raise UsageError("the run has regions, and this node names none", f"give node.region: {', '.join(regions)}")


def _check_auto_region(config: Config) -> None:
    """Raise UsageError where a node cannot find out its region by itself."""
    if not config.sync.regions:
        raise UsageError("node.region=auto, and the run has no regions", "leave it out, or name sync.regions")
    if config.node.role != "trainer":
        raise UsageError(f"node.region=auto: a node of role {config.node.role} is of no region", "leave it out")
    if config.network.behind_relay:
        message = "node.region=auto: through a relay no distance to others can be measured"
        raise UsageError(message, f"give node.region: {', '.join(config.sync.regions)}")


def check_filed_optimizer(config: Config) -> None:
    """Raise UsageError where the inner optimizer's vectors cannot lie in files."""
    why = why_not_filed(config) if config.node.optimizer_on == "disk" else ""
    if why:
        raise UsageError(f"node.optimizer_on=disk: {why}", "leave node.optimizer_on at memory")


def why_not_filed(config: Config) -> str:
    """Return why the inner optimizer's vectors cannot lie in files; empty where they can."""
    wants = config.sync.spec().wants
    if not can_be_filed(inner.get(config.train.optimizer, **config.train.optimizer_options())):
        return f"{config.train.optimizer} wants whole matrices"
    if config.sync.spec().steps_anchor or "moments" in wants:
        return f"the strategy {config.sync.strategy} shares the optimizer's state"
    return "it wants node.lane=thread" if config.node.lane == "process" else ""


def _check_moments(config: Config) -> None:
    """Raise UsageError where the strategy averages moments, and the inner optimizer has none."""
    if not inner.moments_of(inner.get(config.train.optimizer, **config.train.optimizer_options())):
        raise UsageError(
            f"sync.strategy={config.sync.strategy} averages the inner optimizer's moments, and "
            f"train.optimizer={config.train.optimizer} has none",
            "use adamw, muon or sgd with momentum, or sync.strategy=allreduce",
        )


def make_node(
    config: Config, around: NodeContext, learned: tuple[Learner, torch.Tensor] | None = None
) -> tuple[Node, Checkpoint | None]:
    """Build the node, resumed from its newest checkpoint where there is one. `learned`: what `learner_of` returned,
    where that was called before. Raises TaskError, ValueError or RunError."""
    if config.node.region == AUTO_REGION:
        raise UsageError("node.region=auto is for nodes on machines of their own", "give each simulated node its own")
    check_draw(config, around.private)
    attack = byzantine.attack_of(config.attack)
    trainer, genesis_d = learned or learner_of(config, around)
    run = run_info(config, trainer.fingerprint, genesis_d, trainer.identity)
    honest = _strategy(config, genesis_d, around.identity.peer_id, trainer)
    strategy = byzantine.lying(honest, attack, config.train.seed, from_round=config.attack.from_round)
    journal = Journal(around.emit, clock=around.clock)
    lock = EagerLock()
    refusals: deque[str] = deque(maxlen=MAX_REFUSALS)
    rule = aggregate.get(config.sync.aggregator, f=config.sync.f, **config.sync.rule_options())
    promises = rule.f >= config.sync.f
    stated = stated_models(around.regional_stated)
    regions = _region_turns(strategy, config, genesis_d, around.new_file, stated)
    _file_genesis(strategy, genesis_d, around.new_file, genesis_filed_from(config))
    _file_estimates(strategy, config, around.new_file, journal)
    _file_optimizer(trainer, config, around.new_file, journal)
    del genesis_d
    snapshots = SnapshotCutter(strategy, around.new_file)
    service = byzantine.service_type(attack, from_round=config.attack.from_round)(
        identity=around.identity,
        transport=around.transport,
        config=network_for(config, trainer.numel),
        run=run,
        rng=around.rng,
        snapshot_source=_snapshot_source(snapshots, around.executor, lock, lambda: service.head),
        tracked=_tracked(strategy, around.executor, lock, config.sync.f, rule.minimum() if promises else 0),
        observer=_observer(journal, refusals),
        unix_time=around.unix_time,
        private=around.private,
        new_file=around.new_file,
        layout=RegionLayout(own=config.node.region, regions=config.sync.regions, residency=residency_of(config)),
        recorder=around.recorder,
        sums_begun=around.sums_begun,
    )
    use = ProcessUse(lambda: trainer.pid if isinstance(trainer, RemoteTrainer) else None)
    meter = around.meter_of(trainer.device, use)
    pauses = None
    if around.reads_device is not None:
        pauses = pauses_of(config, around.reads_device, journal, trainer, use, meter)
    state = RunState(
        config=config,
        held=(lambda: False) if pauses is None else (lambda: pauses.paused),
        pace=Pace(
            config.node.pace,
            config.train.steps_in(0),
            f=config.sync.f,
            own=around.identity.peer_id,
            clock=around.clock,
        ),
    )
    counts = UpdateCounts(here=lambda: service.neighbour_ids)
    node = Node(
        state=state,
        counts=counts,
        watch=RunWatch(
            journal=journal,
            service=service,
            state=state,
            counts=counts,
            needed_members=rule.minimum(),
            promises=promises,
        ),
        executor=around.executor,
        inner=InnerLoop(
            trainer,
            clock=around.clock,
            keep=around.checkpoints.keep_apart,
            tells=bool(config.sync.spec().wants),
            held=state.held,
        ),
        strategy=strategy,
        averager=AVERAGERS.get(config.sync.spec().averager, strategy=strategy),
        regions=regions,
        late=LateAverage(config.train.late_average),
        strategy_lock=lock,
        estimates=HeldEstimates(
            most=config.network.degree + MAX_DEPARTED,
            here=lambda: service.neighbour_ids,
            counted=lambda: service.newest_members,
        ),
        service=service,
        checkpoints=around.checkpoints,
        journal=journal,
        epochs=EpochCounter(around.epoch_file, unix_time=around.unix_time, warn=partial(_warn, journal)),
        peer_id=around.identity.peer_id,
        refusals=refusals,
        outside=None if around.private is None else _outside(config, around.private.admission, journal),
        genesis=run.genesis.hex()[:GENESIS_DIGITS],
        meter=meter,
        use=use,
        pauses=pauses,
        privacy=around.privacy,
        snapshots=snapshots,
        chooser=chooser_for(config, rule.minimum(), around.rng),
        shifts=shifts_for(config, trainer),
        warm_up=warm_up_for(config, trainer, around.statistics_file),
        visitors=visitors_for(
            config, run.run_id, trainer, state, private=around.private is not None, ledger=around.visitor_ledger
        ),
    )
    if (warning := long_noise(config, trainer.numel)) is not None:
        journal.emit(WarningEvent(message=warning, about="privacy"))
    return node, _started(node, around.user)


def learner_of(config: Config, around: NodeContext) -> tuple[Learner, torch.Tensor]:
    """Return what trains, and the initial model (d,)."""
    if around.user is not None:
        if around.privacy is not None:
            check_first_round(config, around.privacy, around.user.learner)
        return around.user.learner, around.user.genesis_d
    trainer: Learner
    if around.privacy is None:
        trainer = around.trainer_of(config, around.identity.peer_id)
    else:  # then it trains in this process (check_privacy)
        own = own_learner(config, around.identity.peer_id, spend=around.privacy.spend)
        check_first_round(config, around.privacy, own.own if isinstance(own, LogitsTrainer) else own)
        trainer = own
    return trainer, trainer.initial_vector() if implements(trainer, KeepsItsModel) else trainer.vector()


def _strategy(config: Config, genesis_d: torch.Tensor, own: str, learner: Learner) -> SyncStrategy:
    """Return the configured strategy of the node `own`: in slices, where the learner's vectors are."""
    rounds, largest_gamma = config.train.rounds, config.train.largest_gamma
    holders = learner.slices if isinstance(learner, HoldsSlices) else None
    if holders is not None:
        return SlicedAveraging(config.sync, genesis_d, own, holders, rounds=rounds, largest_gamma=largest_gamma)
    return build(
        config.sync,
        genesis_d,
        own,
        judge=learner.judge,
        rounds=rounds,
        largest_gamma=largest_gamma,
        steps=_anchor_steps(config, learner),
        moments=_moments(config, learner),
    )


def _anchor_steps(config: Config, learner: Learner) -> AnchorOptimizer | None:
    """Return the inner optimizer for the swarm's model, where the strategy wants it."""
    if not config.sync.spec().steps_anchor:
        return None
    return AnchorOptimizer(config.train, _telling(learner).optimizer_place(), newest=lambda: learner.config)


def _moments(config: Config, learner: Learner) -> Sequence[MomentBuffer]:
    """Return the inner optimizer's moments, where the strategy averages them."""
    return _telling(learner).optimizer_place().moments if "moments" in config.sync.spec().wants else ()


def _telling(learner: Learner) -> TellsInnerState:
    assert isinstance(learner, TellsInnerState), "integrations/swarm.py refuses loops of a user's own"
    return learner


def _started(node: Node, user: UserLearner | None) -> Checkpoint | None:
    """Load the checkpoint from which the node goes on, and return it; None where it begins anew."""
    if user is None or user.start == "newest":
        return resume(node)
    return None if user.start == "genesis" else resume(node, user.start)


def _outside(config: Config, admission: MembershipAdmission, journal: Journal) -> Outside:
    def told(peer: PeerId, words: str) -> None:
        message = f"{peer} does not let this node in, and says that {words}: its word alone"
        journal.emit(WarningEvent(message=message))

    def refused(peer: PeerId, refusal: Refusal, signed: bool) -> None:
        outside.refused(peer, refusal, signed, trio.current_time())

    named = [peer_in(address) for address in config.network.peers if "/p2p/" in address]
    outside = Outside(admission, named=named, liars=config.sync.f, told=told)
    admission.refused = refused
    return outside


def network_for(config: Config, numel: int) -> NetworkConfig:
    """Return the network's settings, with the largest blob that is pulled set to what this model can need: a liar's
    larger junk is cut off there. Raises UsageError when a snapshot could not be sent: no neighbour could ever begin to
    track this node. The same where a secure sum could not: nothing would ever be exchanged."""
    snapshot, limit = SNAPSHOT_BYTES_PER_PARAMETER * numel, config.network.max_payload_bytes
    summed = largest_of_sums(config, numel)
    size, what = max((snapshot, "a snapshot"), (summed, "a secure sum"))
    if size > limit:
        raise UsageError(
            f"{what} of this model has {size} bytes, above network.max_payload_bytes = {limit}",
            hint="raise that limit on every member, or train a smaller model",
        )
    return replace(config.network, max_payload_bytes=min(limit, size + PAYLOAD_SLACK_BYTES))


def run_info(config: Config, fingerprint: bytes, genesis_d: torch.Tensor, identity: bytes = b"") -> RunInfo:
    """Return what the members of one run share: the task, the model's shape, its task's `identity` (such as the digest
    of a frozen base model), the settings that the strategy wants equal, the inner optimizer where it moves the anchor
    of all (run id), and the initial model."""
    shared = [config.task.name.encode(), fingerprint]
    if identity:
        shared.append(identity)
    if key := config.sync.run_key():
        shared.append(key.encode())
    if config.sync.spec().steps_anchor:
        shared.append(config.train.optimizer.encode())
    run = hashlib.blake2b(b"|".join(shared), digest_size=RUN_ID_BYTES)
    genesis = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in vector_pieces(genesis_d):
        genesis.update(piece)
    return RunInfo(run_id=RunId(run.digest()), genesis=Digest(genesis.digest()))


def resume(node: Node, given: Checkpoint | None = None) -> Checkpoint | None:
    """Load the checkpoint `given`, else the newest whole one, if any, into the node. Raises RunError when it is of
    another model."""
    damaged: list[Path] = []

    def skipped(path: Path, why: str) -> None:
        node.journal.emit(CheckpointSkipped(path=str(path), why=why))
        damaged.append(path)

    checkpoint = node.checkpoints.newest(skipped) if given is None else given
    for path in damaged:
        node.checkpoints.set_aside(path)
    if checkpoint is None:
        if damaged:
            message = f"no checkpoint in {node.checkpoints.folder} is whole: beginning anew, from the initial model"
            node.journal.emit(WarningEvent(message=message))
        return None
    check_ledger(node, mark_of(checkpoint.meta), checkpoint.round)
    check_visitor_ledger(node, mark_of(checkpoint.meta, VISITS))
    try:
        node.strategy.load_state_dict(checkpoint.part("sync"))  # first: a user's own model is changed by a whole one
        node.inner.trainer.load_state_dict(checkpoint.trainer_state)
        if isinstance(node.strategy, StepsAnchor) and isinstance(node.inner.trainer, TellsInnerState):
            node.inner.trainer.take_optimizer_state(whole_buffers(node.strategy.optimizer_state()))
        node.late.load_state_dict(checkpoint.part(LATE.removesuffix(".")), node.inner.trainer.numel)
    except ValueError as error:
        raise RunError(
            f"the checkpoint in {node.checkpoints.folder} is of another model ({error})",
            hint="run with the options it was made with, or give another --run-dir",
        ) from error
    resume_shifts(node, checkpoint.meta, checkpoint.tensors.get(KEPT_MODEL), checkpoint.round)
    node.state.enter_round(checkpoint.round)
    members = stood_with(checkpoint.meta)
    if members is not None or "held" in checkpoint.part("sync"):  # rounds before it withstood liars
        node.service.stood_before(members or [])
    _take_up_totals(node, checkpoint.totals)
    came_from = str(node.checkpoints.folder) if given is None else GIVEN
    node.journal.emit(Resumed(round=checkpoint.round, checkpoint=came_from))
    return checkpoint.without_tensors()


def _take_up_totals(node: Node, totals: Totals) -> None:
    """Continue the totals of the run's earlier processes: the summary is the whole run's, and no epoch is used
    twice."""
    node.journal.first |= totals.first
    node.journal.earlier_seconds = totals.wall_s
    node.inner.compute_seconds = totals.compute_s
    node.inner.steps = totals.steps
    node.epochs.note(totals.epoch)
    node.journal.lap()


def _region_turns(
    strategy: SyncStrategy,
    config: Config,
    genesis_d: torch.Tensor,
    new_file: Callable[[], NamelessFile] | None,
    stated: SaidOnce,
) -> RegionTurns | None:
    """Return what averages with other regions; None in a run that has none. Raises UsageError for a strategy that
    cannot."""
    if not config.sync.regions:
        return None
    if not isinstance(strategy, RegionalStrategy):  # a plug-in's
        message = f"sync.regions: the strategy {strategy.name} does not average between regions"
        raise UsageError(message, "use sync.strategy=tracked_gossip, or leave sync.regions out")
    genesis: Vector = genesis_d
    if new_file is not None and genesis_d.nbytes >= LARGE:
        with suppress(OSError):  # a full disk: then it stays in memory
            genesis = FiledVector(genesis_d.numel(), genesis_d.dtype, new_file(), _taken_back)
            for part in cut(genesis_d.numel()):
                set_values(genesis, part, values_of(genesis_d, part))
    return RegionTurns(RegionalAveraging(config.sync, genesis), strategy, stated)


def _taken_back(error: OSError) -> None:
    """A disk that is full as the node starts: the initial model is in memory then."""


def _file_genesis(
    strategy: SyncStrategy, genesis_d: torch.Tensor, new_file: Callable[[], NamelessFile] | None, least_bytes: int
) -> None:
    """Move an initial model of so many bytes, which is seldom needed again, out of memory."""
    if new_file is not None and isinstance(strategy, InPlace) and genesis_d.nbytes >= least_bytes:
        with suppress(OSError):  # a full disk: then it stays there
            strategy.keep_genesis_in(new_file())


def _file_estimates(
    strategy: SyncStrategy, config: Config, new_file: Callable[[], NamelessFile] | None, journal: Journal
) -> None:
    """Keep the neighbours' estimates on disk, where that is asked. Raises UsageError for a strategy that cannot."""
    if config.node.estimates_on == "memory" or new_file is None:
        return
    if not isinstance(strategy, EstimatesInFiles):
        message = f"the strategy {strategy.name} keeps its neighbours' models in memory"
        raise UsageError(message, "leave node.estimates_on at memory")
    strategy.keep_estimates_in(new_file, _refused(journal, "the neighbours' models ({}): they are held"))


def _file_optimizer(
    learner: Learner, config: Config, new_file: Callable[[], NamelessFile] | None, journal: Journal
) -> None:
    """Keep the inner optimizer's vectors on disk, where that is asked. Raises UsageError where it cannot."""
    if config.node.optimizer_on == "memory" or new_file is None:
        return
    if not isinstance(learner, Trainer) or learner.device.type != "cpu":
        message = "node.optimizer_on=disk is for a task that trains on a CPU, in the node's own process"
        raise UsageError(message, "leave node.optimizer_on at memory")
    refused = _refused(journal, "the optimizer's state ({}): it is held")
    try:
        learner.keep_optimizer_in(new_file, refused)
    except OSError as error:  # no room: all of it stays in memory
        if config.budget.memory is not None:  # where it was to fit without: the kernel would end the node
            message = f"the disk does not take the optimizer's state ({error.strerror}), nor does budget.memory"
            raise UsageError(message, "free some disk, or give the node more memory") from None
        refused(error)


def _refused(journal: Journal, what: str) -> Callable[[OSError], None]:
    """Return what tells, once, that the disk does not take `what`, which has a place for the reason."""
    told = threading.Event()

    def refused(error: OSError) -> None:
        if not told.is_set():
            told.set()
            journal.emit(WarningEvent(message=f"the disk does not take {what.format(error.strerror)} in memory"))

    return refused


def _snapshot_source(
    snapshots: SnapshotCutter, executor: Executor, lock: EagerLock, head: Callable[[], Head]
) -> SnapshotSource:
    async def source() -> tuple[Head, bytes | BlobFile]:
        async with lock:  # the estimate changes with the head: read both while neither can change
            return head(), await executor.offload(snapshots.cut)

    return source


def _tracked(strategy: SyncStrategy, executor: Executor, lock: EagerLock, liars: int, withstood_by: int) -> Tracked:
    async def estimate(peer: PeerId) -> bytes | memoryview | BlobSource | None:
        if implements(strategy, InPlace):
            return strategy.estimate_view(str(peer))
        return await executor.offload(lambda: strategy.estimate(str(peer)))

    return Tracked(estimate=estimate, reading=lambda: lock, liars=liars, withstood_by=withstood_by)


def _warn(journal: Journal, message: str) -> None:
    journal.emit(WarningEvent(message=message))


def _observer(journal: Journal, refusals: deque[str]) -> Callable[[GossipEvent], None]:
    def observe(event: GossipEvent) -> None:
        if event.name in ("rejected", "banned"):
            refusals.append(f"{event.reason}: {event.detail}")
        journal.emit(translate(event))

    return observe
