"""What honest nodes do in a run: who starts when, on what links, and who leaves and comes back.

Times are virtual seconds. A round takes fifteen of them, so that a repeated announcement, a redial and an answer that
is late are short beside it, as they are in life; and a run of fourteen rounds takes two hundred and ten.
"""

import random
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

ROUNDS: Final = 14
INNER_STEPS: Final = 2
STEP_SECONDS: Final = 7.5
ROUND_S: Final = INNER_STEPS * STEP_SECONDS
LEAST_S: Final = 200.0
"""What every run lasts at least."""

KINDS: Final = (
    "start",
    "steady",
    "end",
    "join",
    "crowd",
    "resume",
    "observer",
    "bootstrap",
    "relay",
    "meeting",
    "private",
    "open",
)
"""start: all begin together, and are lied to while they wait for each other. steady, end: later, and in the last
rounds. join, crowd: one or two come late. resume: one is stopped or killed, and comes back. observer: one looks on.
bootstrap: they find each other through a node that only knows members, and one comes late. relay: one relays for two
that nobody can dial, and so does every hostile node, in its own way. meeting: rounds are exchanges within groups.
private: all were invited, the hostile ones too. open: anybody may come, so that there are more hostile nodes than f,
and one of the honest comes late."""

LOGIN: Final = frozenset({"login"})
"""A kind of its own, for later seeds, so that earlier ones stay what they were: two of the honest reach nobody but a
dedicated relay, whose clients the hostile nodes are as well."""

REGIONS: Final = frozenset({"regions"})
"""Another: the honest are of two regions, and so are the hostile nodes, as far as they say."""

BOUND: Final = frozenset({"bound"})
"""And another: the same in a private swarm, where each certificate names its member's region. The hostile ones are of
the first."""

RESIDENCY: Final = frozenset({"residency"})
"""One more: nothing may leave the first of the regions, and no hostile node says that it is of that one."""

PAUSES: Final = frozenset({"pauses"})
"""And one: of five honest nodes two, at some time three, are paused for some rounds, and say so; fewer than 2 f + 1 are
there then."""

LAYERS: Final = frozenset({"layers"})
"""And one more: updates have refinements, by REFINED_BY."""

REFINED_BY: Final = ("int4", "int8")
"""Of the second there is one place at first, for which all compete."""

LATE_REGION: Final = frozenset({"late_region"})
"""The first region has trained for some rounds when the members of the second one come, all at once."""

SUMS: Final = frozenset({"sums"})
"""The hostile nodes speak of secure sums."""

SHIFTS: Final = frozenset({"shifts"})
"""And one: of five honest nodes all watch their data for shift, which does not come, and one says that it has."""

STATISTICS: Final = frozenset({"statistics"})
"""And one: the honest share class statistics of their data, and one that comes late asks for those of all."""

FIRST_ALONE: Final = frozenset({"first_alone"})
"""And one: the first has trained for long when all others come at once, who cannot take its word. It goes back to
them."""

ALL_BACK: Final = frozenset({"all_back"})
"""And one: all honest nodes are killed at once, and come back one after another, each further behind the first than
any may be."""

UNLIKE: Final = frozenset({"unlike"})
"""And one: honest nodes of unlike speed, of which some pause, some are restarted with their checkpoint or without it,
and one or two come late; the hostile ones say rounds far from theirs."""

SAYS_SHIFT: Final = 1
"""Number of that one."""

LATER: Final = {
    "login": 1000,
    "regions": 2000,
    "bound": 3000,
    "residency": 4000,
    "pauses": 5000,
    "layers": 6000,
    "late_region": 7000,
    "sums": 8000,
    "shifts": 9000,
    "statistics": 10000,
    "first_alone": 11000,
    "all_back": 12000,
    "unlike": 13000,
}
"""Kinds by their first seeds; those after it are of the same kind, up to the next."""

LABELS: Final = ("east", "west")
"""Of regions. Every second honest node is of the same one; where the second comes late, the first half of them."""

LATE: Final = {"join": 1, "crowd": 2, "bootstrap": 1, "open": 1, "late_region": 4, "statistics": 1, "first_alone": 4}
"""How many of the honest nodes come late."""

HIDDEN: Final = 2
"""Of a relay's scenario, the last so many are behind NAT, or a dedicated relay's clients."""

AWAY: Final = {2: (100.0, 112.0), 3: (50.0, 110.0), 4: (95.0, 140.0)}
"""Of the honest nodes that pause: from when until when, in virtual seconds."""

COMES_AT: Final = 65.0
"""When they do: in the fifth round."""

FIRST_ALONE_S: Final = 150.0
"""And where the first was alone: in its eleventh, far more than any may be behind."""

GAP_S: Final = 80.0
"""And between two that come back, where all were killed: more than five rounds."""

ALL_BACK_ROUNDS: Final = 28
"""Of a run in which they do: the last one is back with half of them left."""

UNLIKE_ROUNDS: Final = 26
"""Of a run of nodes that are unlike: all of their changes are over by half of it, at the pace of the fastest."""

UNLIKE_S: Final = 90.0
"""When most of them change."""

FIRST_ALONE_ROUNDS: Final = 24
"""Of a run with such a first one: the others serve eight before it goes back, and then all are together."""

SHAPES: Final = (
    {"honest": 4, "f": 1},
    {"honest": 5, "f": 1, "latency_s": 0.05, "loss": 0.1},
    {"honest": 4, "f": 1, "compressor": "none", "known": "first"},
    {"honest": 4, "f": 1, "pace": "dylu"},
    {"honest": 6, "f": 2},
    {"honest": 8, "f": 2, "degree": 9, "compressor": "none", "known": "first", "loss": 0.05},
)
"""How swarms differ. Few, so that a clean run serves many seeds; the small ones are drawn more often."""
WEIGHTS: Final = (6, 4, 5, 2, 2, 0.5)


MEETINGS: Final[dict[str, dict[str, Any]]] = {
    "moshpit": {"strategy": "moshpit", "compressor": "none", "group": 4},
    "allreduce": {"strategy": "allreduce", "compressor": "int4", "refresh": 4},
    "mime": {"strategy": "mime", "refresh": 4},
    "des_loc": {"strategy": "des_loc", "refresh": 4},
    "sparta": {"strategy": "sparta", "period": 2, "random_share": 0.25, "refresh": 4},
}

FIRST_MEETINGS: Final = ("moshpit", "allreduce", "mime")
"""Those that seeds before ALL_FROM draw, so that these stay what they were."""

ALL_FROM: Final = 500
"""The first seed that draws any meeting."""

MOMENTUM: Final = 0.5
"""Where moments are averaged; steps are as long as without."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one of the honest does where they are unlike. `slowness`: seconds a step, of STEP_SECONDS. `pauses`: from
    when until when. Times are virtual seconds."""

    slowness: float
    comes_at: float = 0.0
    leaves_at: float | None = None
    away_s: float = 0.0
    killed: bool = False
    forgets: bool = False
    """Whether its checkpoints are gone as it comes back."""
    pauses: tuple[float, float] | None = None


def draw_parts(honest: int, rng: random.Random) -> tuple[Part, ...]:
    """Unlike ones. Most are of one pace, so that there is a swarm to come back to, and the first two of these stay. Of
    several that are faster these would be a swarm of their own."""
    parts = [Part(slowness=1.0) for _ in range(honest)]
    changing = list(range(2, honest))
    rng.shuffle(changing)
    for number in changing[: (honest - 1) // 3]:
        parts[number] = Part(slowness=rng.choice([1.0, 1.5, 3.0]))
    if rng.random() < 0.5:
        parts[changing[-1]] = Part(slowness=0.5)
    for number in changing[: rng.randint(1, len(changing))]:
        leaves_at, away_s = round(rng.uniform(30.0, 130.0), 1), round(rng.uniform(2.0, 90.0), 1)
        match rng.choice(["killed", "stopped", "forgets", "pauses"]):
            case "pauses":
                change: dict[str, Any] = {"pauses": (leaves_at, leaves_at + away_s)}
            case how:
                change = {"leaves_at": leaves_at, "away_s": away_s, "killed": how != "stopped"}
                change |= {"forgets": how == "forgets"}
        parts[number] = replace(parts[number], **change)
    for number in range(honest - rng.randint(0, 2), honest):
        parts[number] = Part(slowness=parts[number].slowness, comes_at=round(rng.uniform(40.0, 120.0), 1))
    return tuple(parts)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One arrangement of honest nodes."""

    kind: str
    honest: int
    f: int
    """Of the aggregator, and how many hostile nodes there are at a time, where the kind is not `open`."""
    rounds: int = ROUNDS
    compressor: str = "q2"
    strategy: str = "moshpit"
    """Of a meeting."""
    degree: int = 8
    pace: str = "fixed"
    loss: float = 0.0
    latency_s: float = 0.0
    known: str = "all"
    """Whose addresses a node is given: of `all` that came before it, or of the `first` alone."""
    hostile_first: bool = False
    """Whether a hostile node is nearer to latecomers than the honest ones, and among the addresses they are given."""
    killed: bool = False
    """Whether who leaves is killed, or stopped with a checkpoint and a goodbye."""
    leaves_at: float = 65.0
    away_s: float = 30.0
    drawn_by: int = 0
    """The seed of what each of the honest does, where they are unlike."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """What each of the honest does, where they are unlike."""
        return draw_parts(self.honest, random.Random(self.drawn_by))

    @property
    def clean(self) -> Self:
        """As far as a run without hostile nodes can tell."""
        together = self.kind in ("start", "steady", "end")
        return replace(self, kind="start" if together else self.kind, hostile_first=self.hostile_first and not together)

    @property
    def late(self) -> int:
        """How many of the honest nodes come late."""
        return LATE.get(self.kind, 0)

    @property
    def moment(self) -> float:
        """When it is worth most to lie."""
        if self.kind in FIRST_ALONE:
            return FIRST_ALONE_S
        if self.kind in ALL_BACK:
            return COMES_AT + GAP_S
        if self.kind in UNLIKE:
            return UNLIKE_S
        moments = {"resume": self.leaves_at + self.away_s, "end": LEAST_S - ROUND_S, "steady": 10 * ROUND_S}
        return COMES_AT if self.late else moments.get(self.kind, 0.0)

    @property
    def private(self) -> bool:
        """Whether all members have certificates."""
        return self.kind in ("private", *BOUND)

    @property
    def has_regions(self) -> bool:
        """Whether the honest are of two regions."""
        return self.kind in REGIONS | BOUND | RESIDENCY | LATE_REGION

    def region_of(self, number: int) -> str:
        """Return the label of an honest node's region."""
        return LABELS[number >= self.honest - self.late] if self.kind in LATE_REGION else LABELS[number % 2]

    @property
    def hostile(self) -> int:
        """How many hostile nodes there are from the first on."""
        return self.f

    @property
    def robust(self) -> bool:
        """Whether the aggregator's promise holds: no more than f lie to a node at a time, and it aggregates by it."""
        return self.kind not in ("open", "meeting")

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """The configuration of a trainer."""
        sync: dict[str, Any] = {"f": self.f, "compressor": self.compressor}
        if self.kind == "meeting":
            sync = MEETINGS[self.strategy]
        if self.has_regions:
            sync |= {"regions": list(LABELS)}
        if self.kind == "residency":
            sync |= {"residency": {LABELS[0]: "nothing"}}
        if self.kind in LAYERS:
            sync |= {"layers": list(REFINED_BY)}
        momentum = MOMENTUM if sync.get("strategy") == "des_loc" else 0.0
        return {
            "task": {"name": "adversary_task:LeastSquares"},
            "train": {
                "rounds": self.rounds,
                "inner_steps": INNER_STEPS,
                "batch_size": 128,
                "eval_every": self.rounds,
                "optimizer": "sgd",
                "momentum": momentum,
                "nesterov": False,
                "weight_decay": 0.0,
                "clip_norm": 0.0,
                "learning_rate": 1.5 * (1 - momentum),
                "schedule": "cosine",
                "warmup_steps": 0,
            },
            "sync": sync,
            "network": {"degree": self.degree, "reannounce_s": 5.0, "heartbeat_s": 20.0, "silence_s": 70.0},
            "node": {"wait_timeout_s": 20.0, "linger_s": 10.0, "pace": self.pace},
        }

    def to_json(self) -> dict[str, Any]:
        """For a plan's file."""
        return asdict(self)


def draw_scenario(kind: str, rng: random.Random, seed: int) -> Scenario:
    """One of this kind, for a plan of this seed."""
    meetings = list(FIRST_MEETINGS if seed < ALL_FROM else MEETINGS)
    shape: dict[str, Any] = dict(rng.choices(SHAPES, WEIGHTS)[0])
    late = kind in ("join", "crowd", "resume")
    if kind in ("crowd", "open", "bootstrap", "login"):
        shape["honest"] = max(shape["honest"], 5)
    if kind in REGIONS | BOUND | RESIDENCY | LATE_REGION:  # as many in each as f = 1 wants
        shape |= {"honest": 8, "f": 1, "degree": 8}
    if kind in PAUSES | SHIFTS | STATISTICS | FIRST_ALONE:
        shape |= {"honest": 5, "f": 1}
    if kind in ALL_BACK:
        shape |= {"honest": 4, "f": 1, "rounds": ALL_BACK_ROUNDS}
    if kind in UNLIKE:
        honest = rng.randint(5, 9)
        shape |= {"honest": honest, "f": 2 if honest > 7 and rng.random() < 0.5 else 1, "rounds": UNLIKE_ROUNDS}
        shape |= {"degree": 8 if honest < 8 else 10, "drawn_by": rng.randrange(1 << 16)}
    if kind in FIRST_ALONE:
        shape |= {"rounds": FIRST_ALONE_ROUNDS}
    if kind == "open":
        shape["degree"] = rng.choice([4, 8])
    return Scenario(
        kind=kind,
        hostile_first=late and rng.random() < 0.5,
        killed=kind == "resume" and rng.random() < 0.5,
        leaves_at=rng.choice([60.2, 68.0]) if kind == "resume" else 65.0,
        away_s=rng.choice([10.0, 90.0]) if kind == "resume" else 30.0,
        strategy=rng.choice(meetings) if kind == "meeting" else "moshpit",
        **shape,
    )
