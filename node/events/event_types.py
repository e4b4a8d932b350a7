"""The events of a node: one frozen dataclass for each. A test checks docs/operations.md#events against them.

    emit(RoundTrained(round=3, ...)) ── EventLog (log.py): time, no secrets, a line in events.jsonl ── listeners
    a line of events.jsonl ── record_in (log.py) ── parse ── the event, or None

Listeners match on types and read fields. A field without a default is given by the emitter and always written. A field
with the default None is left out of the record while it is None. `parse` reads records of any release: it ignores names
and fields that this release does not know. A field that is missing, or of another type, gets its default, else None
where that is allowed, else the empty value of its type. Emitters give lists and dicts of JSON values.
"""

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Final, Self, TypeAlias, Union, get_args, get_origin, get_type_hints

from node.system import text
from node.system.light_roles import WITHOUT_MODEL

Record: TypeAlias = dict[str, Any]
"""An event in JSON: `ts`, `event` (its name), and its fields."""

ENDLESS: Final = 1_000_000
"""Rounds of a run that ends when the user's loop does: not 0, which tells alerts that no round was closed yet."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events. `ts`: Unix seconds, set by the log."""

    name: ClassVar[str] = ""
    """The event's name in records."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Fields without which a record is useless."""

    ts: float = 0.0

    def to_record(self) -> Record:
        """Return the event as its JSON record."""
        return {"ts": self.ts, "event": self.name, **self.told()}

    def told(self) -> Record:
        """Return its own fields, as they stand in the record."""
        told = dict(vars(self))
        del told["ts"]
        for name in _left_out(type(self)):
            if told[name] is None:
                del told[name]
        return told

    def at(self, ts: float) -> Self:
        """Return the same event with the time `ts`."""
        copied = object.__new__(
            type(self)
        )  # replace() copies every field: 20 us for a round's event, where this takes 1
        vars(copied).update(vars(self), ts=ts)
        return copied


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The node listens. A bootstrap node and a relay emit this; the others emit `LearnerStarted`."""

    name: ClassVar[str] = "started"

    role: str
    peer_id: str
    addresses: list[str]
    pid: int | None
    run_dir: str | None
    metrics_url: str | None
    token_file: str | None
    """The file with the token that the page at `metrics_url` wants; None: it wants none."""


@dataclass(frozen=True, kw_only=True)
class LearnerStarted(Started):
    """A trainer or an observer listens."""

    device: str
    parameters: int
    task: str
    genesis: str
    """Digest of the initial model."""
    metric: str
    """The metric of the losses."""
    units: dict[str, str]
    """Units of the task's own metrics."""
    aggregator: str
    compressor: str
    f: int
    robust_margin: int | None
    residency: str | None = None
    """The run's policy of what may leave a region, in words; None: it has none."""


@dataclass(frozen=True, kw_only=True)
class MembersKnown(Event):
    """At a bootstrap node or a relay only: the number of members that it knows, of their runs or of its clients, has
    changed."""

    name: ClassVar[str] = "members"

    members_known: int
    runs: int
    peers_known: int
    rejected: int
    rss_bytes: int
    clients: int | None = None
    """Connected nodes that reach the others through this relay; None: it is none."""


@dataclass(frozen=True, kw_only=True)
class JoinCommand(Event):
    """The command with which another machine joins."""

    name: ClassVar[str] = "join"

    command: str


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """The node resumes from a checkpoint."""

    name: ClassVar[str] = "resumed"

    round: int
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class WaitingFor(Event):
    """What the node waits for, before it begins or at its end."""

    name: ClassVar[str] = "waiting"

    message: str


@dataclass(frozen=True, kw_only=True)
class Joined(Event):
    """The node took the model of so many neighbours, and their round; or of members of other `regions`, of none where
    these had published none yet."""

    name: ClassVar[str] = "joined"

    round: int
    donors: int
    peers: list[str]
    regions: list[str] | None = None

    @property
    def whose_model(self) -> str:
        """Return in words whose model it is."""
        if not self.regions:
            return f"the model of {text.plural(self.donors, 'neighbour')}"
        others = f"{'regions' if len(self.regions) > 1 else 'region'} {', '.join(map(str, self.regions))}"
        return f"the model of {others}" if self.donors else f"the initial model, as {others} by then"


@dataclass(frozen=True, kw_only=True)
class RegionsAveraged(Event):
    """It was time to move by the models of other regions: some had come, or none has in the rounds after it."""

    name: ClassVar[str] = "regions"

    round: int
    """Rounds closed so far."""
    regions: int
    """Regions in the mean, our own among them; 0: too few of our own region's models had come, or none of others."""
    beside: int
    """Regions beside ours whose members are known."""
    region_margin: int
    """Regions that may leave before a lying one cannot be left out any more; negative: it cannot be now."""
    models: dict[str, int]
    """By region, the round after which the model is that has come."""
    moved: bool
    """Whether our region's model moved."""


OPENED: Final = "opened"
KEPT: Final = "kept"
"""What a round of secure sums may come to (`SecureRound.result`)."""


@dataclass(frozen=True, kw_only=True)
class SecureRound(Event):
    """A round of secure sums was closed."""

    name: ClassVar[str] = "secure_round"

    round: int
    """Rounds closed so far."""
    members: int
    """Of our group, ourselves among them; 0: too few were there for one."""
    survivors: int
    """Whose values are in our group's sum; 0: nothing of it is here."""
    groups: int
    """Groups of the round."""
    groups_here: int
    """Groups whose sums are here."""
    clipped_share: float
    """Share of our values that were beyond the clipping range. What was cut is told later."""
    result: str
    """`opened`: our group's sum is here; `kept`: nothing of it, and own values stay."""
    why: str | None = None
    """Why our own sum was not opened with us."""


@dataclass(frozen=True, kw_only=True)
class RegionChosen(Event):
    """The node's region was found out by round trips."""

    name: ClassVar[str] = "region"

    region: str
    why: str
    """`nearest`; `as near`: the first of those that cannot be told apart; `nobody`: no member of any answered, and it
    is the first of all."""
    round_trips_ms: dict[str, float]
    """By region that has answered, ms."""
    members: dict[str, int]
    """By region, how many members were measured."""

    @property
    def measured(self) -> Record:
        """What the choice was made by."""
        return {"why": self.why, "round_trips_ms": self.round_trips_ms, "members": self.members}


@dataclass(frozen=True, kw_only=True)
class ManifestHolds(Event):
    """A newer version of a private swarm's manifest applies from now on. A bootstrap node gives only version and
    time."""

    name: ClassVar[str] = "manifest"

    version: int
    applies_at: int
    round: int | None = None
    changes: dict[str, Any] | None = None
    """Settings that changed, by `section.key`."""


@dataclass(frozen=True, kw_only=True)
class PeerEvent(Event):
    """Something about one peer."""

    peer: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class NeighbourUp(PeerEvent):
    """Updates are exchanged with this peer from now on."""

    name: ClassVar[str] = "neighbour_up"


@dataclass(frozen=True, kw_only=True)
class NeighbourLost(PeerEvent):
    """Updates are no longer exchanged with this peer; `detail` says why."""

    name: ClassVar[str] = "neighbour_lost"


@dataclass(frozen=True, kw_only=True)
class DialFailed(PeerEvent):
    """An address of `network.peers` or the peers file did not answer."""

    name: ClassVar[str] = "dial_failed"


@dataclass(frozen=True, kw_only=True)
class Throttled(PeerEvent):
    """Reading this peer's updates takes more computing than its share."""

    name: ClassVar[str] = "throttled"


@dataclass(frozen=True, kw_only=True)
class ReachabilityTold(PeerEvent):
    """Whether others can dial this node, which is `peer`."""

    name: ClassVar[str] = "reachability"


@dataclass(frozen=True, kw_only=True)
class Offence(PeerEvent):
    """Something that a peer did wrong."""

    reason: str | None = None
    """A value of gossip.core.errors.Reason."""


@dataclass(frozen=True, kw_only=True)
class Rejected(Offence):
    """Something from this peer was refused. Of a flood only a part is reported."""

    name: ClassVar[str] = "rejected"


@dataclass(frozen=True, kw_only=True)
class Banned(Offence):
    """This peer's points reached 100: no contact for an hour."""

    name: ClassVar[str] = "banned"


@dataclass(frozen=True, kw_only=True)
class Equivocation(Offence):
    """This peer signed two histories, and there is a proof."""

    name: ClassVar[str] = "equivocation"


@dataclass(frozen=True, kw_only=True)
class RoundClosed(Event):
    """A round was closed: the fields that every node reports. An observer, which took the swarm's model, reports no
    more.

    Counts and bytes are totals since the process started; fields that end in `_s` are seconds of this round."""

    name: ClassVar[str] = "round"
    needs: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    """Rounds closed so far."""
    rounds: int
    """Rounds of the run; ENDLESS where it ends when a loop of the user's own does."""
    neighbours: int
    members: int
    """Models in the average, own included."""
    fresh: int
    """Neighbours that had reached the round when it was closed."""
    closed_by: str
    """quorum, deadline or alone."""
    payload_bytes_sent: int
    payload_bytes_received: int
    snapshot_bytes_sent: int
    snapshot_bytes_received: int
    accepted: int
    rejected: int
    rejected_by_reason: dict[str, int] | None
    robust_margin: int | None
    """Members that may leave before the promise about f liars is lost; negative: it is lost."""
    round_s: float | None
    collect_s: float | None
    """Waiting for the neighbours; at an observer, fetching their models."""
    staleness: dict[str, int] | None
    """By peer, the rounds by which each member lags."""
    peers_known: int
    rss_bytes: int | None
    held_bytes: int | None = None
    """Memory that the system cannot take back, of a node with a budget of memory."""
    bytes_sent: int | None = None
    """All bytes to peers: every copy of an update, whole models, announcements, framing and handshakes. None in records
    of older releases, as are the other fields with a default."""
    bytes_received: int | None = None
    """All bytes from peers."""

    @property
    def known_rounds(self) -> int:
        """Return the rounds of the run; 0 where nobody knows, since a loop of the user's own ends it."""
        return 0 if self.rounds == ENDLESS else self.rounds


@dataclass(frozen=True, kw_only=True)
class RoundTrained(RoundClosed):
    """A round was trained and closed. `tokens`, `compute_s` and `skipped_steps` are the run's over all restarts."""

    train_loss: float | None
    """Mean training loss over the round."""
    steps: int
    """Steps of this round."""
    inner_steps: int
    """Planned steps of the next round."""
    tokens: int
    tokens_per_s: float
    updates_in_time: float | None
    """Share of the neighbours' updates, over the newest 20 rounds, that came in time; None: not known yet."""
    exchange_s: float | None
    """How long an exchange with a quorum takes; None: not known yet."""
    payload_bytes: int
    """Size of the newest update."""
    compression_ratio: float | None
    consensus_distance: float | None
    clipped: list[str]
    """Members that the aggregator did not follow in full."""
    link_bytes_per_s: float | None
    """Speed to the slowest neighbour that a quorum waits for."""
    rung: str
    """The codec with which the compressor `adaptive` made the newest update; empty: another compressor."""
    close_s: float | None
    publish_s: float | None
    """Time to encode and announce; None with group averaging."""
    aggregate_s: float | None
    step_s: float | None
    """Mean time of a step."""
    compute_s: float
    weights: dict[str, float] | None
    """By peer, each member's weight by its staleness."""
    energy_j: dict[str, float]
    """Joules by source."""
    skipped_steps: int
    late_steps: int
    """Steps by which the correction came late."""
    utilization: float | None
    cpu_s: float | None
    """CPU seconds of the process since its start."""
    gpu_share: float | None
    """How busy the GPU is, 0 to 1; None: there is no CUDA device, or it is not known."""
    gpu_memory_bytes: int | None
    learning_rate: float | None
    """Learning rate of the newest step."""
    sent_bits: float | None = None
    """`bytes_sent` as bits for each parameter and inner step."""
    published_bits: float | None = None
    """The same of one copy of each update, without any overhead."""
    epsilon: float | None = None
    """Privacy that the node's data have spent so far, at `privacy.delta`; None: nothing protects them."""
    epsilon_budget: float | None = None
    """How much they may spend; None: as much as it takes."""
    visits_epsilon: float | None = None
    """Privacy that the visitor has spent that has spent most, at `visits.delta`; None: no noise hides visitors'."""
    visits_epsilon_budget: float | None = None
    """How much each visitor may spend; None: as much as it takes."""
    layers: dict[str, int] | None = None
    """By peer, how many refinements of its newest update are here; None: the run's updates have none."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """The held-out loss after so many rounds, and what else was measured with it."""

    name: ClassVar[str] = "evaluated"
    needs: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    eval_loss: float | None
    output_divergence: float | None
    """Divergence of its predictions from the neighbours', in nats; None: not known."""
    own: dict[str, Any]
    """The task's own metrics, by name, with any values that the task gave: readers use the finite numbers."""


@dataclass(frozen=True, kw_only=True)
class CheckpointWritten(Event):
    """A checkpoint was written; `round` is the next one to train."""

    name: ClassVar[str] = "checkpoint"

    round: int | None
    path: str


@dataclass(frozen=True, kw_only=True)
class CheckpointSkipped(Event):
    """A checkpoint is damaged: the one before it is used."""

    name: ClassVar[str] = "checkpoint_skipped"

    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(Event):
    """The disk did not take a checkpoint."""

    name: ClassVar[str] = "checkpoint_failed"

    round: int
    why: str
    needed_bytes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class Diverged(Event):
    """The node's own model is unusable: it stops."""

    name: ClassVar[str] = "diverged"

    round: int
    why: str
    checkpoint: str | None
    """The last good checkpoint; None: none was written."""


@dataclass(frozen=True, kw_only=True)
class Paused(Event):
    """Training is paused, or paused for another reason than before."""

    name: ClassVar[str] = "paused"

    reason: str
    """The policy that pauses it."""
    why: str
    """In words."""


@dataclass(frozen=True, kw_only=True)
class Unpaused(Event):
    """Training goes on after a pause. (`resumed` is a start from a checkpoint.)"""

    name: ClassVar[str] = "unpaused"

    reason: str
    """The policy that paused it last."""
    seconds: float
    """How long the pause was."""


@dataclass(frozen=True, kw_only=True)
class PrivacyBudgetSpent(Event):
    """What the node's data may tell is told: it takes no more steps on them, and goes on serving (`[privacy]`)."""

    name: ClassVar[str] = "privacy_budget_spent"

    round: int
    epsilon: float
    """What is spent, at `delta`, by Renyi divergences."""
    budget: float
    delta: float
    would_be: float
    """What would have been spent with the next releases."""


@dataclass(frozen=True, kw_only=True)
class ShiftDetected(Event):
    """The node's own data have shifted, or most members say that theirs have (`[shift]`)."""

    name: ClassVar[str] = "shift"

    round: int
    where: str
    """`here`: own data; `everywhere`: those of most members; `newcomer`: own data differ from the held-out ones as the
    node begins."""
    signals: list[str]
    """What of own data has shifted."""
    said: int
    """How many neighbours have said so of theirs lately: their word."""
    members: int
    """How many were there, this node included."""


@dataclass(frozen=True, kw_only=True)
class StatisticsShared(Event):
    """Neighbours that ask get class statistics of this node's data, from now on (`[warm_up]`)."""

    name: ClassVar[str] = "statistics_shared"

    bytes: int
    noise: float | None
    """Standard deviation of their noise over the largest norm of one example's share; None: they have none."""


@dataclass(frozen=True, kw_only=True)
class WarmedUp(Event):
    """A newcomer has trained its local parameters on synthetic examples, before its first round (`[warm_up]`)."""

    name: ClassVar[str] = "warmed_up"

    round: int
    steps: int
    examples: int
    """Of its own."""
    members: int
    """Whose statistics the examples were drawn from: their word."""
    classes: list[int]
    """Of which enough members state something."""
    of_classes: int
    """How many there are."""
    loss: float | None
    """Of the newest step; None where its data are protected."""


@dataclass(frozen=True, kw_only=True)
class NeighboursChosen(Event):
    """The node fetches the updates of other neighbours first than in the round before (`[selection]`)."""

    name: ClassVar[str] = "chosen"

    round: int
    first: list[str]
    """Whose updates are fetched first; none: all are alike again."""
    explored: list[str]
    """Who of these is tried, and not waited for."""


@dataclass(frozen=True, kw_only=True)
class BudgetPlanned(Event):
    """The node has a budget, and has chosen how to stay within it."""

    name: ClassVar[str] = "budget_planned"

    message: str
    """The plan, for people."""
    needed_bytes: int
    """Main memory that the node forecasts with the plan."""
    memory_bytes: int | None = None
    """Main memory that it may take."""
    held: list[str]
    """Which of `memory` and `cpu` a cgroup holds; the others are watched."""


@dataclass(frozen=True, kw_only=True)
class RouterAnswered(Event):
    """Whether the router forwards the port by itself."""

    name: ClassVar[str] = "router"

    message: str
    forwards: bool | None


@dataclass(frozen=True, kw_only=True)
class WarningEvent(Event):
    """Something that an operator should look at."""

    name: ClassVar[str] = "warning"

    message: str
    about: str | None = None
    """The topic, where programs may need it: updates_in_time, round_length, checkpoint, micro_batch,
    trainer, device, participation, privacy, clipping."""
    recovered: bool | None = None
    """Whether the problem is over."""


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """The node has ended normally."""

    summary: dict[str, Any] | None
    """The content of `summary.json`; None: nothing was trained."""


@dataclass(frozen=True, kw_only=True)
class Interrupted(Ended):
    """Stopped by a signal, checkpoint written."""

    name: ClassVar[str] = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Finished(Ended):
    """All rounds are done."""

    name: ClassVar[str] = "finished"


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The node could not start or go on."""

    name: ClassVar[str] = "failed"

    error: str
    hint: str | None


@dataclass(frozen=True, kw_only=True)
class Died(Event):
    """Emitted only by `up`, about a node that ended early."""

    name: ClassVar[str] = "died"

    code: int | None
    why: str
    tail: list[str]
    """The end of what it wrote on stderr."""


def kinds(base: type[Event] = Event) -> Iterator[type[Event]]:
    """Yield every type of event that has a name of its own, or shares it with the type that it extends."""
    for kind in base.__subclasses__():
        if kind.name:
            yield kind
        yield from kinds(kind)


def parse(record: Mapping[str, Any]) -> Event | None:
    """Return the event in a record; None when its name is unknown, or its time or a needed field is missing."""
    name, role = record.get("event"), record.get("role")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is Started and not (isinstance(role, str) and role in WITHOUT_MODEL):
        kind = LearnerStarted
    elif kind is RoundClosed and ("steps" in record or "train_loss" in record):
        kind = RoundTrained
    if kind is None or not isinstance(record.get("ts"), int | float):
        return None
    if any(not isinstance(record.get(name), int) for name in kind.needs):
        return None
    return kind(**{name: take(record.get(name)) for name, take in _takers(kind)})


_KINDS: Final[dict[str, type[Event]]] = {kind.name: kind for kind in reversed(list(kinds()))}
"""Event types by name; of two with the same name the more general one, which `kinds` yields first."""

_EMPTY: Final[dict[type, Callable[[], Any]]] = {int: int, float: float, str: str, bool: bool, list: list, dict: dict}

_ACCEPTED: Final[dict[type, tuple[type, ...]]] = {float: (float, int)}
"""Types accepted for a field's type: JSON may write 5.0 as 5."""


_LEFT_OUT: Final[dict[type[Event], tuple[str, ...]]] = {}
_TAKERS: Final[dict[type[Event], tuple[tuple[str, Callable[[Any], Any]], ...]]] = {}
"""Cache of `_takers` by event type."""


def _left_out(kind: type[Event]) -> tuple[str, ...]:
    if kind not in _LEFT_OUT:
        _LEFT_OUT[kind] = tuple(field.name for field in fields(kind) if field.default is None)
    return _LEFT_OUT[kind]


def _takers(kind: type[Event]) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """Return for each field the function that converts a record's value to the field's."""
    if kind not in _TAKERS:
        hints = get_type_hints(kind)
        _TAKERS[kind] = tuple((field.name, _taker(hints[field.name], field.default)) for field in fields(kind))
    return _TAKERS[kind]


def _taker(hint: Any, default: Any) -> Callable[[Any], Any]:
    union = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    plain = [get_origin(each) or each for each in union]
    accepted = tuple(each for one in plain for each in _ACCEPTED.get(one, (one,)))
    if default is not MISSING:
        missing: Callable[[], Any] = lambda: default  # noqa: E731
    else:
        missing = (lambda: None) if type(None) in plain else _EMPTY[plain[0]]

    def take(value: Any) -> Any:
        wrong = value is None or not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted)
        return missing() if wrong else value

    return take
