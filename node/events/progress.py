"""A node's state by its events, as the live table, `/status`, `p2ptrain status` and the end report show it.

It depends on events only, so a recorded `events.jsonl` gives the same state as a running node.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from node.events import peers_seen
from node.events.event_types import (
    BudgetPlanned,
    CheckpointFailed,
    CheckpointWritten,
    Ended,
    Evaluated,
    Event,
    Failed,
    Finished,
    JoinCommand,
    Joined,
    LearnerStarted,
    NeighbourLost,
    NeighbourUp,
    Paused,
    PrivacyBudgetSpent,
    Rejected,
    Resumed,
    RoundClosed,
    RoundTrained,
    ShiftDetected,
    Started,
    Unpaused,
    WarmedUp,
    WarningEvent,
)
from node.events.shift_words import of_shift

_BYTES = ("bytes_sent", "bytes_received", "payload_bytes_sent", "payload_bytes_received")
_COUNTS = ("steps", "neighbours", "members", *_BYTES, "accepted", "rejected")
"""Counts of this process only, like `rejected_by`; tokens are the run's, and a round event has their total."""

MAX_WARNINGS = 20
"""The newest warnings kept for display; a screen shows fewer."""

MAX_OWN = 16
"""Most own metrics of a task: `p2ptrain.tasks.metrics.MAX_METRICS`, which cannot be imported without torch."""

MAX_EVALUATIONS = 8
"""Evaluations kept of each node, so that nodes at different rounds can be compared at one that all have evaluated.
Chosen: nodes are a few rounds apart, and evaluations as far or further."""


@dataclass
class NodeProgress:
    """A node's state. Counts are totals since its process started; a restart resets them.

    Events before `started` (its checkpoint's round, warnings) keep their effect after it.
    """

    name: str = ""
    state: str = "starting"
    """starting, running, finished, interrupted, failed; by its process (events/liveness.py) dead, which ended without
    an event, or silent, which is alive without a heartbeat."""
    paused: str = ""
    """Why its training is paused, as `hours: it trains at 22:00-07:00`; empty: it is not."""
    spent: str = ""
    """The same of a budget of privacy that is spent, which no end of another pause ends; empty: it is not."""
    started_at: float | None = None
    updated_at: float | None = None
    heartbeat: float | None = None
    """The newest sign of life, in Unix seconds: an event, or the heartbeat of its process."""
    ended_at: float | None = None
    """When it finished, failed, was interrupted, or was last alive; None while it runs."""
    pid: int | None = None
    role: str = "trainer"
    peer_id: str = ""
    addresses: list[str] = field(default_factory=list)
    metrics_url: str | None = None
    token_file: str | None = None
    """The file of the token that the node's page wants, if it wants one."""
    run_dir: str | None = None
    """The node's folder."""
    device: str = ""
    parameters: int = 0
    aggregator: str = ""
    compressor: str = ""
    join_command: str | None = None
    rounds_done: int = 0
    """Rounds closed, counted from the run's first (so a late joiner begins at the swarm's)."""
    first_round: int | None = None
    """The first round that this process closed, and when, later by the pauses since then; for the ETA."""
    first_round_at: float | None = None
    last_round_at: float = 0.0
    paused_s: float = 0.0
    """Seconds of pauses since the newest round."""
    rounds: int = 0
    """Rounds that the run has; 0 until its process has closed one: it may have been given more than the one before."""
    steps: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    train_loss: float | None = None
    eval_loss_first: float | None = None
    eval_loss: float | None = None
    own: dict[str, float] = field(default_factory=dict)
    """The task's own metrics at the newest evaluation."""
    metric: str = ""
    """What losses are measured in."""
    units: dict[str, str] = field(default_factory=dict)
    """Units of `own`, where the task names them."""
    evaluations: list[tuple[int, float | None]] = field(default_factory=list)
    """The newest MAX_EVALUATIONS evaluations: after how many rounds, and the loss."""
    neighbours: int = 0
    members: int = 0
    closed_by: str = ""
    payload_bytes: int = 0
    """Size of the newest update."""
    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    bytes_sent: int | None = 0
    """All bytes to peers, copies and overhead included; None: the log is of an older release, which did not count."""
    bytes_received: int | None = 0
    sent_bits: float | None = None
    """All bytes to peers as bits for each parameter and inner step; None: not known yet."""
    published_bits: float | None = None
    """The same of one copy of each update."""
    accepted: int = 0
    rejected: int = 0
    rejected_by: dict[str, int] = field(default_factory=dict)
    consensus_distance: float | None = None
    utilization: float | None = None
    rung: str = ""
    """The codec with which the compressor `adaptive` made the newest update."""
    link_bytes_per_s: float | None = None
    """Speed of updates to the slowest neighbour that a quorum waits for."""
    updates_in_time: float | None = None
    """Share of the neighbours' updates, over the newest rounds (training/in_time.py)."""
    exchange_s: float | None = None
    """How long the exchange of a round's updates takes, with a quorum of the neighbours."""
    learning_rate: float | None = None
    """Learning rate of the newest step."""
    rss_bytes: int | None = None
    """Memory of its process."""
    held_bytes: int | None = None
    """What of it the system cannot take back; None where it has no budget of memory."""
    memory_budget: int | None = None
    """Memory that it may take."""
    inner_steps: int = 0
    """Planned steps of the next round."""
    checkpoint: str | None = None
    checkpoint_round: int | None = None
    unsaved: str = ""
    """Why the disk did not take the newest checkpoint; empty: it did."""
    warnings: list[str] = field(default_factory=list)
    peers: peers_seen.Peers = field(default_factory=dict)
    epsilon: float | None = None
    """Privacy that its data have spent; None: nothing protects them, or it is not known yet."""
    epsilon_budget: float | None = None
    """How much they may spend; None: as much as it takes."""
    visits_epsilon: float | None = None
    """Privacy that the visitor has spent that has spent most; None: no noise hides visitors' differences."""
    visits_epsilon_budget: float | None = None
    """How much each visitor may spend; None: as much as it takes."""
    warmed_up: str = ""
    """What it was trained on before its first round (`[warm_up]`); empty: nothing."""
    loop_lag_s: float | None = None
    """Lag of the event loop, as the node itself answers when asked; no event has it."""
    error: str | None = None
    hint: str | None = None
    """What to do about the error."""
    summary: dict[str, Any] | None = None

    def observe(self, event: Event) -> None:
        """Apply one event; events that do not change the node's state are ignored."""
        self.updated_at = event.ts
        peers_seen.observe(self.peers, event)
        match event:
            case Started():
                self._begin(event)
            case JoinCommand():
                self.join_command = event.command
            case RoundClosed():
                self._close_round(event)
            case Evaluated():
                self._evaluate(event)
            case NeighbourUp():
                self.neighbours += 1
            case NeighbourLost() if not self.rounds or self.rounds_done < self.rounds:  # at the end all leave
                self.neighbours = max(0, self.neighbours - 1)
            case Rejected():
                reason = event.reason or "?"
                self.rejected_by[reason] = self.rejected_by.get(reason, 0) + 1
            case BudgetPlanned():
                self.memory_budget = event.memory_bytes
            case Paused():
                self.paused = f"{event.reason}: {event.why}"
            case PrivacyBudgetSpent():
                self.paused = self.spent = f"privacy: its budget of epsilon {event.budget:g} is spent"
                self.epsilon, self.epsilon_budget = event.epsilon, event.budget
            case Unpaused():
                self.paused = self.spent  # the end of a policy's pause gives no budget back
                self.paused_s += max(0.0, event.seconds)
            case CheckpointWritten():
                self.checkpoint, self.checkpoint_round, self.unsaved = event.path, event.round, ""
            case CheckpointFailed():
                self.unsaved = event.why
            case Resumed() | Joined():
                self.rounds_done = event.round
            case WarmedUp():
                self.warmed_up = f"{event.steps} steps on synthetic examples of {event.members} members' statistics"
            case ShiftDetected():
                self.warnings = [*self.warnings, f"round {event.round + 1}: {of_shift(event)}"][-MAX_WARNINGS:]
            case WarningEvent():
                self.warnings = [*self.warnings, event.message][-MAX_WARNINGS:]
            case Ended():
                self.paused = ""
                self.state = "finished" if isinstance(event, Finished) else "interrupted"
                self.summary, self.ended_at = event.summary, event.ts
                if isinstance(event, Finished):
                    self.rounds = self.rounds or self.rounds_done  # it had nothing left to do
            case Failed():
                self.state, self.ended_at, self.paused = "failed", event.ts, ""
                self.error, self.hint = event.error, event.hint

    @property
    def over(self) -> bool:
        """Return whether the node has ended."""
        return self.state in {"finished", "interrupted", "failed", "dead"}

    @property
    def shown_state(self) -> str:
        """Return its state for people: `paused` where it runs and its training does not."""
        return "paused" if self.paused and self.state == "running" else self.state

    def as_dict(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return asdict(self)

    def _begin(self, event: Started) -> None:
        self.state, self.started_at = "running", event.ts
        self.first_round = self.first_round_at = self.error = self.hint = self.summary = self.ended_at = None
        self.pid, self.paused, self.spent, self.unsaved = event.pid, "", "", ""
        self.rounds, self.paused_s = 0, 0.0
        for key in _COUNTS:
            setattr(self, key, 0)
        self.rejected_by, self.sent_bits, self.published_bits = {}, None, None
        self.role, self.peer_id, self.addresses = event.role or self.role, event.peer_id, event.addresses
        self.metrics_url, self.token_file, self.run_dir = event.metrics_url, event.token_file, event.run_dir
        if isinstance(event, LearnerStarted):
            self.device, self.parameters = event.device, event.parameters
            self.aggregator, self.compressor = event.aggregator, event.compressor
            self.metric, self.units = event.metric, event.units

    def _close_round(self, event: RoundClosed) -> None:
        self.state = "running"
        self.rounds_done, self.rounds = event.round, event.known_rounds or self.rounds
        if self.first_round is None:
            self.first_round, self.first_round_at = event.round, event.ts
        elif self.first_round_at is not None:
            self.first_round_at = min(event.ts, self.first_round_at + self.paused_s)
        self.last_round_at, self.paused_s = event.ts, 0.0
        if event.rejected_by_reason is not None:  # complete counts: the events `rejected` are thinned out
            self.rejected_by = dict(event.rejected_by_reason)
        self.neighbours, self.members, self.closed_by = event.neighbours, event.members, event.closed_by
        self.payload_bytes_sent, self.payload_bytes_received = event.payload_bytes_sent, event.payload_bytes_received
        self.bytes_sent, self.bytes_received = event.bytes_sent, event.bytes_received
        self.accepted, self.rejected = event.accepted, event.rejected
        self.rss_bytes = _newest(event.rss_bytes, self.rss_bytes)
        self.held_bytes = _newest(event.held_bytes, self.held_bytes)
        if isinstance(event, RoundTrained):
            self._train_round(event)

    def _train_round(self, event: RoundTrained) -> None:
        self.steps += event.steps
        self.tokens, self.tokens_per_s = event.tokens, event.tokens_per_s
        self.payload_bytes, self.inner_steps, self.rung = event.payload_bytes, event.inner_steps, event.rung
        self.train_loss = _newest(event.train_loss, self.train_loss)
        self.consensus_distance = _newest(event.consensus_distance, self.consensus_distance)
        self.utilization = _newest(event.utilization, self.utilization)
        self.link_bytes_per_s = _newest(event.link_bytes_per_s, self.link_bytes_per_s)
        self.updates_in_time = _newest(event.updates_in_time, self.updates_in_time)
        self.exchange_s = _newest(event.exchange_s, self.exchange_s)
        self.learning_rate = _newest(event.learning_rate, self.learning_rate)
        self.sent_bits, self.published_bits = event.sent_bits, event.published_bits
        self.epsilon, self.epsilon_budget = event.epsilon, event.epsilon_budget
        self.visits_epsilon, self.visits_epsilon_budget = event.visits_epsilon, event.visits_epsilon_budget

    def _evaluate(self, event: Evaluated) -> None:
        self.eval_loss = event.eval_loss
        self.own = dict(list(_finite(event.own).items())[:MAX_OWN])
        earlier = [each for each in self.evaluations if each[0] < event.round]
        self.evaluations = [*earlier, (event.round, self.eval_loss)][-MAX_EVALUATIONS:]
        if self.eval_loss_first is None:
            self.eval_loss_first = self.eval_loss


def _finite(told: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers: a task may give, and another release may have written, anything."""
    return {
        str(name): value
        for name, value in told.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }


T = TypeVar("T", int, float)


def _newest(told: T | None, known: T | None) -> T | None:
    """Return the reported value; the one known before where none was reported (a number not finite, or not known)."""
    return known if told is None else told


def common_evaluation(nodes: Sequence[NodeProgress]) -> tuple[int, float] | None:
    """Return the newest round after which all of `nodes` evaluated their models, and the mean of these losses; None
    where there is no such round. Dead nodes, and nodes without an evaluation, are left out."""
    told = [dict(node.evaluations) for node in nodes if node.evaluations and node.state not in {"dead", "failed"}]
    common = set.intersection(*map(set, told)) if told else set()
    finite = [after for after in common if all(each[after] is not None for each in told)]
    if not finite:
        return None
    newest = max(finite)
    return newest, sum(each[newest] or 0.0 for each in told) / len(told)
