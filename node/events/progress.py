"""A node's state as its events tell it: what the live table, `/status`, `p2ptrain status` and the end report show.

It is fed with events and nothing else, so a recorded `events.jsonl` gives the same picture as a running node.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from node.events import peers_seen
from node.events.log import Event

_COPIED = (
    "rounds",
    "train_loss",
    "tokens",
    "tokens_per_s",
    "neighbours",
    "members",
    "closed_by",
    "payload_bytes",
    "payload_bytes_sent",
    "payload_bytes_received",
    "accepted",
    "rejected",
    "consensus_distance",
    "utilization",
    "rung",
    "link_bytes_per_s",
    "inner_steps",
    "updates_in_time",
    "exchange_s",
    "learning_rate",
    "rss_bytes",
)
"""Fields of a `round` event that are simply the newest state."""

_OF_THE_START = (
    *("role", "peer_id", "addresses", "metrics_url", "device", "parameters", "aggregator", "compressor"),
    *("metric", "units"),
)
"""Fields of `started` that are kept."""

_COUNTS = ("steps", "neighbours", "members", "payload_bytes_sent", "payload_bytes_received", "accepted", "rejected")
"""Of this process alone, like `rejected_by`; tokens are the run's, and a round event has them whole."""

MAX_WARNINGS = 20
"""The newest warnings kept for display; a screen shows fewer."""

MAX_OWN = 16
"""Of the task's own metrics, as `p2ptrain.tasks.metrics.MAX_METRICS`, which only who has torch can ask."""

MAX_EVALUATIONS = 8
"""Of a node, so that those of nodes that are not level can be compared at a round that all have evaluated. Chosen:
nodes are a few rounds apart, and evaluations as far or further."""


@dataclass
class NodeProgress:
    """Where a node stands. Counts are totals since its process started; a restart begins them anew.

    What a process tells before it has `started` (its checkpoint's round, warnings) is kept over that event.
    """

    name: str = ""
    state: str = "starting"
    """starting, running, finished, interrupted, failed; of its process (events/liveness.py) dead, which is over without
    a word, or silent, which is alive without news."""
    started_at: float | None = None
    updated_at: float | None = None
    heartbeat: float | None = None
    """The newest sign of life, in Unix seconds: of an event, or of its process as it was looked at."""
    ended_at: float | None = None
    """When it finished, failed, was interrupted, or was last alive; None while it runs."""
    pid: int | None = None
    role: str = "trainer"
    peer_id: str = ""
    addresses: list[str] = field(default_factory=list)
    metrics_url: str | None = None
    token_file: str | None = None
    """Holds the token that the node's page wants, if it wants one."""
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
    """The first round that this process closed, and when; for the ETA."""
    first_round_at: float | None = None
    last_round_at: float = 0.0
    rounds: int = 0
    """Rounds that the run has; 0 until the first is closed."""
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
    """Of `own`, where the task names them."""
    evaluations: list[tuple[int, float | None]] = field(default_factory=list)
    """The newest MAX_EVALUATIONS: after how many rounds, and the loss."""
    neighbours: int = 0
    members: int = 0
    closed_by: str = ""
    payload_bytes: int = 0
    """Of the newest update."""
    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    accepted: int = 0
    rejected: int = 0
    rejected_by: dict[str, int] = field(default_factory=dict)
    consensus_distance: float | None = None
    utilization: float | None = None
    rung: str = ""
    """What the compressor `adaptive` made the newest update with."""
    link_bytes_per_s: float | None = None
    """Of updates to the slowest neighbour that a quorum waits for."""
    updates_in_time: float | None = None
    """Share of the neighbours' updates, over the newest rounds (training/in_time.py)."""
    exchange_s: float | None = None
    """How long the exchange of a round's updates takes, with a quorum of the neighbours."""
    learning_rate: float | None = None
    """Of the newest step."""
    rss_bytes: int | None = None
    """Memory of its process."""
    inner_steps: int = 0
    """Steps that the next round is to have."""
    checkpoint: str | None = None
    checkpoint_round: int | None = None
    warnings: list[str] = field(default_factory=list)
    peers: peers_seen.Peers = field(default_factory=dict)
    loop_lag_s: float | None = None
    """Of the event loop, as the node itself says when it is asked; no event tells it."""
    error: str | None = None
    hint: str | None = None
    """What to do about the error."""
    summary: dict[str, Any] | None = None

    def observe(self, event: Event) -> None:
        """Take up one event; unknown ones and unknown fields are passed over."""
        self.updated_at = event.get("ts", self.updated_at)
        peers_seen.observe(self.peers, event)
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be expected of it."""
        return self.state in {"finished", "interrupted", "failed", "dead"}

    def as_dict(self) -> dict[str, Any]:
        """Every field, as JSON has it."""
        return asdict(self)

    def _on_started(self, event: Event) -> None:
        self.state, self.started_at = "running", event["ts"]
        self.first_round = self.first_round_at = self.error = self.hint = self.summary = self.ended_at = None
        self.pid = event.get("pid")
        for key in _COUNTS:
            setattr(self, key, 0)
        self.rejected_by = {}
        for key in _OF_THE_START:
            setattr(self, key, event.get(key, getattr(self, key)))
        for key in ("token_file", "run_dir"):  # paths, where the event has not been written yet
            setattr(self, key, None if event.get(key) is None else str(event[key]))

    def _on_join(self, event: Event) -> None:
        self.join_command = event.get("command")

    def _on_round(self, event: Event) -> None:
        self.state = "running"
        self.rounds_done = int(event["round"])
        self.steps += int(event.get("steps") or 0)
        if self.first_round is None:
            self.first_round, self.first_round_at = int(event["round"]), event["ts"]
        self.last_round_at = event["ts"]
        self.rejected_by = dict(event.get("rejected_by_reason", self.rejected_by))  # whole: `rejected` is thinned out
        for key in _COPIED:
            if event.get(key) is not None:
                setattr(self, key, event[key])

    def _on_evaluated(self, event: Event) -> None:
        self.eval_loss = event.get("eval_loss")
        self.own = dict(list((event.get("own") or {}).items())[:MAX_OWN])
        after = event.get("round")
        if isinstance(after, int):
            earlier = [each for each in self.evaluations if each[0] < after]
            self.evaluations = [*earlier, (after, self.eval_loss)][-MAX_EVALUATIONS:]
        if self.eval_loss_first is None:
            self.eval_loss_first = self.eval_loss

    def _on_neighbour_up(self, event: Event) -> None:
        self.neighbours += 1

    def _on_neighbour_lost(self, event: Event) -> None:
        if not self.rounds or self.rounds_done < self.rounds:  # at the end all leave, which is no news
            self.neighbours = max(0, self.neighbours - 1)

    def _on_rejected(self, event: Event) -> None:
        reason = str(event.get("reason", "?"))
        self.rejected_by[reason] = self.rejected_by.get(reason, 0) + 1

    def _on_checkpoint(self, event: Event) -> None:
        self.checkpoint, self.checkpoint_round = event.get("path"), event.get("round")

    def _on_resumed(self, event: Event) -> None:
        self.rounds_done = int(event.get("round", self.rounds_done))

    def _on_joined(self, event: Event) -> None:
        self.rounds_done = int(event.get("round", self.rounds_done))

    def _on_warning(self, event: Event) -> None:
        self.warnings = [*self.warnings, str(event.get("message", ""))][-MAX_WARNINGS:]

    def _on_finished(self, event: Event) -> None:
        self.state, self.summary, self.ended_at = "finished", event.get("summary"), event.get("ts")

    def _on_interrupted(self, event: Event) -> None:
        self.state, self.summary, self.ended_at = "interrupted", event.get("summary"), event.get("ts")

    def _on_failed(self, event: Event) -> None:
        self.state, self.ended_at = "failed", event.get("ts")
        self.error, self.hint = str(event.get("error", "")), event.get("hint")


def common_evaluation(nodes: Sequence[NodeProgress]) -> tuple[int, float] | None:
    """The newest round after which all of `nodes` evaluated their models, and the mean of these losses. None where
    there is no such round. The dead, and who has evaluated nothing, are left out."""
    told = [dict(node.evaluations) for node in nodes if node.evaluations and node.state not in {"dead", "failed"}]
    common = set.intersection(*map(set, told)) if told else set()
    finite = [after for after in common if all(each[after] is not None for each in told)]
    if not finite:
        return None
    newest = max(finite)
    return newest, sum(each[newest] or 0.0 for each in told) / len(told)
