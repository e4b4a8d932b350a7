"""A trainer: it joins the run, trains and synchronizes to the last round, and leaves.

`main` is what `p2ptrain node` calls: real transport, real clock, one trio loop. `live` does the same with given parts:
so tests run whole swarms over the in-memory transport under a virtual clock.
"""

import math
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
import trio

from gossip.membership.private_swarm import PrivateMembership
from gossip.regions.region_survey_task import STEP_S, SurveyedRun
from node.config.schema import Config, join_command
from node.config.sections import AUTO_REGION
from node.events.crossing_log import CrossingLog
from node.events.event_types import (
    Ended,
    Finished,
    Interrupted,
    JoinCommand,
    LearnerStarted,
    RouterAnswered,
    WarningEvent,
)
from node.events.liveness import beat
from node.events.log import EventLog
from node.events.progress import NodeProgress
from node.events.summary import NodeSummary, read_node_summary, to_json, write_atomic
from node.exporters import exporting
from node.metrics.energy import Meter, SystemTimes, meter_for
from node.metrics.gpu_metrics import register_gpu
from node.metrics.live_metrics import Readings
from node.metrics.node_metrics import PRIVATE_LOSS, Metrics
from node.page.feed import Feed
from node.page.names import Names
from node.page.status_server import server_of
from node.privacy.budget import PrivacyBudget
from node.roles.assembly import (
    NodeContext,
    TrainerOf,
    UserLearner,
    learner_of,
    make_node,
    own_learner,
    run_info,
)
from node.roles.budgeting import check_budget, within_budget
from node.roles.logits_check import check_logits
from node.roles.observer import observe, observes
from node.roles.own_region import keep_region, scope_of, surveyor, with_chosen_region, with_kept_region
from node.roles.personal_check import check_personal
from node.roles.port_forwarding import mapper_for
from node.roles.privacy_check import check_privacy, privacy_budget
from node.roles.residency_check import residency_in_words
from node.roles.shared_shards import warn_of_shared_examples
from node.roles.site_check import idle_site_settings
from node.roles.spool_relay import with_relay
from node.roles.task_check import check_task
from node.roles.visitors_privacy import visitor_ledger
from node.swarm import credentials
from node.swarm.effective_manifest import more_rounds_hint
from node.system import free_memory, gc_tuning
from node.system.addresses import UNDIALABLE_WARNING, best_address, is_undialable
from node.system.cgroups import HeldProcess
from node.system.child_process import require_support
from node.system.errors import EXIT_INTERRUPTED, RunError, UsageError
from node.system.process_use import ProcessUse
from node.system.run_dir import (
    ADDRESSES,
    CHECKPOINTS,
    CROSSINGS,
    ENERGY,
    EPOCH,
    PORTS,
    REGIONAL_STATED,
    STATISTICS,
    SUMMARY,
    SUMS_BEGUN,
)
from node.system.signals import until_signal
from node.training import round_report
from node.training.budget_meter import BudgetMeter
from node.training.checkpoint import Checkpoint, CheckpointStore
from node.training.divergence import diverged, unusable
from node.training.executors import EXECUTORS, Executor
from node.training.former_member import until_told
from node.training.gpu_budget import GpuBudget
from node.training.inner_loop import Phase
from node.training.joining import await_more_rounds, enter
from node.training.machine_readings import machine_reader
from node.training.manifest_updates import follow_manifests
from node.training.node import Node
from node.training.outcome import (
    check_room,
    check_saved,
    check_taken,
    device_lost,
    note_lost_device,
    rank_lost,
    trainer_lost,
    vector_lost,
)
from node.training.remote_learner import gpu_memory_of
from node.training.remote_trainer import RemoteTrainer, TrainerLostError
from node.training.shift_watching import look_as_newcomer
from node.training.spent_budget import is_spent, serve_on
from node.training.sync_loop import follow, synchronize, train
from node.training.warming_up import share_statistics, warm_up_newcomer
from node.visits.visit_server import VisitServer
from node.visits.visitor_ledger import VisitorLedger
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.tasks import EXTERNAL
from p2ptrain.training import Learner, Trainer
from p2ptrain.training.logits_trainer import LogitsTrainer
from p2ptrain.training.site.orders import RankLostError

FREE = HeldProcess(os.getpid())
"""A process in no cgroup of its own."""

LOOK_AROUND_S = 0.1
"""Seconds between two checks of a finished node that its neighbours are finished, too."""

LOOK_INSIDE_S = 1.0
"""Seconds between two checks of a private swarm's member that it still is one. Chosen: a check takes microseconds, and
a second of training alone costs nobody anything."""

GOODBYE_S = 1.0
"""Seconds for the goodbyes of a stopped node: three round trips of the slowest links. Together with the checkpoint, and
the second in which connections are closed, this stays within the five seconds that Ctrl-C promises."""


def main(
    config: Config,
    *,
    node_dir: Path,
    emit: EventLog,
    fits: Callable[[], None] = lambda: None,
    passphrase: bytes | None = None,
    tried: bool = False,
    user_loop: "UserLoop | None" = None,
    trainer_of: TrainerOf = own_learner,
    process: HeldProcess = FREE,
) -> int:
    """Run a node to its end and return the exit code. The caller holds the lock of `node_dir`. `fits` is called once
    the newest checkpoint is read and fits this model. `passphrase` is that of its key. `tried`: whether the caller has
    tried the task. `user_loop`: takes the steps, and stops the node; None: the node trains its task itself, until it is
    done or a signal comes. `trainer_of` builds what trains the task in this process, which is `process`.

    Raises P2PTrainError, TaskError, LocalError or ValueError when it cannot start or go on.
    """
    apart = config.node.lane == "process" and user_loop is None
    if user_loop is None:  # else the process is the user's, or set up by who has started it
        if apart:
            require_support()
        sys.setswitchinterval(gc_tuning.SWITCH_INTERVAL_S)
        bounded = config.budget.memory is not None
        free_memory.keep_little(free_memory.SMALL_PIECE if bounded else free_memory.LARGE_PIECE)
    with (
        privacy_budget(config, node_dir, emit) as privacy,
        visitor_ledger(config, node_dir, emit) as ledger,
        exporting(config.monitoring.exporters, emit, node_dir) as ending,
        ExitStack() as trainers,
    ):
        code = trio.run(
            partial(
                run,
                config,
                node_dir=node_dir,
                emit=emit,
                fits=fits,
                passphrase=passphrase,
                tried=tried,
                trainer_of=partial(_apart, node_dir, trainers) if apart else trainer_of,
                user_loop=user_loop,
                process=process,
                privacy=privacy,
                visitors=ledger,
            )
        )
        if code == 0:
            ending.finished()
    return code


def _apart(node_dir: Path, trainers: ExitStack, config: Config, peer_id: str) -> Learner:
    """Build what trains in a process of its own, which `trainers` ends."""
    trainer = RemoteTrainer(config, peer_id, node_dir)
    trainers.callback(trainer.close)
    return trainer


class UserLoop(Protocol):
    """A training loop of the user's own, in another thread, for which a node runs (node/roles/joined.py)."""

    @property
    def executor(self) -> Executor:
        """Where the steps are."""

    def learner(self, config: Config, peer_id: str, privacy: PrivacyBudget | None) -> UserLearner:
        """Return the user's model. `privacy`: what its data may tell, where they are protected."""

    def built(self, node: Node) -> None:
        """The node is built. Nothing runs yet."""

    def listens(self, addresses: list[str], page: str | None) -> None:
        """The node can be reached at these addresses, and its page at `page`."""

    async def until_stopped(self, *, task_status: trio.TaskStatus[trio.Event]) -> None:
        """Pass on an event, and set it when the node is to stop as on Ctrl-C."""


def metrics_of(config: Config) -> Metrics:
    """Return the metrics of a node with these settings: without its training loss, where it protects its data."""
    metrics = Metrics()
    if config.privacy.on and not observes(config):
        metrics.leave_out(PRIVATE_LOSS)
    return metrics


async def run(
    config: Config,
    *,
    node_dir: Path,
    emit: EventLog,
    fits: Callable[[], None] = lambda: None,
    passphrase: bytes | None = None,
    tried: bool = False,
    trainer_of: TrainerOf = own_learner,
    user_loop: UserLoop | None = None,
    process: HeldProcess = FREE,
    privacy: PrivacyBudget | None = None,
    visitors: VisitorLedger | None = None,
) -> int:
    """Run a node to its end, as `main`, in the running trio loop, without exporters. `trainer_of` builds what trains
    the task. `process` is the one that this node is, in cgroups of its own where it has a budget. `privacy` is what its
    data may tell, where they are protected, and `visitors` what its visitors have spent."""
    from gossip.transport.libp2p.libp2p_transport import (  # takes seconds: only a real node needs it
        Libp2pConfig,
        Libp2pTransport,
    )

    check_budget(config, user_loop=user_loop is not None)
    check_privacy(config, user_loop=user_loop is not None)
    check_personal(config, user_loop=user_loop is not None)
    check_logits(config, user_loop=user_loop is not None)
    config = with_kept_region(config, node_dir)
    held = credentials.load(node_dir, passphrase)
    emit.redact.learn(*held.secrets())
    config = config.model_copy(update={"network": await with_relay(config.network, config.node.wait_timeout_s, emit)})
    transport = Libp2pTransport(
        Libp2pConfig(
            listen=config.network.listens_on,
            ports_file=node_dir / PORTS,
            announce=config.network.announce,
            swarm=config.network.swarm,
            bounds=config.network.bounds(),
            via=config.network.via,
            spool=config.network.spool,
        ),
        held.identity.seed,
        admission=held.admission,
        psk=held.psk,
    )
    if config.network.address_book is None:
        kept = replace(config.network, address_book=node_dir / ADDRESSES)
        config = config.model_copy(update={"network": kept})
    metrics, progress = metrics_of(config), NodeProgress(config.node.name)
    names = Names(node_dir.parent, partial(_certified, held.private))
    settings = emit.redact.fields(config.model_dump(mode="json"))
    feed = Feed(progress, log=emit.path, settings=settings, names=names.known)
    for sink in (metrics.observe, progress.observe, feed.observe):
        emit.add_sink(sink)
    around = NodeContext(
        identity=held.identity,
        transport=transport,
        executor=EXECUTORS.get(config.node.lane) if user_loop is None else user_loop.executor,
        emit=emit,
        rng=random.Random(),
        checkpoints=CheckpointStore(node_dir / CHECKPOINTS, keep=config.node.checkpoint_keep),
        epoch_file=node_dir / EPOCH,
        reads_device=partial(machine_reader, unix_time=time.time, energy_file=node_dir / ENERGY),
        meter_of=partial(_meter_for, watts=config.monitoring.watts_per_core),
        trainer_of=trainer_of,
        private=held.private,
        new_file=partial(NamelessFile, node_dir),
        recorder=CrossingLog(node_dir / CROSSINGS),
        sums_begun=node_dir / SUMS_BEGUN,
        regional_stated=node_dir / REGIONAL_STATED,
        statistics_file=node_dir / STATISTICS,
        privacy=privacy,
        visitor_ledger=visitors,
        user=None if user_loop is None else user_loop.learner(config, held.identity.peer_id, privacy),
    )
    budgeted = within_budget(config, around) if config.budget.is_set else None
    if budgeted is None:
        node, checkpoint = await _made(config, around, node_dir, held)
    else:
        config = budgeted.config
        node, checkpoint = await _made(config, budgeted.around, node_dir, held, budgeted.learned)
        emit(budgeted.hold(process, emit))
    if user_loop is not None:
        user_loop.built(node)
    elif not tried and not observes(config):
        _try_task(node)
    check_room(node)
    fits()
    if privacy is not None:
        warn_of_shared_examples(config, held.identity.peer_id, node_dir, emit)
    if held.private is not None:
        held.news.to = follow_manifests(node, held.private.admission.chain, emit)
    reading = partial(round_report.readings, node)
    metrics.live.watch(reading if budgeted is None else _with_budget(node, node_dir, budgeted.gpu, reading))
    feed.watch(lambda: round_report.moment(node, metrics.newest_lag_s))
    trainer = node.inner.trainer
    register_gpu(metrics.registry, trainer.device, partial(gpu_memory_of, trainer))
    visits = _visits_of(node, emit)
    told = _told_already(node, node_dir) if node.state.finished else None
    if told is not None and not node.state.private:
        _announce_over(node, told)
        return 0
    if user_loop is None:  # else the process is the user's
        gc_tuning.running()
        free_memory.trim()
    async with trio.open_nursery() as nursery:
        interrupted = await nursery.start(until_signal if user_loop is None else user_loop.until_stopped)
        nursery.start_soon(metrics.watch_loop)
        nursery.start_soon(beat, node_dir)
        for watch in () if budgeted is None else budgeted.watches:
            nursery.start_soon(watch.run)
        server = server_of(config.node, metrics, feed)
        emit.redact.learn(*(() if server is None else server.secrets()))
        url = None if server is None else await nursery.start(server.run)
        if visits is not None:
            await nursery.start(visits.run)

        router = _Router(node)

        async def started() -> None:
            if user_loop is not None:
                user_loop.listens(list(transport.addresses), url)
            announce_start(node, list(transport.addresses), node_dir, url)
            mapper = mapper_for(
                config.network,
                transport.addresses,
                mapped=router.mapped,
                tell=router.tell,
            )
            if mapper is not None:
                nursery.start_soon(_until, interrupted, mapper.run)

        await live(node, resumed=checkpoint is not None, started=started, stop=interrupted, over=told is not None)
        event = Interrupted if interrupted.is_set() else Finished
        if told is not None and not node.journal.has_begun:  # nothing was trained: the earlier summary still holds
            _announce_over(node, told, event)
        else:
            finish(node, node_dir, checkpoint, event=event)
        nursery.cancel_scope.cancel()
    return EXIT_INTERRUPTED if interrupted.is_set() else 0


async def _made(
    config: Config,
    around: NodeContext,
    node_dir: Path,
    held: credentials.Credentials,
    learned: tuple[Learner, torch.Tensor] | None = None,
) -> tuple[Node, Checkpoint | None]:
    """Build the node, in the region that is nearest where it is to find that out. `learned`: what trains, where that
    was built before, and the initial model."""
    if config.node.region != AUTO_REGION:
        keep_region(config, node_dir)
        return make_node(config, around, learned)
    from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport

    learner, genesis_d = learned = learned or learner_of(config, around)
    run = run_info(config, learner.fingerprint, genesis_d, learner.identity)
    identity, private = surveyor(held)
    asking = Libp2pConfig(swarm=config.network.swarm, dial_timeout_s=STEP_S, data_connections=False)
    config = await with_chosen_region(
        config,
        SurveyedRun(scope=scope_of(config, run, private), genesis=run.genesis),
        transport=Libp2pTransport(asking, identity.seed, admission=held.admission, psk=held.psk),
        private=private,
        rng=random.Random(),
        node_dir=node_dir,
        emit=around.emit,
    )
    return make_node(config, around, learned)


def _with_budget(
    node: Node, node_dir: Path, gpu: GpuBudget | None, read: Callable[[], Readings]
) -> Callable[[], Readings]:
    """Return what reads the node's values, and what it takes of its budget."""
    meter = BudgetMeter(
        node.config.budget,
        node_dir,
        cpu_s=node.use.cpu_s,
        gpu=(lambda: 0) if gpu is None else gpu.used,
        clock=time.perf_counter,
    )
    return lambda: replace(read(), budget=meter.budget(), budget_used=meter.used())


def _visits_of(node: Node, emit: EventLog) -> VisitServer | None:
    """Return what answers the node's visitors, if any. Raises UsageError."""
    if node.visitors is None:
        return None

    def warn(message: str) -> None:
        node.journal.emit(WarningEvent(message=message))

    server = VisitServer(node.config.visits, node.visitors, node.executor.offload, warn)
    emit.redact.learn(*server.secrets())
    return server


def _meter_for(device: torch.device, use: ProcessUse, *, watts: float) -> Meter | None:
    return meter_for(device, watts=watts, times=SystemTimes(use))


def _certified(private: PrivateMembership | None) -> list[tuple[str, str]]:
    return [] if private is None else [(str(it.peer), it.grant.name) for it in private.admission.roster.certificates]


async def _until(stop: trio.Event, run: Callable[[], Awaitable[None]]) -> None:
    """Run `run`, and cancel it on `stop`. Its cleanup then runs beside the goodbye and the checkpoint, within Ctrl-C's
    five seconds, and not after them."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await stop.wait()
        nursery.cancel_scope.cancel()


def _told_already(node: Node, node_dir: Path) -> NodeSummary | None:
    """Return the summary of the node's last process; None where it wrote none, or a damaged or an older one."""
    try:
        summary = read_node_summary(node_dir / SUMMARY)
    except UsageError:
        return None
    return summary if summary is not None and summary.rounds == node.state.round else None


def _announce_over(node: Node, summary: NodeSummary, event: type[Ended] = Finished) -> None:
    """Report the end of a start in which nothing was trained, with the summary of the process before it."""
    if node.state.finished:  # else an admin has given more meanwhile, and the node was stopped before it trained them
        done = node.config.train.rounds
        of_all = f"all {done} rounds are" if done > 1 else "the only round is"
        more = more_rounds_hint(done) if node.state.private else "give more with --rounds to go on"
        node.journal.emit(WarningEvent(message=f"{of_all} done already: {more}"))
    node.journal.emit(event(summary=to_json(summary)))


def _try_task(node: Node) -> None:
    """Try the task before this node announces itself. Raises TaskFaultError for a task that cannot be trained."""
    trainer = node.inner.trainer
    if isinstance(trainer, RemoteTrainer):
        doubts = trainer.check_task()
    else:
        trainer = trainer.own if isinstance(trainer, LogitsTrainer) else trainer
        assert isinstance(trainer, Trainer), "a user's own loop has no task"
        doubts = check_task(node.config, trainer.task, trainer.shard, data_seed=trainer.data_seed)
    for doubt in (*idle_site_settings(node.config.site), *node.config.participation.idle(), *doubts):
        node.journal.emit(WarningEvent(message=doubt))


class _Router:
    """Passes the router's result on to the network, and emits it as an event."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._forwards = False

    def mapped(self, addresses: tuple[str, ...]) -> None:
        self._forwards = bool(addresses)
        self._node.service.mapped(addresses)

    def tell(self, words: str) -> None:
        self._node.journal.emit(RouterAnswered(message=words, forwards=self._forwards))


def announce_start(node: Node, addresses: list[str], node_dir: Path, url: str | None) -> None:
    """Emit that the node listens, and how another one joins it."""
    config = node.config
    token_file = config.node.status_token_file
    node.journal.emit(
        LearnerStarted(
            peer_id=node.peer_id,
            addresses=addresses,
            pid=os.getpid(),
            run_dir=str(node_dir),
            metrics_url=url,
            token_file=None if url is None or token_file is None else str(token_file),
            device=str(node.inner.trainer.device),
            parameters=node.inner.trainer.numel,
            task=config.task.name,
            genesis=node.genesis,
            metric=node.inner.trainer.metric,
            units=dict(node.inner.trainer.units),
            aggregator=config.sync.aggregator,
            compressor=config.sync.compressor,
            f=config.sync.f,
            robust_margin=node.watch.robust_margin(config.node.wait_for + 1),
            role=config.node.role,
            residency=residency_in_words(config),
        )
    )
    if is_undialable(config.network.listens_on, config.network.announce):
        node.journal.emit(WarningEvent(message=UNDIALABLE_WARNING))
    joined_by_line = not node.state.private and not observes(config) and config.task.name != EXTERNAL
    if addresses and joined_by_line:  # a private swarm is joined by an invite, a user's own program by p2ptrain.join
        address = addresses[0] if config.network.announce else best_address(addresses)
        node.journal.emit(JoinCommand(command=join_command(config, address)))


async def live(
    node: Node,
    *,
    resumed: bool,
    started: Callable[[], Awaitable[None]] | None = None,
    stop: trio.Event | None = None,
    over: bool = False,
) -> None:
    """Run a node from the first dial to the goodbye. When it is cancelled, a checkpoint is written first; on `stop` it
    ends early with a checkpoint and a goodbye. `over`: all rounds were trained and reported before, so there is nothing
    to do unless a private swarm's admin has given more. Raises RunError, after the checkpoint, where this node is no
    longer a member of its swarm; RunError where the device that trains is lost, after its neighbours have had time to
    fetch what it has, and a goodbye; RunError, after a goodbye, where the process that trains is lost, or a
    neighbour's model that was on the disk."""
    stop = trio.Event() if stop is None else stop
    node.service.fetch(node.averager.fetches)
    cause: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        if started is not None:
            await started()
        try:
            await _take_part(node, stop, resumed=resumed, over=over)
        except Exception as error:  # a former member may fail in many ways before it checks its membership
            node.state.put_out = node.state.put_out or _why_outside(node, resumed=resumed)
            if node.state.put_out is None:
                if (lost := _lost(node, error)) is not None:
                    await node.service.say_goodbye(GOODBYE_S)  # nobody waits for this node's next round
                    raise lost from error
                if not note_lost_device(node, error):
                    raise
                cause = error
                await _leave_before(node, stop)
            else:
                stop.set()
        finally:
            # Ask the scope, not the exception: a cancelled nursery may raise a group around Cancelled.
            if stop.is_set() or trio.current_effective_deadline() == -math.inf:
                await _cut_short(node, goodbye=stop.is_set())
        nursery.cancel_scope.cancel()
    if node.state.put_out is not None:
        raise node.state.put_out
    if node.state.device_lost:
        raise device_lost(node) from cause


def _lost(node: Node, error: BaseException) -> RunError | None:
    """Return what to tell where what trains, or what is trained with, is lost; None for any other error."""
    return trainer_lost(node, error) or rank_lost(node, error) or vector_lost(node, error)


async def _take_part(node: Node, stop: trio.Event, *, resumed: bool, over: bool) -> None:
    """Train until everything is done and reported, or until `stop`."""
    async with trio.open_nursery() as nursery:

        async def until_stopped() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_stopped)
        nursery.start_soon(_stop_outside, node, stop, resumed)
        if node.state.finished and node.state.private:
            await await_more_rounds(node)
            if node.state.finished and over:
                nursery.cancel_scope.cancel()
                return
        if observes(node.config):
            await observe(node, resumed=resumed)
        else:
            if node.pauses is not None:
                await nursery.start(node.pauses.watch, name="pauses")
            nursery.start_soon(follow, node, name="follow")
            await _train_and_synchronize(node, resumed=resumed)
        await _leave(node)
        nursery.cancel_scope.cancel()


async def _stop_outside(node: Node, stop: trio.Event, resumed: bool) -> None:
    """Stop a former member of a private swarm as Ctrl-C would. `live` raises the reason."""
    while node.outside is not None:
        node.state.put_out = _why_outside(node, resumed=resumed)
        if node.state.put_out is not None:
            await until_told(lambda: node.service.neighbour_ids)
            stop.set()
            return
        await trio.sleep(LOOK_INSIDE_S)


def _why_outside(node: Node, *, resumed: bool) -> RunError | None:
    if node.outside is None:
        return None
    return node.outside.why(trio.current_time(), node.service.neighbour_ids, resumed=resumed)


async def _cut_short(node: Node, *, goodbye: bool) -> None:
    """Save the model, and say goodbye at the same time: the neighbours need not wait for our disk, nor miss the goodbye
    when nothing can be saved."""
    failed: Exception | None = None
    async with trio.open_nursery() as nursery:
        if goodbye:
            nursery.start_soon(node.service.say_goodbye, GOODBYE_S)
        if node.journal.has_begun and not node.state.device_lost:
            with trio.CancelScope(shield=True):
                try:
                    await save_interrupted(node)
                except Exception as error:
                    failed = error
    if failed is not None:
        raise failed


async def _leave(node: Node) -> None:
    """Stay while neighbours still have rounds to close, as those would otherwise have fewer members or none. Then say
    goodbye."""
    with trio.move_on_after(node.config.node.linger_s):
        while any(it.round + 1 < node.state.round for it in node.service.neighbours().values()):  # noqa: ASYNC110
            await trio.sleep(LOOK_AROUND_S)
    await node.service.leave(node.config.node.linger_s)


async def _leave_before(node: Node, stop: trio.Event) -> None:
    """Leave as a node that has finished does, or until `stop`."""
    async with trio.open_nursery() as nursery:

        async def until_stopped() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_stopped)
        await _leave(node)
        nursery.cancel_scope.cancel()


async def _train_and_synchronize(node: Node, *, resumed: bool) -> None:
    if node.inner.trainer.evaluates and (
        not resumed or node.state.finished
    ):  # finished, but killed before it could report it
        await round_report.evaluate(node, rounds=node.state.round)
    if not node.state.finished:
        await share_statistics(node)
        await enter(node, resumed=resumed)
        node.inner.settle()
        if not resumed:
            await look_as_newcomer(node)
            await warm_up_newcomer(node)
        node.watch.check_margin(len(node.service.neighbours()) + 1)
        node.watch.check_outer()
        node.journal.training_began()
        # No buffer: a phase is handed over only when it ends.
        phases, closing = trio.open_memory_channel[Phase](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(train, node, phases, name="train")
            nursery.start_soon(synchronize, node, closing, name="synchronize")
        await node.executor.drive(node.inner.settling())
        node.state.settled.set()
        if is_spent(node):
            await serve_on(node)
        node.journal.training_ended()
        if not node.state.finished:
            await _save_ended(node)


async def _save_ended(node: Node) -> None:
    """Measure and save the model where the user's loop has ended between two rounds, and no round was the last."""
    node.state.end_after(node.state.round)
    if node.inner.trainer.evaluates and node.journal.eval_round != node.state.round:
        await round_report.evaluate(node, rounds=node.state.round)
    if node.state.saved_round != node.state.round:
        await save_interrupted(node)


async def save_interrupted(node: Node) -> None:
    """Save the moving model as it is: training has stopped between two steps."""
    node.journal.training_ended()
    over = node.state.round >= node.config.train.rounds and node.state.unsaved is None
    try:
        state = await node.executor.drive(node.inner.state())
    except (TrainerLostError, RankLostError) as lost:
        raise (_lost(node, lost) or lost) from lost
    theta_d = state["parameters"]
    assert isinstance(theta_d, torch.Tensor), "a model is a vector"
    why = await unusable(node, theta_d)
    if why is not None:
        raise diverged(node, why)
    await round_report.save(node, theta_d, state, next_round=node.state.round, last=True, waits_s=())
    if over:  # the last round's checkpoint was written before
        node.state.unsaved = None


def finish(node: Node, node_dir: Path, resumed_from: Checkpoint | None, *, event: type[Ended] = Finished) -> None:
    """Write the summary and emit that the run is over. Raises RunError where it ended without success
    (training/outcome.py)."""
    check_saved(node)
    origin = f"round {resumed_from.round}" if resumed_from else None
    summary = round_report.summarize(node, origin)
    write_atomic(summary, node_dir / SUMMARY)
    if event is Finished:
        check_taken(node)
    node.journal.emit(event(summary=to_json(summary)))
