"""A node's parts and its position in the run: what the loops in `sync_loop.py` and `joining.py` share."""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from gossip.core.api import MAX_COUNTED_PEERS
from gossip.core.ids import PeerId
from gossip.service import GossipService
from node.config.schema import Config
from node.events.event_types import WarningEvent
from node.events.journal import Journal
from node.metrics.energy import Meter
from node.system.errors import RunError
from node.training.checkpoint import CheckpointStore
from node.training.epochs import EpochCounter
from node.training.estimates import HeldEstimates
from node.training.executors import Executor
from node.training.executors.base import Spent, not_asked
from node.training.executors.thread import ThreadExecutor
from node.training.former_member import Outside
from node.training.in_time import InTime, Lengthened, Lengths, late_words, lengthened_words
from node.training.inner_loop import InnerLoop, Phase
from node.training.pace import Pace
from p2ptrain.aggregate import topology
from p2ptrain.sync.base import AllReduceStrategy, SyncStrategy

SMALL_MODEL = 1 << 15
"""Parameters up to which encoding, decoding and aggregating (1.1, 0.3 and 3.4 ms, measured) are done on the event loop.
The way to a thread and back takes 20 to 50 ms where more threads want to compute than there are cores, and there are as
many in a row as neighbours."""

REFUSED_TOLD = 2
"""Updates refused, and none taken, after which a node says that it learns alone. Chosen: the third one bans a neighbour
whose codec this node has not, and one may be cut short."""

T = TypeVar("T")

SETTLED_ROUNDS = 10
"""Rounds before too few members are told of: as many as before late updates are (in_time.LEAST_ROUNDS). Chosen."""

CATCH_UP_FACTOR = 0.5
"""A lagging node's phases are shorter by this factor for every round that it is behind: one that is a little slower
settles at a lag where it does nearly all of its steps, and one of a fortieth of the speed still closes each round."""


@dataclass(kw_only=True)
class Node:
    """The joined halves of a node. `sync_loop.synchronize` (and `entry`, for it) is the one that moves the round."""

    config: Config
    lane: Executor
    inner: InnerLoop
    strategy: SyncStrategy
    service: GossipService
    checkpoints: CheckpointStore
    journal: Journal
    pace: Pace
    epochs: EpochCounter
    """Which chain epochs this identity has used."""
    peer_id: str
    needed_members: int
    """With fewer members, own model included, the aggregator's promise about its f liars does not hold."""
    promises: bool
    """Whether the aggregator makes that promise (plain mean makes none)."""
    refusals: deque[str]
    """Why peers refused us, or we them, of late."""
    estimates: HeldEstimates
    """Whose estimates the strategy holds. Under the strategy's lock."""
    strategy_lock: trio.Lock = field(default_factory=trio.Lock)
    genesis: str = ""
    """Of the initial model, the first digits of its digest: all members have the same."""
    settle: Callable[[int, int], None] | None = None
    """Called with the rounds that are trained and closed next when these change: by a private swarm's manifest, other
    settings may hold from there. None in an open swarm."""
    outside: Outside | None = None
    """When this node is to stop, as its swarm has put it out. None in an open swarm."""
    put_out: RunError | None = None
    """Why it stops, where its private swarm has put it out."""
    rounds_in: Callable[[int], int] | None = None
    """How many rounds the run has by the settings that hold in a round. None in an open swarm, where no round has other
    settings."""
    round: int = 0
    """The round being trained, or (between a phase and the closing of its round) being closed."""
    swarm_round: int = 0
    """The neighbours' median round, as of `look_around`."""
    neighbours: int = 0
    """As of the last closed round."""
    link_speed: float | None = None
    """Bytes a second to the slowest neighbour that a quorum waits for, as of the newest message (bandwidth.py)."""
    _margin_holds: bool = True
    """As was last told, or taken for granted."""
    _margin_held: bool = False
    """Whether it ever did."""
    _margin_looks: int = 0
    _told_of_skipped: bool = False
    _told_of_metrics: bool = False
    _closing: bool = False
    _gathering: bool = False
    _uncounted: int = 0
    _lap: float = 0.0
    _published: int = 0
    _published_bytes: int = 0
    meter: Meter | None = None
    """What training costs in energy; None: nobody measures."""
    closing_seconds: dict[str, float] = field(default_factory=dict)
    """How long the parts of the newest closing took: publish, collect, aggregate; of a meeting collect alone."""
    newest_payload: int = 0
    """Bytes of the newest message."""
    in_time: InTime = field(default_factory=InTime)
    lengthened: Lengthened = field(default_factory=Lengthened)
    idle_rounds: int = 0
    """Rounds in a row of which no step was taken (divergence.py)."""
    owes_checkpoint: bool = False
    """Whether the newest one that was due could not be written: it is tried again after every round."""
    unsaved: str | None = None
    """Why the model of the last round, or of an interruption, could not be written, if it could not."""
    refused: Counter[str] = field(default_factory=Counter)
    """Updates of each peer that came whole and could not be taken; bounded as `accepted` is."""
    deltas_taken: int = 0
    """Updates that were, of all peers; whole models not counted."""
    _told_of_refused: bool = False
    closed_round: int | None = None
    """The newest round that this process has closed."""
    accepted: Counter[str] = field(default_factory=Counter)
    """Updates taken of each peer; of those that left long ago it is forgotten."""

    def next_epoch(self) -> int:
        """A chain epoch above every one used before, already on disk. RunError when the disk does not take it."""
        return self.epochs.advance()

    @property
    def finished(self) -> bool:
        """Whether there is no further phase to train: the last round is trained, or being closed."""
        rounds = self.config.train.rounds
        return self.round + self._closing >= rounds

    @property
    def private(self) -> bool:
        """Whether it is a private swarm's: then its settings are those of the swarm's manifest."""
        return self.settle is not None

    def rounds_at(self, round_: int) -> int:
        """How many rounds the run has, as the settings of a round say that this node may be far from."""
        return self.config.train.rounds if self.rounds_in is None else self.rounds_in(round_)

    @property
    def last_round(self) -> bool:
        """Whether the round being closed is the run's last."""
        return self.round + 1 == self.config.train.rounds

    @property
    def behind(self) -> int:
        """How many rounds the neighbours (their median) were ahead when last looked at."""
        return max(0, self.swarm_round - self.round)

    def look_around(self) -> None:
        """Take note of the neighbours' round: on the event loop, for the training thread must not read its tables."""
        seen = self.service.swarm_round()
        self.swarm_round = self.round if seen is None else seen

    @property
    def lost(self) -> bool:
        """Whether the neighbours are so far ahead that our update would be too stale for them to use."""
        return self.behind > self.config.network.max_staleness

    @property
    def utilization(self) -> float:
        """Share of the time since training began in which this node computed on the task."""
        wall = self.journal.wall_seconds
        return self.inner.compute_seconds / wall if wall > 0 else 0.0

    def robust_margin(self, members: int) -> int:
        """How many members may leave before the promise about f liars fails; below 0 it has failed, or is not one that
        the aggregator makes at all. By the graph where it is known, else by the members' number (topology.py)."""
        if not self.promises:
            return -1
        theirs = [it.neighbours for it in self.service.neighbours().values()]
        mu_2 = topology.known_connectivity(len(theirs), theirs, self.service.peers_known)
        # Of the members: who is too stale to be one has no say in this round's mesh.
        mu_2 = mu_2 if math.isinf(mu_2) else float(members)
        return topology.robust_margin(members - 1, self.config.sync.f, mu_2, needed=self.needed_members)

    def watch_margin(self, members: int) -> None:
        """Once a round: say so when the promise about f liars stops holding, or holds again. Nothing to say where none
        was asked for."""
        holds = self.robust_margin(members) >= 0
        self._margin_looks += 1
        self._margin_held = self._margin_held or holds
        if self.config.sync.f == 0 or holds == self._margin_holds or not (holds or self._lacks_members(members)):
            return
        self._margin_holds = holds
        sync = self.config.sync
        message = (
            f"{sync.aggregator} withstands no liar, and sync.f is {sync.f}: one lying neighbour may ruin the model"
        )
        if self.promises:
            averages = ": until then nothing is averaged" if self._margin_held else ""
            few = f"a lying one may do harm; sync.f = {sync.f} is withstood from {self.needed_members} on{averages}"
            state = f"sync.f = {sync.f} is withstood again" if holds else few
            message = f"{members} member{'s' * (members != 1)} here, own model included: {state}"
        self.journal.emit(WarningEvent(message=message))

    def _lacks_members(self, members: int) -> bool:
        """Whether too few members are something to look at. In its first rounds a node still meets them, and one that
        was always alone has nobody beside it who could lie."""
        if not self.promises:
            return True
        return self._margin_looks > SETTLED_ROUNDS and (members > 1 or self._margin_held)

    def tell_of_metrics(self, fault: str) -> None:
        """Say so when the task fails at its own metrics, once: training goes on without them."""
        if fault and not self._told_of_metrics:
            self._told_of_metrics = True
            self.journal.emit(WarningEvent(message=f"no metrics of the task's own: {fault}"))

    def watch_skipped(self) -> None:
        """Say so when steps begin to be skipped."""
        skipped = self.inner.trainer.skipped_steps
        if skipped and not self._told_of_skipped:
            self._told_of_skipped = True
            message = (
                f"{skipped} steps skipped: loss or gradient is not finite; lower train.learning_rate if it goes on"
            )
            self.journal.emit(WarningEvent(message=message))

    def watch_refused(self) -> None:
        """Say so when none of the first updates of neighbours could be taken."""
        refused = self.refused.total()
        if refused >= REFUSED_TOLD and not self.deltas_taken and not self._told_of_refused:
            self._told_of_refused = True
            message = f"none of the {refused} updates of neighbours so far could be taken: this node learns alone"
            self.journal.emit(WarningEvent(message=message))

    def watch_arrivals(self, phase: Phase) -> None:
        """At the end of a phase: see whose updates of the round before have arrived meanwhile, and whether rounds last
        longer than planned. Say so when too few do, when enough do again, and when rounds have become longer."""
        lengths = Lengths(
            inner_steps=self.config.train.inner_steps,
            step_seconds=phase.step_seconds,
            exchange_s=self.service.exchange_seconds(),
            longest_s=self.config.network.initial_deadline_s,
        )
        if self.closed_round is not None and self.closed_round == self.round - 1:
            turn = self.in_time.add(self.service.arrivals(self.closed_round))
            if turn is not None:
                again = f"{self.in_time.share or 0:.0%} of the neighbours' updates arrive in time again"
                words = late_words(self.in_time, lengths) if turn == "fell" else again
                recovered = turn == "recovered"
                self.journal.emit(WarningEvent(message=words, about="updates_in_time", recovered=recovered))
        steps = self.lengthened.add(phase.steps, self.pace.steps)
        if steps is not None:
            self.journal.emit(WarningEvent(message=lengthened_words(steps, lengths), about="round_length"))

    async def compute(self, function: Callable[[], T], spent: Spent = not_asked) -> T:
        """Run one piece of a round's work on vectors: on the event loop where the model is small, and beside it by the
        executor where it is not. `spent` is told what it took."""
        if self.inner.trainer.numel <= SMALL_MODEL and isinstance(self.lane, ThreadExecutor):
            await trio.lowlevel.checkpoint()
            return self.lane.here(function, spent)
        return await self.lane.offload(function, spent)

    def enough(self, steps: int) -> bool:
        """Whether a phase may end: its steps are done, or it lags and has done its least; and the round before it is
        closed, for one round closes at a time. So a phase lasts at least as long as that round's exchange. Steps before
        the group of that round is there do not count: so those who meet end their phases together, however unlike
        they began them."""
        if self._gathering:
            self._uncounted = steps
        if self._closing:
            return False
        lag = self.behind
        share = CATCH_UP_FACTOR**lag if lag >= self.config.node.catch_up_rounds else 1.0
        return steps - self._uncounted >= math.ceil(share * self.pace.steps)

    def schedule_step(self, steps: int) -> int:
        """The learning rate's place in the schedule after so many steps of a phase: it follows the swarm's rounds, so
        that a node that does fewer steps a round has the same rate as the others, and ends at the same one."""
        inner_steps = self.config.train.inner_steps
        return (self.round + self._closing) * inner_steps + min(steps * inner_steps // self.pace.steps, inner_steps - 1)

    def rate_factor(self, steps: int) -> float:
        """What is left of the learning rate after so many steps of a phase: all of it for the steps that were planned,
        and 1/k of it in a phase that is k times as long by now, as an exchange outlasts them. So nodes go little
        further from each other than they were set to, however long the others take (docs/decisions/0035)."""
        return min(1.0, self.pace.steps / (steps + 1))

    @property
    def overlap_steps(self) -> int:
        """tau: how many steps late a closed round may be applied."""
        return self.config.node.overlap_steps or self.pace.steps

    def checkpoint_due(self) -> bool:
        """Whether a checkpoint is written once the current round is closed."""
        every = self.config.node.checkpoint_every
        return self.last_round or self.owes_checkpoint or (every > 0 and (self.round + 1) % every == 0)

    def evaluation_due(self) -> bool:
        """Whether the model is evaluated once the current round is closed."""
        return self.last_round or (self.round + 1) % self.config.train.eval_every == 0

    @property
    def mean_payload(self) -> float:
        """Mean size of the payloads published so far, in bytes; 0 before the first."""
        return self._published_bytes / max(self._published, 1)

    def note_payload(self, size: int) -> None:
        """Count a published payload of `size` bytes."""
        self.newest_payload = size
        self._published += 1
        self._published_bytes += size

    def count_accepted(self, peer: str) -> None:
        """Count an update that was taken."""
        self.accepted = self._counted(self.accepted, peer)

    def count_refused(self, peer: str) -> None:
        """Count an update that could not be taken."""
        self.refused = self._counted(self.refused, peer)

    def _counted(self, counts: Counter[str], peer: str) -> Counter[str]:
        if peer not in counts and len(counts) >= MAX_COUNTED_PEERS:
            here = self.service.neighbours()
            counts = Counter({name: count for name, count in counts.items() if PeerId(name) in here})
        counts[peer] += 1
        return counts

    def queues(self) -> dict[str, int]:
        """What waits or is under way now: the network's queues, tasks that wait for the strategy (one at a time may use
        it), trained rounds that are not closed yet (0 or 1), and corrections that training has yet to take up."""
        network: dict[str, int] = {str(name): depth for name, depth in self.service.queues().items()}
        return network | {
            "strategy": self.strategy_lock.statistics().tasks_waiting,
            "closing": int(self._closing),
            "corrections": self.inner.waiting,
        }

    def forget(self, peers: Iterable[str]) -> None:
        """Let the strategy forget these, and the pace of their rounds. Under the strategy's lock."""
        for peer in peers:
            self.strategy.forget(peer)
            self.pace.took(peer, None)

    def lap(self) -> float:
        """Seconds since the last call, or since training began: the length of a round."""
        now = self.journal.wall_seconds
        seconds, self._lap = now - self._lap, now
        return seconds

    def begin_closing(self) -> None:
        """The current round's phase is over."""
        self._closing = True
        self._gathering = isinstance(self.strategy, AllReduceStrategy)
        self._uncounted = 0
        self.settle_round()

    def gathered(self) -> None:
        """All whom this node meets in the round being closed are there, or it waits for them no longer."""
        self._gathering = False

    def enter_round(self, number: int) -> None:
        """Go on with round `number`; nothing is being closed any more."""
        self.round = number
        self._closing = self._gathering = False
        self.settle_round()

    def settle_round(self) -> None:
        """Let the settings of the rounds that come next hold."""
        if self.settle is not None:
            self.settle(self.round + self._closing, self.round)
