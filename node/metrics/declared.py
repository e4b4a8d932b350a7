"""Every metric of a node, declared once: its name, what it means, where its value comes from, and its panel.

Three things follow from this table: what a node serves (node_metrics.py, live_metrics.py), the table of
docs/operations.md#metrics (`make reference`), and the test that each panel exists and queries its metric. To add a
metric, add a `Metric` here, the field of the event that it takes, and its panel in monitoring/dashboards/.

`help` is Prometheus' HELP; `page` replaces it on the page for operators where that says more, and `wrong` describes a
bad value. `begins` has the label values that are known beforehand: they start at 0 at the first scrape. A series that
appeared with its first event would hide that event from `rate()` and `increase()`, which see only differences.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gossip.core.errors import Reason
from gossip.transport.drop_reasons import DROPS
from node.events.event_types import (
    KEPT,
    OPENED,
    Banned,
    CheckpointFailed,
    CheckpointWritten,
    Equivocation,
    Evaluated,
    LearnerStarted,
    MembersKnown,
    NeighbourLost,
    NeighbourUp,
    RegionsAveraged,
    Rejected,
    RoundClosed,
    RoundTrained,
    SecureRound,
    ShiftDetected,
    Started,
    WarmedUp,
)
from node.events.sent_bits import BITS
from node.metrics.energy import SOURCES
from node.metrics.live_metrics import QUEUES, REACHABILITY, REFUSALS, Live
from node.metrics.sources import (
    Added,
    ByName,
    ByPeer,
    Counted,
    EventSource,
    Highest,
    Labels,
    Measured,
    Observed,
    Since,
    Total,
    Value,
)

Source: TypeAlias = EventSource | Live | Measured

PREFIX: Final = "p2ptrain_"


@dataclass(frozen=True)
class NoPanel:
    """No panel shows the metric; `why` is the reason."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric. `name`: without PREFIX and a final `_total`. `panel`: "dashboard / title" of a panel that shows
    it."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    page: str = ""
    wrong: str = ""
    sources: tuple[Source, ...]
    panel: str | NoPanel
    labels: tuple[str, ...] = ()
    begins: tuple[tuple[str, ...], ...] = ()
    of_training: bool = False
    """Whether only nodes that train have the series. At 0 another node's would look like that of a node that hangs, and
    would count in shares over all nodes."""

    @property
    def full_name(self) -> str:
        """Return the name in Prometheus, without a counter's `_total`."""
        return PREFIX + self.name


CLOSED_BY: Final = ("quorum", "deadline", "alone")
"""`gossip.core.api.RoundView.closed_by`."""

SENT: Final = {"direction": "sent"}
RECEIVED: Final = {"direction": "received"}
DIRECTIONS: Final = (("sent",), ("received",))

PEER_EVENTS: Final = ("up", "lost", "banned", "equivocation")
"""Counted events of neighbours."""

INFO: Final = ("task", "aggregator", "compressor", "device", "role")
"""Constant fields of `started` that alerts use (an observer does not train)."""

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        name="round",
        kind="gauge",
        help="The newest round that this node closed.",
        wrong="stands still: [NoRounds](#norounds)",
        sources=(Value(RoundClosed, "round"),),
        panel="Swarm overview / Round",
    ),
    Metric(
        name="rounds",
        kind="gauge",
        help="Rounds that the run has; 0 until the first is closed.",
        sources=(Value(RoundClosed, "rounds"),),
        panel=NoPanel("alerts hold `round` to it"),
    ),
    Metric(
        name="steps",
        kind="counter",
        help="Inner steps done.",
        sources=(Added(RoundTrained, "steps"),),
        of_training=True,
        panel=NoPanel("the tokens say the same"),
    ),
    Metric(
        name="skipped_steps",
        kind="counter",
        help="Steps not taken: their loss or gradient was not finite.",
        wrong="[StepsSkipped](#stepsskipped)",
        sources=(Total(RoundTrained, "skipped_steps", of_run=True),),
        of_training=True,
        panel="Training quality / Steps skipped a minute",
    ),
    Metric(
        name="tokens",
        kind="counter",
        help="Tokens (or examples) trained on.",
        sources=(Total(RoundTrained, "tokens", of_run=True),),
        of_training=True,
        panel="Training quality / Tokens a second by node",
    ),
    Metric(
        name="tokens_per_second",
        kind="gauge",
        help="Tokens trained a second, over the newest round.",
        wrong="falls while `step_seconds` rises: something else uses the device, or it is too hot",
        sources=(Value(RoundTrained, "tokens_per_s"),),
        of_training=True,
        panel="Node / Tokens a second",
    ),
    Metric(
        name="train_loss",
        kind="gauge",
        help="Mean training loss of the newest round.",
        page=(
            "mean training loss of the newest round; none where the node's data are protected (`[privacy]`), 0 where a "
            "loop of your own tells none"
        ),
        wrong=("NaN: [LossNotFinite](#lossnotfinite). Rises in all nodes: the learning rate. Rises in one: its data"),
        sources=(Value(RoundTrained, "train_loss"),),
        of_training=True,
        panel="Training quality / Training loss",
    ),
    Metric(
        name="eval_loss",
        kind="gauge",
        help="Loss on the held-out split, in the task's metric.",
        page="held-out loss, every `train.eval_every` rounds; 0 before the first",
        wrong="above the neighbours': this node has fallen behind, or is aggregated with fewer members",
        sources=(Value(Evaluated, "eval_loss"),),
        panel="Swarm overview / Held-out loss",
    ),
    Metric(
        name="own_metric",
        kind="gauge",
        labels=("name",),
        help="The task's own metrics on the held-out split, by name.",
        page=(
            "what the task measures itself ([own metrics](how-to/your-data.md#own-metrics)), at the newest "
            "evaluation; 16 names at most"
        ),
        wrong="the task's author knows",
        sources=(ByName(Evaluated, "own", label="name"),),
        panel=NoPanel("the names and units are the task's own: the node's page draws them"),
    ),
    Metric(
        name="step_seconds",
        kind="histogram",
        help="Mean time of an inner step, once a round.",
        sources=(Observed(RoundTrained, "step_s"),),
        of_training=True,
        panel="Node / Mean time of a step",
    ),
    Metric(
        name="round_seconds",
        kind="histogram",
        help="Time from one closed round to the next.",
        wrong="far above inner_steps x step_seconds: rounds wait for closing; see `close_seconds`",
        sources=(Observed(RoundClosed, "round_s"),),
        of_training=True,
        panel="Node / Round, and its closing (median)",
    ),
    Metric(
        name="close_seconds",
        kind="histogram",
        help="Time from publishing an update to the closed round.",
        wrong=(
            "as long as a round: neighbours are slow or the link is full; fewer bytes or more steps ([tuning](#tuning))"
        ),
        sources=(Observed(RoundTrained, "close_s"),),
        of_training=True,
        panel="Node / Round, and its closing (median)",
    ),
    Metric(
        name="compute_seconds",
        kind="counter",
        help="Seconds spent in inner steps.",
        wrong="below 0.8 of `round_seconds_sum`: [LowUtilization](#lowutilization)",
        sources=(Total(RoundTrained, "compute_s", of_run=True),),
        of_training=True,
        panel="Node / Share of time computing",
    ),
    Metric(
        name="energy_joules",
        kind="counter",
        labels=("source",),
        help="Energy that training took, by what says so; estimate: CPU time at so many watts.",
        page="what training took, see [below](#energy): `nvml`, `rapl`, or an `estimate`",
        wrong=(
            "over `p2ptrain_tokens_total` far above another node's: an old machine, or one that does something "
            "else meanwhile"
        ),
        sources=(Total(RoundTrained, "energy_j", by="source"),),
        begins=tuple((source,) for source in SOURCES),
        of_training=True,
        panel="Training quality / Energy so far, by what says so",
    ),
    Metric(
        name="utilization",
        kind="gauge",
        help="Share of wall time in which the node computes on the task.",
        page="share of the time since training began in which the node computed",
        wrong="of late says more: `compute_seconds` over `round_seconds_sum`",
        sources=(Value(RoundTrained, "utilization"),),
        of_training=True,
        panel="Swarm overview / Nodes",
    ),
    Metric(
        name="paused_seconds",
        kind="counter",
        labels=("reason",),
        help="Seconds for which training was paused, by the participation policy that paused it.",
        page=(
            "how long training was paused, by the policy that paused it ([how-to](how-to/train-when-it-suits.md)), or "
            "`privacy`: its [budget](how-to/privacy-budget.md) is spent; none where the node always trains"
        ),
        wrong="rises while nobody uses the machine: the event `paused` says what the policy saw",
        sources=(Live(lambda now: now.paused),),
        panel="Node / Share of time paused, by reason",
    ),
    Metric(
        name="visits",
        kind="counter",
        labels=("result",),
        help="Differences that visitors left, by result: accepted, or the reason of the refusal.",
        page=(
            "differences that [visitors](visits.md) left: `accepted`, or why they were refused; "
            "none where the node has no visitors"
        ),
        wrong="`full` and `network_full` rise all the time: somebody takes the places, or there are too few",
        sources=(Live(lambda now: now.visits),),
        panel="Node / Visitors' differences, by result",
    ),
    Metric(
        name="late_steps",
        kind="gauge",
        help="Steps by which the newest correction came late.",
        page="steps between a round's snapshot and its correction",
        wrong="above inner_steps: closing takes longer than a round",
        sources=(Value(RoundTrained, "late_steps"),),
        of_training=True,
        panel="Node / Late steps of the newest correction",
    ),
    Metric(
        name="consensus_distance",
        kind="gauge",
        help="Root mean square L2 distance of the members' models to their mean.",
        page="root mean square L2 distance of the members' public models to their mean",
        wrong=(
            "grows for many rounds: the learning rate is too high for this many steps between exchanges, or a "
            "member is not honest"
        ),
        sources=(Value(RoundTrained, "consensus_distance"),),
        of_training=True,
        panel="Training quality / Consensus distance",
    ),
    Metric(
        name="output_divergence_nats",
        kind="gauge",
        help="KL of the neighbours' mean predictions from own ones, a prediction; -1: not known.",
        page=(
            "at the newest evaluation: KL of the mean of what four neighbours' models predict from what the "
            "node's own predicts, in nats a prediction, on 256 held-out predictions; -1: no neighbour's model "
            "is held (alone, or a strategy with group all-reduce), or the task's loss is not in nats. A liar among the "
            "four counts"
        ),
        wrong=(
            "grows for many rounds on all nodes: averaging does not keep up, as with `consensus_distance`. On "
            "one node: it has fallen behind"
        ),
        sources=(Value(Evaluated, "output_divergence", unknown=-1),),
        panel="Training quality / Output divergence",
    ),
    Metric(
        name="robust_margin",
        kind="gauge",
        help="Members that may leave before the promise about f liars is lost; negative: it is lost.",
        page="members that may leave before the promise about `sync.f` liars is lost; below 0 it is lost",
        wrong="[RobustnessLost](#robustnesslost)",
        sources=(
            Value(LearnerStarted, "robust_margin"),
            Value(RoundClosed, "robust_margin"),
        ),
        panel="Robustness and trust / Robust margin",
    ),
    Metric(
        name="spectral_gap",
        kind="gauge",
        help=("Algebraic connectivity over mean degree of the graph of members, as far as it is known; -1: it is not."),
        page=(
            "algebraic connectivity over mean degree of the graph of members, as far as this node knows it: "
            "how fast what one learns reaches all. n / (n - 1) where everybody is everybody's neighbour, about "
            "0.34 for a random graph of degree 8 of any size, 0 for a swarm in parts; -1: alone"
        ),
        wrong=(
            "below 0.1 with more than ten members: few ties hold parts of the swarm together; raise "
            "`network.degree`, and see who is unreachable"
        ),
        sources=(Live(lambda now: now.spectral_gap),),
        panel="Robustness and trust / Spectral gap of the known graph",
    ),
    Metric(
        name="neighbours",
        kind="gauge",
        help="Neighbours that the node exchanges updates with.",
        page="neighbours at the newest closed round",
        wrong="0: [Alone](#alone)",
        sources=(Value(RoundClosed, "neighbours"),),
        panel="Swarm overview / Neighbours and members",
    ),
    Metric(
        name="neighbours_paused",
        kind="gauge",
        help="Neighbours that say that their training is paused: no round waits for them.",
        page="neighbours that say that they are [paused](how-to/train-when-it-suits.md); no round waits for them",
        sources=(Live(lambda now: now.neighbours_paused),),
        panel="Swarm overview / Neighbours and members",
    ),
    Metric(
        name="reachability",
        kind="gauge",
        labels=("state",),
        help=(
            "1 for what peers have shown: dialled by others (reached), by nobody so far (outbound), or no "
            "peers (unknown)."
        ),
        page=(
            "whether others can dial this node, as far as they have shown it: of `reached`, `outbound`, "
            "`unknown` one is 1, the others 0; see [below](#can-others-dial-this-node)"
        ),
        wrong=(
            "not `reached` on a node that should be: its port is not forwarded or not open, or it hands out "
            "another address ([two machines](how-to/two-machines.md))"
        ),
        sources=(Live(lambda now: {state: float(state == now.reachability) for state in REACHABILITY}),),
        panel="Network / Nodes by reachability",
    ),
    Metric(
        name="members",
        kind="gauge",
        help="Models in the newest aggregate, own included.",
        wrong="far below neighbours + 1: neighbours are stale; see `staleness_rounds`",
        sources=(Value(RoundClosed, "members"),),
        panel="Robustness and trust / Members of the newest aggregate",
    ),
    Metric(
        name="regions",
        kind="gauge",
        help="Regions in the newest averaging of regions, own included.",
        page=(
            "regions whose models were in the newest averaging of regions, own included; 0 where no model of another "
            "has come, and in a swarm of one region"
        ),
        wrong="fewer than there are: a region is cut off, or its models come too late (`sync.region_every`)",
        sources=(Value(RegionsAveraged, "regions"),),
        panel="Robustness and trust / Regions averaged",
    ),
    Metric(
        name="region_robust_margin",
        kind="gauge",
        help="Regions that may leave before a lying one cannot be left out; negative: it cannot be.",
        page="regions that may leave before one of liars cannot be left out of the mean any more; below 0 it cannot be",
        wrong="below 0 with four regions or more: some are cut off; with fewer it always is",
        sources=(Value(RegionsAveraged, "region_margin"),),
        panel="Robustness and trust / Region robust margin",
    ),
    Metric(
        name="secure_survivors",
        kind="gauge",
        help="Members whose values are in the newest secure sum of the own group.",
        page="members whose values are in the newest secure sum of this node's group; 0: not opened, or none there",
        wrong="0 for long under `secure_average`: too few members, or too many leave in the midst of rounds",
        sources=(Value(SecureRound, "survivors"),),
        panel="Robustness and trust / Members in the secure sum",
    ),
    Metric(
        name="secure_groups",
        kind="gauge",
        help="Groups whose secure sums are here of the newest round.",
        page="groups whose secure sums were here when the newest round closed",
        wrong="fewer than members / `sync.group`: sums come too late, and with f above 0 nothing moves",
        sources=(Value(SecureRound, "groups_here"),),
        panel="Robustness and trust / Groups with a secure sum",
    ),
    Metric(
        name="secure_clipped_share",
        kind="gauge",
        help="Share of own values beyond the clipping range in the newest round.",
        page="share of this node's values beyond `sync.clipping_range` in the newest round; what is cut is told later",
        wrong="above 0.01 for long: the range is too small for the steps of a round, and learning is delayed",
        sources=(Value(SecureRound, "clipped_share"),),
        panel="Robustness and trust / Clipped share",
    ),
    Metric(
        name="secure_rounds",
        kind="counter",
        labels=("result",),
        help="Rounds of secure sums by what they came to.",
        page="rounds of secure sums: `opened`, or `kept` where nothing of its group's sum is here: own values stay",
        wrong="many `kept`: the reason is in the event `secure_round` of each",
        sources=(Counted(SecureRound, label="result", by="result"),),
        begins=((OPENED,), (KEPT,)),
        panel="Robustness and trust / Secure rounds a minute",
    ),
    Metric(
        name="region_crossed_bytes",
        kind="counter",
        labels=("direction",),
        help="Bytes of regions' models to and from members of other regions.",
        page=(
            "bytes of regions' models that this node sent to members of other regions (`sent`), and has of them "
            "(`received`); each is a line of `crossings.jsonl`"
        ),
        wrong=(
            "a `sent` line whose `model_of` is a region that nothing may leave (`sync.residency`): report it; its "
            "members do send other regions' models on"
        ),
        sources=(Live(lambda now: {each: float(now.crossed.get(each, 0)) for each in ("sent", "received")}),),
        panel="Robustness and trust / Crossed between regions",
    ),
    Metric(
        name="staleness_rounds",
        kind="gauge",
        help="Rounds by which the most stale neighbour lags.",
        wrong="at `network.max_staleness` all the time: one node is far slower",
        sources=(Highest(RoundClosed, "staleness"),),
        panel="Node / Most stale neighbour (rounds)",
    ),
    Metric(
        name="rounds_closed",
        kind="counter",
        labels=("by",),
        help="Rounds closed, by what closed them.",
        page="what closed rounds: `quorum`, `deadline`, `alone`",
        wrong=("mostly `deadline`: a third or more of the neighbours are slower than this node. No harm by itself"),
        sources=(Counted(RoundClosed, label="by", by="closed_by"),),
        begins=tuple((by,) for by in CLOSED_BY),
        of_training=True,
        panel="Swarm overview / Rounds closed a minute, by what closed them",
    ),
    Metric(
        name="updates",
        kind="counter",
        labels=(
            "result",
            "reason",
        ),
        help="Updates of neighbours.",
        page="neighbours' updates accepted; refusals by [reason](protocol.md#offences), every one of them",
        wrong="[ManyRejections](#manyrejections)",
        sources=(
            Total(RoundClosed, "accepted", labels={"result": "accepted", "reason": ""}),
            Total(RoundClosed, "rejected_by_reason", labels={"result": "rejected"}, by="reason"),
        ),
        begins=(("accepted", ""), *(("rejected", reason.value) for reason in Reason)),
        panel="Robustness and trust / Updates refused a minute, by reason",
    ),
    Metric(
        name="updates_in_time_ratio",
        kind="gauge",
        help=(
            "Share of the neighbours' updates, over the newest 20 rounds, that came before the phase after "
            "their round had ended; -1: not known."
        ),
        page=(
            "share of the neighbours' updates, over the newest 20 rounds, that came before the phase after "
            "their round had ended (of neighbours that have announced any: newcomers wait before they begin); "
            "-1: alone, or one round closed"
        ),
        wrong="below 0.8: an exchange is about as long as a round. Below 0.5: [UpdatesLate](#updateslate)",
        sources=(Value(RoundTrained, "updates_in_time", unknown=-1),),
        of_training=True,
        panel="Node / Updates of neighbours that arrive in time",
    ),
    Metric(
        name="exchange_seconds",
        kind="gauge",
        help="How long the exchange of a round's updates takes with a quorum; -1: not known.",
        page=(
            "how long the exchange of a round's updates takes, with a quorum of the neighbours and without the "
            "`sync.f` slowest: from an update's announcement until it is applied, or from the publication of "
            "the own until it is fetched; -1: not measured"
        ),
        wrong=(
            "longer than inner_steps x step_seconds: rounds are lengthened to it; more `train.inner_steps` "
            "([tuning](#tuning))"
        ),
        sources=(Value(RoundTrained, "exchange_s", unknown=-1),),
        of_training=True,
        panel="Node / Round, and its closing (median)",
    ),
    Metric(
        name="peer_accepted",
        kind="counter",
        labels=("peer",),
        help="Updates taken, by neighbour.",
        page=(
            "updates taken of each neighbour that is here; none with group all-reduce (`moshpit`, `noloco`, "
            "`allreduce`), since nobody's updates are followed there"
        ),
        wrong="one far below the others: it is slower, is refused, or its link is full",
        sources=(Live(lambda now: now.accepted),),
        panel="Robustness and trust / Updates taken a minute, by neighbour",
    ),
    Metric(
        name="peer_read_seconds",
        kind="counter",
        labels=("peer",),
        help="Seconds of computing that reading a neighbour's updates took.",
        page=(
            "seconds of computing (CPU time of the thread) that reading the updates of each neighbour that is here took"
        ),
        wrong=(
            "one far above the others: it publishes more than its rounds, or by a slow codec; `throttled` in "
            "the log says so. It is held to its share"
        ),
        sources=(Live(lambda now: now.read_seconds),),
        panel=NoPanel("asked by hand, when `throttled` has told that somebody is slow to read"),
    ),
    Metric(
        name="peer_fetched_first",
        kind="gauge",
        labels=("peer",),
        help="1 for neighbours whose updates are fetched first.",
        page=(
            "1 for each neighbour whose updates are fetched first, 0 for the others (`[selection]`); no series where "
            "all are alike"
        ),
        wrong="changes in most rounds: the link does not carry `selection.most` updates a round",
        sources=(Live(lambda now: now.fetched_first),),
        panel=NoPanel("of nodes with `[selection]` alone; `chosen` in the log has the same"),
    ),
    Metric(
        name="peer_layers",
        kind="gauge",
        labels=("peer",),
        help="Refinements of its newest update that are held of a neighbour.",
        page=(
            "how many refinements (`sync.layers`) of its newest update are held of each neighbour that has sent any; "
            "no series without refinements"
        ),
        wrong="none of a neighbour on a fast link: its transfers are slow, or its refinements are refused",
        sources=(Live(lambda now: now.layers),),
        panel=NoPanel("asked by hand: the links say how many are to be expected"),
    ),
    Metric(
        name="peer_rejected",
        kind="counter",
        labels=(
            "peer",
            "reason",
        ),
        help="Updates refused, as events tell of them: of a flood a part.",
        page=(
            "refusals by peer, thinned out like the events (16, then 32, 64, ...); 64 peers by name, 256 pairs "
            "of a peer and a reason, then `other`. Who was not refused for a day gives its name's place to the next, "
            "and its count to `other`"
        ),
        sources=(ByPeer(Rejected, lambda peers, it: peers.rejected(it.peer, it.reason or "")),),
        panel="Robustness and trust / Refused since the start, by peer (the first ten)",
    ),
    Metric(
        name="peer_clipped",
        kind="counter",
        labels=("peer",),
        help="Rounds in which the aggregator did not follow a member in full.",
        page=(
            "rounds in which the aggregator did not follow this member in full: `centered_clipping` (as of its "
            "last step), `clipped_gossip` and the other rules for gossip; 64 peers by name, then `other` (a place "
            "is free again after a day). Stages in front of a rule (`clipping+...`) and `sparse_loco`'s own clipping "
            "are not in it"
        ),
        wrong=(
            "one peer far above the rest: it is broken, lies, or has other data. About every other round for "
            "everybody is how `centered_clipping` works"
        ),
        sources=(ByPeer(RoundTrained, lambda peers, it: peers.clipped(it.clipped)),),
        panel="Robustness and trust / Clipped since the start, by peer (the first ten)",
    ),
    Metric(
        name="peer_events",
        kind="counter",
        labels=("event",),
        help="Neighbours come, gone, banned or caught lying.",
        page="neighbours `up`, `lost`, `banned`, `equivocation`",
        wrong="many `lost`: an unstable link. `banned`: [PeerBanned](#peerbanned)",
        sources=(
            Counted(NeighbourUp, label="event", value="up"),
            Counted(NeighbourLost, label="event", value="lost"),
            Counted(Banned, label="event", value="banned"),
            Counted(Equivocation, label="event", value="equivocation"),
        ),
        begins=tuple((event,) for event in PEER_EVENTS),
        panel="Robustness and trust / Comings and goings a minute",
    ),
    Metric(
        name="network_bytes",
        kind="counter",
        labels=("direction",),
        help="All bytes to peers and from peers.",
        page=(
            "all bytes to peers (`sent`) and from peers (`received`): every copy of an update, whole models, "
            "announcements, framing, handshakes, and what is relayed for others; without the headers of TCP and IP"
        ),
        wrong="far above `update_bytes` and `snapshot_bytes` together: updates are small, and overhead is most of it",
        sources=(
            Total(RoundClosed, "bytes_sent", labels=SENT),
            Total(RoundClosed, "bytes_received", labels=RECEIVED),
        ),
        begins=DIRECTIONS,
        panel="Network / All bytes sent and received",
    ),
    Metric(
        name="parameter_sent_bytes",
        kind="gauge",
        help="All bytes sent, for each parameter and inner step.",
        page=(
            "all bytes sent since the process started, for each parameter and inner step: copies and overhead "
            "included. A ring all-reduce of fp32 at every step sends up to 8 (64 bits)"
        ),
        wrong="far above `parameter_published_bytes` times `neighbours`: overhead, or whole models for those that join",
        sources=(Value(RoundTrained, "sent_bits", scale=1 / BITS),),
        of_training=True,
        panel="Network / Bits per parameter and inner step",
    ),
    Metric(
        name="parameter_published_bytes",
        kind="gauge",
        help="Bytes of one copy of each update, for each parameter and inner step.",
        page="the same of one copy of each update, without any overhead",
        sources=(Value(RoundTrained, "published_bits", scale=1 / BITS),),
        of_training=True,
        panel="Network / Bits per parameter and inner step",
    ),
    Metric(
        name="update_bytes",
        kind="counter",
        labels=("direction",),
        help="Payload bytes of updates.",
        page="payload bytes of updates `sent`, `received`",
        sources=(
            Total(RoundClosed, "payload_bytes_sent", labels=SENT),
            Total(RoundClosed, "payload_bytes_received", labels=RECEIVED),
        ),
        begins=DIRECTIONS,
        panel="Network / Updates sent and received",
    ),
    Metric(
        name="snapshot_bytes",
        kind="counter",
        labels=("direction",),
        help="Bytes of whole models.",
        page=("bytes of whole models `sent` to and `received` from those that joined, restarted or missed updates"),
        wrong=(
            "goes on growing: neighbours miss updates again and again, over links too slow for "
            "`inner_steps` ([tuning](#tuning)), or restart"
        ),
        sources=(
            Total(RoundClosed, "snapshot_bytes_sent", labels=SENT),
            Total(RoundClosed, "snapshot_bytes_received", labels=RECEIVED),
        ),
        begins=DIRECTIONS,
        panel="Network / Whole models sent and received",
    ),
    Metric(
        name="blob_seconds",
        kind="histogram",
        help="Time from the first request for a blob to its last verified byte.",
        page=(
            "from the first request for a blob (an update's payload, or a whole model) to its last verified "
            "byte; those that failed are not in it"
        ),
        wrong=(
            "far above payload size over bandwidth: the link or the neighbour's machine is busy. As long as a "
            "round: see `close_seconds`"
        ),
        sources=(Live(lambda now: now.blob_seconds),),
        panel="Network / Time to pull a blob",
    ),
    Metric(
        name="queue_depth",
        kind="gauge",
        labels=("queue",),
        help="What waits or is under way now.",
        page="what waits or is under way, see [below](#what-waits-where)",
        wrong="one that does not come down names the part that is stuck",
        sources=(Live(lambda now: {name: now.queues.get(name, 0) for name in QUEUES}),),
        panel="Node / Queues (highest of 5 minutes)",
    ),
    Metric(
        name="inner_steps",
        kind="gauge",
        help="Steps that the next round is to have.",
        page="steps that the next round is to have: `train.inner_steps`, or what `train.inner_steps_schedule` and "
        "`node.pace` make of it",
        wrong=('at `train.inner_steps` all the time with `node.pace = "auto"`: the link does not hide fewer'),
        sources=(Value(RoundTrained, "inner_steps"),),
        of_training=True,
        panel="Node / Steps of the next round",
    ),
    Metric(
        name="payload_bytes",
        kind="gauge",
        help="Bytes of the newest update.",
        sources=(Value(RoundTrained, "payload_bytes"),),
        of_training=True,
        panel="Network / Newest update",
    ),
    Metric(
        name="link_bytes_per_second",
        kind="gauge",
        help="Speed of updates to the slowest neighbour that a quorum waits for.",
        page=(
            "how fast updates go to the slowest neighbour that a quorum waits for, the others being served "
            "beside it; 0 until one was sent"
        ),
        wrong="far below the line's own: somebody else uses it, or the neighbours' machines are busy",
        sources=(Value(RoundTrained, "link_bytes_per_s", unknown=0),),
        of_training=True,
        panel="Network / Slowest link that a quorum waits for",
    ),
    Metric(
        name="rung",
        kind="gauge",
        labels=("rung",),
        help="1 for what the compressor `adaptive` made the newest update with.",
        page=(
            "1 for what the compressor `adaptive` made the newest update with, `int8` (the finest) to `topk "
            "1/128`; no series with other compressors"
        ),
        wrong="coarse all the time: more inner steps a round, or a smaller model",
        sources=(ByName(RoundTrained, "rung", label="rung"),),
        of_training=True,
        panel="Network / Rung of the compressor `adaptive` (nodes)",
    ),
    Metric(
        name="compression_ratio",
        kind="gauge",
        help="Dense fp32 bytes over payload bytes sent, for as many updates.",
        wrong="about 15.7 for q2, 31 for sign1, 4 for int8",
        sources=(Value(RoundTrained, "compression_ratio"),),
        of_training=True,
        panel="Network / Compression ratio",
    ),
    Metric(
        name="checkpoint_age_seconds",
        kind="gauge",
        help="Seconds since the newest checkpoint; -1: none yet.",
        page="since this process's newest checkpoint; -1 before the first",
        wrong="[CheckpointOld](#checkpointold), [NoCheckpoint](#nocheckpoint)",
        sources=(Since(CheckpointWritten),),
        panel="Node / Age of the newest checkpoint",
    ),
    Metric(
        name="checkpoint_failures",
        kind="counter",
        help="Tries to write a checkpoint that the disk did not take.",
        wrong="at all: [CheckpointOld](#checkpointold)",
        sources=(Counted(CheckpointFailed),),
        panel="Node / Checkpoints that could not be written",
    ),
    Metric(
        name="rss_bytes",
        kind="gauge",
        help="Resident memory of the process.",
        wrong="grows from round to round: report it",
        sources=(
            Value(RoundClosed, "rss_bytes"),
            Value(MembersKnown, "rss_bytes"),
        ),
        panel="Node / Memory",
    ),
    Metric(
        name="budget",
        kind="gauge",
        labels=("resource",),
        help="What the node may take: bytes of memory, gpu_memory and disk, and cores (cpu).",
        page="what the node [may take](how-to/budgets.md): bytes, and cores of `cpu`; none without a budget",
        wrong="",
        sources=(Live(lambda now: now.budget),),
        panel="Node / Share of the budget that is taken",
    ),
    Metric(
        name="budget_used",
        kind="gauge",
        labels=("resource",),
        help="What the node takes of what it may: bytes, and cores since the last scrape.",
        page=(
            "what it takes of that: memory that the system cannot take back, what torch has reserved of the GPU, "
            "the folder's files, and cores since the last scrape"
        ),
        wrong="near the budget: fewer examples go through the model at a time",
        sources=(Live(lambda now: now.budget_used),),
        panel="Node / Share of the budget that is taken",
    ),
    Metric(
        name="shifts",
        kind="counter",
        labels=("where",),
        begins=(("here",), ("everywhere",), ("newcomer",)),
        of_training=True,
        help="Shifts of data: of the node's own, of most members' by their word, or as it began.",
        page=(
            "shifts of data that the node has told ([how-to](how-to/data-shift.md)): `here`, `everywhere`, or "
            "`newcomer`, where its own data differ from the held-out ones as it begins"
        ),
        wrong="rises: [DataShifted](#datashifted)",
        sources=(Counted(ShiftDetected, label="where", by="where"),),
        panel="Node / Shift of own data",
    ),
    Metric(
        name="shift_deviation",
        kind="gauge",
        labels=("signal",),
        help="How far each signal of shift is from what is usual, in standard deviations of the reference.",
        page=(
            "how far each [signal of shift](how-to/data-shift.md) is from what is usual, in standard deviations; "
            "none where none is watched"
        ),
        wrong="stays beyond 3",
        sources=(Live(lambda now: now.shift_deviation),),
        panel="Node / Shift of own data",
    ),
    Metric(
        name="warm_up_steps",
        kind="counter",
        of_training=True,
        help="Steps that the node has taken on synthetic examples before its first round.",
        page=(
            "steps on synthetic examples before the first round ([how-to](how-to/cold-start.md)); 0 where the node did "
            "not warm up"
        ),
        sources=(Added(WarmedUp, "steps"),),
        panel=NoPanel("it rises once, as a newcomer begins: the event `warmed_up` says by what"),
    ),
    Metric(
        name="privacy_epsilon",
        kind="gauge",
        labels=("delta",),
        help="Privacy that the node's data have spent, as epsilon at privacy.delta, by Renyi divergences.",
        page="what its data have [spent of their privacy](how-to/privacy-budget.md); none where nothing protects them",
        wrong="at the budget: the node takes no more steps on its data (`privacy_budget_spent`)",
        sources=(Live(lambda now: now.privacy_epsilon),),
        panel="Node / Privacy spent, over its budget",
    ),
    Metric(
        name="privacy_epsilon_budget",
        kind="gauge",
        labels=("delta",),
        help="Privacy that the node's data may spend (privacy.epsilon).",
        page="what they may spend (`privacy.epsilon`); none without a budget",
        wrong="",
        sources=(Live(lambda now: now.privacy_epsilon_budget),),
        panel="Node / Privacy spent, over its budget",
    ),
    Metric(
        name="visits_epsilon",
        kind="gauge",
        labels=("delta",),
        help="Privacy that the visitor has spent that has spent most, as epsilon at visits.delta.",
        page="most that a [visitor](visits.md#noise-on-what-visitors-leave) has spent; none where no noise hides them",
        wrong="at the budget: visitors that have come as often as they may are refused (`spent`)",
        sources=(Live(lambda now: now.visits_epsilon),),
        panel="Node / Privacy spent, over its budget",
    ),
    Metric(
        name="visits_epsilon_budget",
        kind="gauge",
        labels=("delta",),
        help="Privacy that each visitor may spend (visits.epsilon).",
        page="what each visitor may spend (`visits.epsilon`); none without a budget",
        wrong="",
        sources=(Live(lambda now: now.visits_epsilon_budget),),
        panel="Node / Privacy spent, over its budget",
    ),
    Metric(
        name="disk_free_bytes",
        kind="gauge",
        help="Free where the run's folder lies; -1: not known.",
        page="what this user may still write on the disk where the run folder lies; -1: not known",
        wrong="less than two checkpoints and 1 GB: [DiskNearlyFull](#disknearlyfull)",
        sources=(Live(lambda now: now.disk_free),),
        panel="Node / Disk that is left",
    ),
    Metric(
        name="event_loop_lag_seconds",
        kind="histogram",
        help="How much later than asked the event loop woke.",
        page="how late the event loop woke, every half second",
        wrong=("99% above 0.05 s: the machine has fewer cores than nodes, or swaps. Above 0.3 s: [LoopLag](#looplag)"),
        sources=(Measured("Metrics.watch_loop, twice a second"),),
        panel="Node / Event loop lag (99%)",
    ),
    Metric(
        name="info",
        kind="gauge",
        labels=INFO,
        help="1; the labels describe the node.",
        page=(
            "labels `task`, `aggregator`, `compressor`, `device`, `role` (`trainer`, `observer`, `bootstrap`, `relay`)"
        ),
        sources=(Labels(Started, INFO),),
        panel="Node / What it runs",
    ),
    Metric(
        name="parameters",
        kind="gauge",
        help="Parameters of the model.",
        sources=(Value(LearnerStarted, "parameters"),),
        panel=NoPanel("alerts tell by it who holds a model"),
    ),
    Metric(
        name="peers_known",
        kind="gauge",
        help="Peers in the address book.",
        sources=(
            Value(RoundClosed, "peers_known"),
            Value(MembersKnown, "peers_known"),
        ),
        panel="Network / Neighbours, and peers in the address book",
    ),
    Metric(
        name="drops",
        kind="counter",
        labels=("kind",),
        help=("What the transport refused, let go or survived: connections, handshakes, streams, frames, broadcasts."),
        page="what the transport refused, let go or survived, see [below](#what-is-dropped)",
        wrong="a kind that goes on rising: somebody tries something. `handler` at all: report it",
        sources=(Live(lambda now: {kind: now.drops.get(kind, 0) for kind in DROPS}),),
        panel="Network / Dropped by the transport a minute, by kind",
    ),
    Metric(
        name="relay_circuits",
        kind="gauge",
        help="Circuits that are relayed now.",
        page="circuits that this node relays for others now",
        wrong="at 16: there is no room for more",
        sources=(Live(lambda now: now.relaying.circuits),),
        panel="Network / Circuits",
    ),
    Metric(
        name="relay_bytes",
        kind="counter",
        help="Bytes relayed, counted once each.",
        page="bytes relayed, counted once each; the link carries them twice",
        wrong="at `network.relay_bytes_per_s` all the time: the bound is what slows its neighbours' rounds",
        sources=(Live(lambda now: now.relaying.carried_bytes),),
        panel="Network / Relayed for others, of what may be",
    ),
    Metric(
        name="relay_limit_bytes_per_second",
        kind="gauge",
        help="What the node relays at most; 0: it does not.",
        page="what this node relays at most (`network.relay_bytes_per_s`); 0: it does not relay",
        wrong="[RelaySaturated](#relaysaturated)",
        sources=(Live(lambda now: now.relay_limit),),
        panel="Network / Relayed for others, of what may be",
    ),
    Metric(
        name="relay_refused",
        kind="counter",
        labels=("status",),
        help="Reservations and circuits that were asked for in vain, by the answer's status.",
        page="reservations and circuits that were asked for in vain ([statuses](#reachability))",
        wrong="`connection_failed` that goes on rising: a neighbour of this relay is half gone",
        sources=(Live(lambda now: {status: now.relaying.refused.get(status, 0) for status in REFUSALS}),),
        panel="Network / Refused by relays a minute, by status",
    ),
    Metric(
        name="peer_weight",
        kind="gauge",
        labels=("peer",),
        help="What a member counts for by its staleness; 1: fresh.",
        page=(
            "what each member of the newest aggregate counts for by its staleness: 1 when fresh; who is no "
            "member has no series, and `other` is the sum of those without a name"
        ),
        wrong="below 1 for the same peer on all nodes: it is slower than the rest",
        sources=(ByPeer(RoundTrained, lambda peers, it: peers.weigh(it.weights)),),
        panel="Robustness and trust / Weight of a member by its staleness",
    ),
    Metric(
        name="gpu_memory_allocated_bytes",
        kind="gauge",
        help="Held by tensors of this process, in bytes, on the device that the node trains on.",
        page=(
            "held by this process's tensors on the device that it trains on; the three exist only where that is CUDA's"
        ),
        sources=(Measured("gpu_metrics.py, at the scrape"),),
        panel="Node / GPU memory in tensors",
    ),
    Metric(
        name="gpu_memory_reserved_bytes",
        kind="gauge",
        help=("Held by this process's allocator for tensors, in bytes, on the device that the node trains on."),
        page="held there by torch's allocator, tensors included",
        sources=(Measured("gpu_metrics.py, at the scrape"),),
        panel="Node / GPU memory that is left",
    ),
    Metric(
        name="gpu_memory_free_bytes",
        kind="gauge",
        help="Free for every process, in bytes, on the device that the node trains on.",
        page="free there for every process",
        wrong=(
            "near 0, with `reserved` near `allocated`: [GpuMemoryLow](#gpumemorylow); a smaller "
            "`train.batch_size` with more `train.grad_accumulation`"
        ),
        sources=(Measured("gpu_metrics.py, at the scrape"),),
        panel="Node / GPU memory that is left",
    ),
)

DECLARED: Final = {metric.name: metric for metric in METRICS}
