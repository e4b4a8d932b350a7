"""What must hold in every run, whatever hostile nodes do; looked at while it goes on and when it is over.

A violation is a line that begins with the invariant's name, so that a shrunken plan can be held to break the same one.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from adversary_scenario import ALL_BACK, FIRST_ALONE, LAYERS, UNLIKE
from adversary_stage import Life, Stage

from gossip.core.ids import PeerId
from gossip.discovery.peerstore import RecordTrust
from node.training.checkpoint import CheckpointStore
from node.training.estimates import MAX_DEPARTED

LOSS_FACTOR: Final = 1.1
"""Honest loss, to that of the same run without hostile nodes: the issue's figure."""

LOSS_FLOOR: Final = 0.005
"""And so much more, in squared error: of runs of other seeds, clean ones differ by less than half of it (measured)."""

STRETCH: Final = 1.5
STRETCH_S: Final = 40.0
"""A run may last so much longer than a clean one: what waiting for those who never answer costs, in deadlines of 30 s
that shrink within a few rounds."""

LOOK_S: Final = 5.0
"""Between two looks at the sizes of stores."""

MOST_PASSES: Final = 160
"""Passes over a model for one peer between two looks, of 5 s: a follower takes 32 at once and 20 a second. What they
may take in seconds is bounded far lower, and cannot be seen here, where computing takes no time: see
test_costly_codecs.py."""

COMPANY_SHARE: Final = 0.6
"""Of the honest members that a round has without hostile nodes."""

PLACES_SHARE: Final = 0.45
"""Of a node's places: who calls first has at most half (gossip/updates/mesh_admission.py), and it takes a round or
two."""

STEPS_SHARE: Final = 0.6
"""Of the steps of a clean run that an honest node does at least: fewer mean that it was made to hurry."""


REFINED_SHARE: Final = 0.7
"""Of the refinements that a node has of the other honest ones without hostile nodes."""

MOVED_SHARE: Final = 0.6
"""Of the moves that nodes make by the other region's model without hostile nodes, in the mean: each makes two or three,
and one that is late by a turn is no harm."""


@dataclass
class Violations:
    """In the order in which they were seen, each once."""

    lines: list[str] = field(default_factory=list)

    def add(self, name: str, detail: str) -> None:
        """One more."""
        line = f"{name}: {detail}"
        if line not in self.lines and len(self.lines) < 40:
            self.lines.append(line)

    @property
    def names(self) -> list[str]:
        """Which invariants were broken, each once, in order."""
        return list(dict.fromkeys(line.partition(":")[0] for line in self.lines))


@dataclass(frozen=True)
class Clean:
    """What the same run comes to without hostile nodes. `company`: honest members of a round, in the mean. `refined`:
    refinements that a node has of an honest neighbour as a round closes, in the mean. `moved`: how often a node moves
    by the other region's model, in the mean."""

    loss: float
    seconds: float
    steps: int
    company: float
    refined: float
    moved: float


# -- while it goes on


@dataclass
class Watch:
    """Looks at the honest nodes every few seconds."""

    stage: Stage
    found: Violations
    rounds: dict[tuple[str, float], int] = field(default_factory=dict)
    """By who, and when it began: one that was killed begins at its checkpoint again."""
    checkpoints: dict[str, int] = field(default_factory=dict)
    passes: Counter[tuple[str, str]] = field(default_factory=Counter)
    known: set[PeerId] = field(default_factory=set)

    def look(self) -> None:
        """Once."""
        self._look_at_work()
        self._look_at_bootstrap()
        for life in self.stage.running:
            self._look_at_round(life)
            for what, size, most in sizes_of(life):
                if size > most:
                    self.found.add("budget", f"{life.member.name} holds {size} {what}, of at most {most}")
        for what, size, most in sizes_of_bootstrap(self.stage):
            if size > most:
                self.found.add("budget", f"the bootstrap node holds {size} {what}, of at most {most}")
        if self.stage.scenario.kind == "resume":
            self._look_at_checkpoints()

    def _look_at_work(self) -> None:
        hostile = {str(peer) for peer in self.stage.ever_hostile}
        for (name, peer), passes in (self.stage.passes - self.passes).items():
            if passes > MOST_PASSES and peer in hostile:
                self.found.add(
                    "work", f"{name} made {passes} passes over a model for one hostile node in {LOOK_S:.0f} s"
                )
        self.passes = Counter(self.stage.passes)

    def _look_at_bootstrap(self) -> None:
        """Whom it has known once it knows for as long as they are there; half of them at any time."""
        stage = self.stage
        if stage.bootstrap is None:
            return
        run = stage.bootstrap.bootstrap_state._runs.get((stage.scope.run, stage.genesis))
        verified = set() if run is None else {record.peer for record in run.peerstore.of_standing(RecordTrust.VERIFIED)}
        there = {life.peer for life in stage.running}
        self.known |= verified
        lost = (self.known & there) - verified
        if 2 * len(lost) > len(self.known & there):
            self.found.add("forgotten", f"the bootstrap node has forgotten {len(lost)} of {len(there)} members")

    def _look_at_round(self, life: Life) -> None:
        name, now = life.member.name, life.member.node.state.round
        last = self.rounds.get((name, life.began), life.resumed_round or 0)
        if now < last and not went_back(self.stage, life):
            self.found.add("back", f"{name} went from round {last} back to {now}")
        self.rounds[name, life.began] = max(last, now)

    def _look_at_checkpoints(self) -> None:
        for name, store in {life.member.name: store_of(life) for life in self.stage.lives}.items():
            newest = max((int(path.name.rpartition("-")[2]) for path in store._folders()), default=0)
            last = self.checkpoints.get(name, 0)
            if newest < last:
                self.found.add("checkpoint", f"{name}'s checkpoint of round {last} is gone; the newest is of {newest}")
            self.checkpoints[name] = max(last, newest)


def went_back(stage: Stage, life: Life) -> bool:
    """Whether this is a first one that was alone, and has joined the others, who came later."""
    if stage.scenario.kind in UNLIKE:  # or a fast one that had the others behind it, who keep up all the same
        return any("trained behind this node" in event["message"] for event in life.member.told("warning"))
    first = stage.scenario.kind in FIRST_ALONE | ALL_BACK and life.number == 0
    return first and any(event["at"] > stage.scenario.moment for event in life.member.told("joined"))


def store_of(life: Life) -> CheckpointStore:
    """Also of one that was killed."""
    return CheckpointStore(life.member.folder / "checkpoint")


def sizes_of(life: Life) -> Iterator[tuple[str, int, int]]:
    """What a node holds of others: name, size, and bound."""
    node = life.member.node
    service, config = node.service, node.config.network
    engine, blob_cache = service._engine, service._server.blob_cache
    models = len(getattr(node.strategy, "estimates", {}))
    yield "estimates", models, 2 * config.degree
    yield "neighbours", len(engine.neighbours), config.degree
    yield "estimates held", len(node.estimates), config.degree + MAX_DEPARTED
    yield "bytes of finished downloads", blob_cache.bytes_held, config.max_payload_bytes
    yield "unfinished downloads", len(blob_cache._coming), 2 * config.degree
    yield "records", len(engine.peerstore), 256
    yield "scores", len(engine.peer_scores.scores), 1024
    yield "broadcasts remembered", len(engine._seen), 4096
    yield "proofs", len(engine.peer_scores.proofs), 64
    yield "counted refusals", len(engine.peer_scores.stats.rejected), 257 * 25
    yield "early parts", len(service._allreducer._early), 4 * 64
    yield "streams served", service._server.serving, 8 * (config.degree + 20)
    yield "bytes served", engine.publisher.blobs.bytes_held, 11 * config.max_payload_bytes
    yield "claims of shift", len(engine._shifts._said), config.degree
    for neighbour in engine.neighbours.values():
        yield "pending links", len(neighbour.chain._pending), 16
        yield "recent links", len(neighbour.chain._recent), 32


def sizes_of_bootstrap(stage: Stage) -> Iterator[tuple[str, int, int]]:
    """The same of the bootstrap node."""
    if stage.bootstrap is not None:
        bootstrap_state = stage.bootstrap.bootstrap_state
        yield "runs", bootstrap_state.runs, 8
        yield "records", bootstrap_state.peers_known, 8 * 256


# -- when it is over


def judge(stage: Stage, clean: Clean | None, seconds: float, found: Violations) -> None:
    """Everything that can be said in the end. `clean`: None where this is the clean run."""
    _nobody_ends_early(stage, found)
    _nobody_is_banned(stage, found)
    _nothing_breaks(stage, found)
    _adoptions(stage, found)
    _rounds(stage, found)
    _first_alone(stage, found)
    _places(stage, found)
    _shifts(stage, found)
    for line in stage.heard_statistics:
        found.add("statistics", f"a newcomer heard {line}")
    for line in stage.misled:
        found.add("misled", line)
    if clean is not None:
        _company(stage, clean, found)
        _refined(stage, clean, found)
        _moved(stage, clean, found)
        _loss(stage, clean, found)
        if seconds > clean.seconds * STRETCH + STRETCH_S:
            found.add("stretched", f"{seconds:.0f} s, and {clean.seconds:.0f} s without hostile nodes")
        if stage.scenario.robust and steps_of(stage) < STEPS_SHARE * clean.steps:
            found.add("hurried", f"{steps_of(stage)} steps, and {clean.steps} without hostile nodes")


def _nobody_ends_early(stage: Stage, found: Violations) -> None:
    rounds = stage.scenario.rounds
    for life in stage.lives:
        member, node = life.member, life.member.node
        if member.error is not None:
            found.add("ended", f"{member.name} with {type(member.error).__name__}: {_innermost(member.error)}")
        elif life.ends and not member.done.is_set():
            found.add("hangs", f"{member.name} in round {node.state.round} of {rounds}")
        elif life.ends and node.state.round < rounds:
            found.add("ended", f"{member.name} after {node.state.round} of {rounds} rounds")


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _nobody_is_banned(stage: Stage, found: Violations) -> None:
    honest = stage.honest_peers
    for life in stage.lives:
        for event in life.member.told("banned"):
            if event["peer"] in honest:
                found.add("banned", f"{life.member.name} has banned an honest node for {event['reason']}")


def _nothing_breaks(stage: Stage, found: Violations) -> None:
    for life in stage.lives:
        for error in life.member.transport.handler_errors:
            found.add("bug", f"{life.member.name}: a handler let out {error!r}")
        for event in life.member.told("warning"):
            if any(words in event["message"] for words in ("Error(", "could not be read", "no snapshot could")):
                found.add("bug", f"{life.member.name}: {event['message']}")
    if stage.bootstrap_transport is not None:
        for error in stage.bootstrap_transport.handler_errors:
            found.add("bug", f"the bootstrap node: a handler let out {error!r}")


def _adoptions(stage: Stage, found: Violations) -> None:
    """Of whom the honest have taken a model: others were there in every scenario."""
    if not stage.scenario.robust:
        return
    f, hostile = stage.scenario.f, {str(peer) for peer in stage.ever_hostile}
    for it in stage.adoptions:
        liars = len(it.donors & hostile)
        rows = len(it.donors) + (len(it.donors) <= 2 * f)  # the own model beside few (decision 37)
        if liars and (len(it.donors) <= f or 2 * liars >= rows):
            found.add("adopted", f"{it.name} at {it.at:.0f} s of {len(it.donors)} donors, {liars} of them hostile")


def _first_alone(stage: Stage, found: Violations) -> None:
    """Who was alone before all others came trains with them in the end, and has gone back once, or was caught up."""
    for life in stage.lives:
        if stage.scenario.kind in UNLIKE and life.ends and is_alone(stage, life):
            found.add("alone", f"{life.member.name} has closed rounds without the others, who were still there")
        if stage.scenario.kind in ALL_BACK and life.ends and not _is_among_others(stage, life):
            found.add("alone", f"{life.member.name} has closed its last rounds without the others")
        caught_up = _was_caught_up(stage, life)
        if stage.scenario.kind in FIRST_ALONE and life.number == 0 and len(life.member.told("joined")) != 1 - caught_up:
            found.add("alone", f"{life.member.name} has joined {len(life.member.told('joined'))} times")


def _was_caught_up(stage: Stage, life: Life) -> bool:
    """Whether this is a first one that had so slow a liar beside it that the others caught up (seed 11160)."""
    first = stage.scenario.kind in FIRST_ALONE and life.number == 0
    return first and not life.member.told("joined") and _is_among_others(stage, life)


LAST_ROUNDS: Final = 3
"""Rounds in which those that have come back are together, before as many last ones: members drift apart by two, and in
those others may have left."""


def _is_among_others(stage: Stage, life: Life) -> bool:
    honest = {str(peer) for peer in stage.honest_peers}
    last = life.member.told("round")[-2 * LAST_ROUNDS : -LAST_ROUNDS]
    return all(len(honest.intersection(event["staleness"])) >= COMPANY_SHARE * (len(honest) - 1) for event in last)


def first_ends(stage: Stage) -> float:
    """When the first of the pace of most had closed its last round. Others train on, and have fewer and fewer."""
    parts = stage.scenario.parts
    of_most = [life for life in stage.lives if life.ends and parts[life.number].slowness == 1.0]
    return min(life.member.told("round")[-1]["at"] for life in of_most if life.member.told("round"))


def is_alone(stage: Stage, life: Life) -> bool:
    """Whether one of unlike nodes, of the pace of most, had too few others to withstand the liars in the last rounds in
    which these were there. Who is faster or slower is told that it is."""
    if stage.scenario.parts[life.number].slowness != 1.0:
        return False
    honest = {str(peer) for peer in stage.honest_peers}
    rounds = [event for event in life.member.told("round") if event["at"] <= first_ends(stage)]
    here = [len(honest.intersection(event["staleness"])) for event in rounds[-LAST_ROUNDS:]]
    return len(rounds) >= LAST_ROUNDS and fmean(here) < 2 * stage.scenario.f


def _shifts(stage: Stage, found: Violations) -> None:
    """Data shift nowhere, or at one of five as it says: fewer than half that lie make no shift everywhere."""
    for life in stage.lives:
        for event in life.member.told("shift"):
            found.add("shift", f"{life.member.name} tells a shift {event['where']}, with {event['said']} that say so")


def _rounds(stage: Stage, found: Violations) -> None:
    """Nobody jumps beyond the others, or behind what it has kept."""
    if not stage.scenario.robust:
        return
    for life in stage.lives:
        for event in life.member.told("joined"):
            reached = max((_round_at(other, event["at"]) for other in stage.lives if other is not life), default=0)
            if event["round"] > reached + 1:
                found.add(
                    "jumped", f"{life.member.name} to round {event['round']}, and the others have reached {reached}"
                )
            if life.resumed_round is not None and event["round"] < life.resumed_round:
                found.add(
                    "behind",
                    f"{life.member.name} from its checkpoint of round {life.resumed_round} to {event['round']}",
                )


def _round_at(life: Life, at: float) -> int:
    """How many rounds it had closed."""
    if life.role != "trainer":
        return 0
    closed = [event["round"] for event in life.member.told("round") if event["at"] <= at]
    return max([*closed, life.resumed_round or 0])


def _company(stage: Stage, clean: Clean, found: Violations) -> None:
    """Nobody is left alone, or among hostile nodes; but in an open swarm with fewer places than members who comes late
    is among the longest-standing of nobody, and may be (docs/security.md, sybils)."""
    scenario = stage.scenario
    least = min(COMPANY_SHARE * clean.company, PLACES_SHARE * scenario.degree)
    scarce = scenario.kind == "open" and scenario.degree < scenario.honest + scenario.hostile
    for life in stage.lives:
        there = company_of(stage, life)
        held = life.role == "trainer" and not (scarce and life.began) and not _was_caught_up(stage, life)
        if held and there is not None and there < least:
            found.add(
                "deserted", f"{life.member.name} closes rounds with {there:.1f} honest members, of {clean.company:.1f}"
            )


def company_of(stage: Stage, life: Life) -> float | None:
    """How many honest members a node's rounds had in the mean; None for too short a life."""
    honest = {str(peer) for peer in stage.honest_peers}
    rounds = life.member.told("round")
    if stage.scenario.kind in ALL_BACK:
        rounds = [event for event in rounds if event["at"] > max(other.began for other in stage.lives)]
    elif stage.scenario.kind in UNLIKE:
        rounds = [event for event in rounds if event["at"] <= first_ends(stage)]
    elif went_back(stage, life):
        rounds = [event for event in rounds if event["at"] > life.member.told("joined")[0]["at"]]
    return fmean(len(honest.intersection(event["staleness"])) for event in rounds) if len(rounds) >= 5 else None


def mean_company(stage: Stage) -> float:
    """Of all honest trainers."""
    found = [there for life in stage.lives if life.role == "trainer" and (there := company_of(stage, life)) is not None]
    return fmean(found)


def refined_of(stage: Stage, life: Life) -> float:
    """How many refinements a node had of each of the other honest ones as its rounds closed, in the mean."""
    honest = {str(peer) for peer in stage.honest_peers} - {str(life.peer)}
    rounds = [event.get("layers") or {} for event in life.member.told("round")]
    return fmean(layers.get(peer, 0) for layers in rounds for peer in honest) if rounds and honest else 0.0


def mean_refined(stage: Stage) -> float:
    """Of all honest trainers."""
    return fmean(refined_of(stage, life) for life in stage.lives if life.role == "trainer")


def _refined(stage: Stage, clean: Clean, found: Violations) -> None:
    """Edges between honest nodes have their refinements, whoever asks for those as well."""
    for life in stage.lives:
        if stage.scenario.kind in LAYERS and refined_of(stage, life) < REFINED_SHARE * clean.refined:
            found.add(
                "coarse",
                f"{life.member.name} has {refined_of(stage, life):.2f} refinements of an honest node,"
                f" of {clean.refined:.2f}",
            )


def mean_moved(stage: Stage) -> float:
    """How often honest trainers moved by the other region's model, in the mean."""
    trainers = [life.member for life in stage.lives if life.role == "trainer"]
    return fmean(sum(event["moved"] for event in member.told("regions")) for member in trainers)


def _moved(stage: Stage, clean: Clean, found: Violations) -> None:
    """Regions stay together, whoever publishes for them, or keeps others from it."""
    moved = mean_moved(stage)
    if moved < MOVED_SHARE * clean.moved:
        found.add("apart", f"nodes move by the other region's model {moved:.2f} times, of {clean.moved:.2f}")


def _places(stage: Stage, found: Violations) -> None:
    """Hostile nodes, however many, have f seats of a round together, and half of a node's places."""
    f, hostile = stage.scenario.f, {str(peer) for peer in stage.ever_hostile}
    for life in stage.lives:
        for event in life.member.told("round"):
            seats = len(hostile.intersection(event["staleness"]))
            if seats > f:
                found.add(
                    "seats", f"{life.member.name}'s round {event['round']} has {seats} hostile members, and f = {f}"
                )
                break


def losses_of(stage: Stage) -> dict[str, float]:
    """Of every honest node that has come to its end."""
    return {
        life.member.name: life.member.eval_loss
        for life in stage.lives
        if life.ends and life.member.error is None and "eval_loss" in life.member.node.journal.last
    }


def steps_of(stage: Stage) -> int:
    """Of all honest nodes together."""
    return sum(life.member.node.inner.steps for life in stage.lives if life.role == "trainer")


def mean_loss(stage: Stage) -> float:
    """Of the honest nodes."""
    losses = losses_of(stage)
    return fmean(losses.values()) if losses else float("nan")


def _loss(stage: Stage, clean: Clean, found: Violations) -> None:
    if stage.scenario.kind == "meeting":  # owners of parts are not held to anything (p2ptrain/sync/group_allreduce.py)
        return
    most = LOSS_FACTOR * clean.loss + LOSS_FLOOR
    for name, loss in losses_of(stage).items():
        if not loss <= most * (1.5 if name == "watcher" else 1.0):
            found.add("loss", f"{name} ends at {loss:.3g}, and {clean.loss:.3g} without hostile nodes")
    for life in stage.lives:
        for event in life.member.told("evaluated") if life.role == "observer" else ():
            first = life.member.told("evaluated")[0]["eval_loss"]
            if not event["eval_loss"] <= 2 * max(first, 3.4):
                found.add(
                    "captured", f"{life.member.name} evaluates {event['eval_loss']:.3g} after {event['round']} rounds"
                )
