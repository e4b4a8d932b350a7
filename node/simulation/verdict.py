"""What came of a simulation: figures, a digest of all events, and which invariants were broken."""

import hashlib
import math
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean
from typing import Any, Protocol

from node.simulation.derived import share_of
from node.simulation.observations import Observations
from node.simulation.scenario import Invariants, NodeGroup, Scenario
from node.simulation.scenario_file import LoadedScenario
from node.system.errors import P2PTrainError


@dataclass(frozen=True, kw_only=True)
class GroupFigures:
    """What a group's nodes did. Means are over nodes; None where nothing was measured."""

    group: str
    nodes: int
    byzantine: bool
    finished: int
    rounds_min: int
    rounds_max: int
    loss: float | None
    utilization: float | None
    bytes_sent_mean: float
    bytes_sent_max: int
    staleness_mean: float | None
    staleness_max: int
    starts: int
    """Processes, restarts included."""


@dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """The result. Figures are of the honest trainers, unless they say otherwise."""

    events_digest: str
    """Of all events of all nodes, less what differs between machines. Equal digests: the same run."""
    scenario: str
    mode: str
    seed: int
    crypto: str
    """How signatures were verified: `shared` (once for all nodes), `each`, or `none` in the large mode."""
    virtual_s: float
    wall_s: float
    nodes: int
    honest: int
    finished: int
    rounds_min: int
    rounds_max: int
    loss_mean: float | None
    """Mean over nodes of the newest held-out loss."""
    bytes_sent_mean: float
    bytes_sent_max: int
    staleness_max: int
    honest_bans: int
    """How often an honest node banned an honest one."""
    scheduler_steps: int
    most_steps_in_a_second: int
    groups: tuple[GroupFigures, ...]
    broken: tuple[str, ...]
    """Invariants that do not hold, errors of honest nodes and of liars that closed no round, honest nodes that have
    diverged, a livelock."""
    replay: str
    """The command that plays this again."""
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values: a mean that is not finite, of nodes of which one has diverged, is null."""
        told = asdict(self)
        for table in (told, *told["groups"]):
            table |= {
                key: None for key, value in table.items() if isinstance(value, float) and not math.isfinite(value)
            }
        return told


def replay_command(loaded: LoadedScenario) -> str:
    """Return the command that plays a scenario again."""
    words = ["p2ptrain", "simulate", str(loaded.path), "--seed", str(loaded.scenario.seed)]
    words += ["--until", str(loaded.scenario.until_s).removesuffix(".0")]
    words += [] if loaded.calibration is None else ["--calibration", str(loaded.calibration)]
    for text in loaded.sets:
        words += ["--set", text]
    return shlex.join(words)


class JudgedNode(Protocol):
    """A node of a simulation, as it is judged by."""

    name: str
    group: NodeGroup
    told: Observations
    finished: bool
    lied: bool
    starts: int

    @property
    def bytes_sent(self) -> int:
        """All that it sent."""

    @property
    def peer_id(self) -> str:
        """What others call it."""

    @property
    def error(self) -> P2PTrainError | None:
        """What ended it."""


class Course(Protocol):
    """What a simulation left, of either mode."""

    @property
    def loaded(self) -> LoadedScenario:
        """What was played."""

    @property
    def members(self) -> Mapping[str, JudgedNode]:
        """All nodes by name, in order."""

    @property
    def honest(self) -> Sequence[JudgedNode]:
        """Those that never lied and train."""

    @property
    def virtual_s(self) -> float:
        """Seconds on its own clock."""

    @property
    def wall_s(self) -> float:
        """Seconds that it took."""

    @property
    def steps(self) -> int:
        """Of the scheduler; 0 where there is none."""

    @property
    def most_steps(self) -> int:
        """Of the scheduler in one virtual second."""

    @property
    def livelock(self) -> str:
        """Who did not let time pass; empty: nobody."""


def judged(course: Course) -> SimulationResult:
    """Return what came of a simulation."""
    scenario, honest = course.loaded.scenario, course.honest
    digest = hashlib.blake2b(digest_size=16)
    for name, member in course.members.items():
        digest.update(f"{name} {member.told.digest.hexdigest()}\n".encode())
    sent = [member.bytes_sent for member in honest]
    return SimulationResult(
        events_digest=digest.hexdigest(),
        scenario=course.loaded.path.name,
        mode=scenario.mode,
        seed=scenario.seed,
        crypto=scenario.crypto if scenario.mode == "faithful" else "none",
        virtual_s=round(course.virtual_s, 6),
        wall_s=round(course.wall_s, 2),
        nodes=len(course.members),
        honest=len(honest),
        finished=sum(member.finished for member in honest),
        rounds_min=min((member.told.rounds for member in honest), default=0),
        rounds_max=max((member.told.rounds for member in honest), default=0),
        loss_mean=_mean(member.told.loss for member in honest),
        bytes_sent_mean=_mean(sent) or 0.0,
        bytes_sent_max=max(sent, default=0),
        staleness_max=max((member.told.staleness for member in honest), default=0),
        honest_bans=len(_honest_bans(honest)),
        scheduler_steps=course.steps,
        most_steps_in_a_second=course.most_steps,
        groups=tuple(_figures(name, members) for name, members in _by_group(course.members.values()).items()),
        broken=tuple(_broken(course)),
        replay=replay_command(course.loaded),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Return the versions that a run depends on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("p2ptrain", "torch", "trio", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _broken(course: Course) -> Iterable[str]:
    if course.livelock:
        yield course.livelock
    for member in course.members.values():
        if member.error is not None and member.lied and member.told.rounds:
            continue  # a liar that the others leave alone ends so
        if member.error is not None:
            yield f"{member.name} failed: {member.error.line()}"
        elif not member.lied and (loss := member.told.loss) is not None and not math.isfinite(loss):
            yield f"{member.name} has diverged: its held-out loss is {loss}"
    if not course.honest:
        yield "no node is left to judge by: every trainer lies, or there is none"
    yield from broken_invariants(course.loaded.scenario, course.honest)


def broken_invariants(scenario: Scenario, honest: Sequence[JudgedNode]) -> Iterable[str]:
    """Yield a line for each invariant that does not hold of these nodes."""
    asked: Invariants = scenario.invariants
    short = [member.name for member in honest if not member.finished]
    if asked.all_finish and short:
        yield f"all_finish: {_some(short)} did not come to the last round"
    if asked.finish_share is not None and len(honest) - len(short) < share_of(len(honest), asked.finish_share):
        yield f"finish_share: {len(honest) - len(short)} of {len(honest)} came to the last round"
    if asked.no_honest_ban and (bans := _honest_bans(honest)):
        yield f"no_honest_ban: {_some(bans)}"
    if asked.rounds_min is not None:
        few = [f"{it.name} ({it.told.rounds})" for it in honest if it.told.rounds < asked.rounds_min]
        if few:
            yield f"rounds_min: {_some(few)} closed fewer than {asked.rounds_min} rounds"
    loss = _mean(member.told.loss for member in honest)
    if asked.loss_max is not None and not (loss is not None and loss <= asked.loss_max):
        yield f"loss_max: the mean held-out loss is {_told(loss)}, above {asked.loss_max:g}"
    stale = max((member.told.staleness for member in honest), default=0)
    if asked.staleness_max is not None and stale > asked.staleness_max:
        yield f"staleness_max: a model in an average lagged by {stale} rounds, more than {asked.staleness_max}"
    used = _mean(member.told.utilization for member in honest)
    if asked.utilization_min is not None and not (used is not None and used >= asked.utilization_min):
        yield f"utilization_min: the mean is {_told(used)}, below {asked.utilization_min:g}"
    sent = max((member.bytes_sent for member in honest), default=0)
    if asked.bytes_max is not None and sent > asked.bytes_max:
        yield f"bytes_max: a node sent {sent} bytes, more than {asked.bytes_max}"
    if asked.recovers_within is not None and scenario.events:
        yield from _not_recovered(scenario, honest, asked.recovers_within)


def _not_recovered(scenario: Scenario, honest: Sequence[JudgedNode], rounds: int) -> Iterable[str]:
    begins = min(event.at_s for event in scenario.events)
    ends = max(event.at_s + (getattr(event, "for_s", None) or 0.0) for event in scenario.events)
    before, after = [], []
    for member in honest:
        earlier = [loss for at, _, loss in member.told.losses if at < begins]
        there = max((number for at, number in member.told.closed if at <= ends), default=0)
        later = [loss for at, number, loss in member.told.losses if at > ends and number <= there + rounds]
        if earlier and later:
            before.append(earlier[-1])
            after.append(min(later))
    if not after:
        yield f"recovers_within: no node was evaluated before {begins:g} s and within {rounds} rounds after {ends:g} s"
    elif not fmean(after) <= fmean(before):  # as where one is NaN
        yield (
            f"recovers_within: {rounds} rounds after {ends:g} s the mean held-out loss is {fmean(after):.4f}, "
            f"above the {fmean(before):.4f} of before {begins:g} s"
        )


def _honest_bans(honest: Sequence[JudgedNode]) -> list[str]:
    names = {str(member.peer_id): member.name for member in honest}
    return [f"{it.name} banned {names[peer]}" for it in honest for peer in it.told.banned if peer in names]


def _by_group(members: Iterable[JudgedNode]) -> dict[str, list[JudgedNode]]:
    found: dict[str, list[JudgedNode]] = {}
    for member in members:
        found.setdefault(member.group.name, []).append(member)
    return found


def _figures(name: str, members: Sequence[JudgedNode]) -> GroupFigures:
    sent = [member.bytes_sent for member in members]
    return GroupFigures(
        group=name,
        nodes=len(members),
        byzantine=any(member.lied for member in members),
        finished=sum(member.finished for member in members),
        rounds_min=min(member.told.rounds for member in members),
        rounds_max=max(member.told.rounds for member in members),
        loss=_mean(member.told.loss for member in members),
        utilization=_mean(member.told.utilization for member in members),
        bytes_sent_mean=fmean(sent),
        bytes_sent_max=max(sent),
        staleness_mean=_mean(member.told.mean_staleness for member in members),
        staleness_max=max(member.told.staleness for member in members),
        starts=sum(member.starts for member in members),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _told(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
