"""Plays a plan: the same plan gives the same events, in any process."""

import gc
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from unittest import mock

import torch
import trio
import trio.testing
from adversary_invariants import (
    LOOK_S,
    STRETCH,
    STRETCH_S,
    Clean,
    Violations,
    Watch,
    judge,
    mean_company,
    mean_loss,
    mean_moved,
    mean_refined,
    steps_of,
)
from adversary_move import perform
from adversary_plan import Plan, draw
from adversary_scenario import Scenario
from adversary_shrink import shrink
from adversary_stage import Stage
from adversary_task import Quirky
from sim_swarm import swarm

from gossip.core import envelope, identity
from gossip.transport.memory.network import LinkQuality
from p2ptrain.compress import COMPRESSORS

MOST_S = 900.0
"""Virtual seconds of a clean run, at most."""

MEMORY = Path("/dev/shm")
"""A disk that fsync costs nothing on, where there is one."""

LEFT_OUT = ("rss_bytes", "cpu_s", "free_bytes", "path", "checkpoint", "run_dir")
"""Fields of events that differ between machines, or from one moment to the next."""


@dataclass(frozen=True)
class Outcome:
    """What came of a plan. `digest`: of all events of all honest nodes."""

    plan: Plan
    violations: tuple[str, ...]
    names: tuple[str, ...]
    loss: float
    clean_loss: float
    seconds: float
    digest: str
    events: tuple[str, ...] = ()


def play(plan: Plan, *, keep_events: bool = False) -> Outcome:
    """Run it, beside the clean run of its scenario."""
    clean = clean_run(plan.scenario.clean)
    found = Violations()
    stage, seconds = _played(plan, found, clean)
    judge(stage, clean, seconds, found)
    events = tuple(_told(stage))
    return Outcome(
        plan=plan,
        violations=tuple(found.lines),
        names=tuple(found.names),
        loss=mean_loss(stage),
        clean_loss=clean.loss,
        seconds=seconds,
        digest=hashlib.blake2b("\n".join(events).encode(), digest_size=16).hexdigest(),
        events=events if keep_events else (),
    )


@cache
def clean_run(scenario: Scenario) -> Clean:
    """The same without hostile nodes, which must keep every invariant itself."""
    found = Violations()
    stage, seconds = _played(Plan(seed=0, scenario=scenario, moves=()), found, None)
    judge(stage, None, seconds, found)
    assert not found.lines, (scenario, found.lines)
    return Clean(
        loss=mean_loss(stage),
        seconds=seconds,
        steps=steps_of(stage),
        company=mean_company(stage),
        refined=mean_refined(stage),
        moved=mean_moved(stage),
    )


def _played(plan: Plan, found: Violations, clean: Clean | None) -> tuple[Stage, float]:
    most = MOST_S if clean is None else clean.seconds * STRETCH + STRETCH_S + 1.0
    scenario = plan.scenario
    ended = 0.0

    async def main(folder: Path) -> Stage:
        nonlocal ended
        quality = LinkQuality(loss=scenario.loss, latency_s=scenario.latency_s)
        async with (
            swarm(folder, seed=plan.seed, link=quality, keep_errors=True) as members,
            trio.open_nursery() as nursery,
        ):
            stage = Stage(scenario, members, nursery, folder, plan.seed)
            watch = Watch(stage, found)
            nursery.start_soon(_look, watch)
            for made in plan.moves:
                nursery.start_soon(perform, made, stage)
            with trio.move_on_after(most):
                await stage.play()
            ended = trio.current_time()
            watch.look()
            nursery.cancel_scope.cancel()
        return stage

    with _repeatable(plan.seed), tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(main, Path(folder), clock=clock), ended


async def _look(watch: Watch) -> None:
    while True:
        await trio.sleep(LOOK_S)
        watch.look()


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Trio's order, and torch's threads. Signatures are pure functions, and are
    checked once for all nodes. Garbage is collected between runs."""
    scheduler = trio._core._run
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
    scheduler._r.seed(seed)
    torch.set_num_threads(1)
    verify, name = lru_cache(1 << 16)(identity.verify), lru_cache(1 << 12)(identity.peer_id_of)
    gc.collect()
    gc.freeze()  # what is left is torch's and ours: it need not be looked through again
    gc.disable()
    try:
        with (
            plugged_in("quirky", Quirky),
            mock.patch.object(envelope, "verify", verify),
            mock.patch.object(envelope, "peer_id_of", name),
        ):
            yield
    finally:
        gc.enable()


@contextmanager
def plugged_in(name: str, codec: type) -> Iterator[None]:
    """As a package that declares an entry point, for the length of the block."""
    COMPRESSORS.register(name)(codec)
    try:
        yield
    finally:
        del COMPRESSORS._factories[name]


def _told(stage: Stage) -> Iterator[str]:
    for life in stage.lives:
        for event in life.member.events:
            fields = {key: value for key, value in event.items() if key not in LEFT_OUT}
            yield f"{life.member.name} {sorted(fields.items(), key=lambda pair: pair[0])!r}"


def shortest(outcome: Outcome) -> Plan:
    """The shortest plan found that breaks what this one broke first."""
    broken = outcome.names[0]
    return shrink(outcome.plan, lambda less: broken in play(less).names)


def explained(outcome: Outcome) -> str:
    """What was broken, how to see it again, and the shortest list of moves that does it."""
    plan = shortest(outcome)
    moves = [f"  {made}" for made in plan.moves]
    replay = f"python tests/adversary/play.py {outcome.plan.seed}"
    broken = [f"  {line}" for line in outcome.violations]
    return "\n".join(["", *broken, f"played again by: {replay}", f"the shortest, in {plan.scenario}:", *moves])


def broken_by(seed: int) -> tuple[int, float, tuple[str, ...]]:
    """For a pool of processes: the seed, how long its run took, and what it broke."""
    outcome = play(draw(seed))
    return seed, outcome.seconds, outcome.violations
