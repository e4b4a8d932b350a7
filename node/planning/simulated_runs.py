"""A plan against a simulation of the same swarm: random configurations, each planned and then played.

A configuration is drawn by a seed and a number, so that any of them can be played again by itself. It is planned by
`forecast`, and played from the very scenario that `p2ptrain plan --scenario` writes (rehearsal.py): by default in the
large mode, which has real learning rules, payloads and rounds, without the protocol. What both give is a time to one
held-out loss. A plan knows no absolute loss, so that its time is right up to a factor: ranks are what is compared.

The learning rate is constant after its warm-up: with one that falls over the run, the time to a loss would depend on
how long a run was asked for. Evaluations take no time in either.
"""

import math
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tomli_w
import torch

from node.config.schema import from_raw
from node.planning.accelerators import accelerator
from node.planning.advice import NOTCHES
from node.planning.forecast import PlanRequest, RunForecast, forecast
from node.planning.model_shape import ModelShape
from node.planning.rehearsal import scenario_toml
from node.planning.round_timing import PlannedLink
from node.simulation.large.large import NOT_CHARGED, play_large
from node.simulation.large.large_swarm import LargeSwarm
from node.simulation.observations import Observations
from node.simulation.scenario_file import LoadedScenario, load_scenario
from p2ptrain import tasks

TASK: Final = "digits"
BATCH: Final = 16
TARGET_LOSS: Final = 0.2
"""Nats a digit, held out: what eight members come to in some 80 steps."""
MOST_STEPS: Final = 400
"""Inner steps of a member after which a run that has not come to the loss is given up."""
STEPS_AN_EVALUATION: Final = 12
"""Inner steps between two evaluations, where a round is no longer than that: all nodes' evaluations take as long as all
their steps then."""
EPSILON: Final = 1e-8
"""Of AdamW. The task's own is for runs of a thousand steps."""
NEVER: Final = 1_000_000
"""Rounds between two evaluations, of a plan that is to count none."""

MEMBERS: Final = (4, 6, 8, 12, 16)
DEGREES: Final = (3, 4, 6, 8)
MOST_H: Final = 64
UP_MBIT: Final = (0.1, 10.0)
STEP_S: Final = (0.02, 0.5)
RTT_S: Final = (0.01, 0.3)
DOWN_TO_UP: Final = 5.0
RULES: Final[Sequence[Mapping[str, Any]]] = (
    {"strategy": "tracked_gossip", "compressor": "q2"},
    {"strategy": "tracked_gossip", "compressor": "sign1"},
    {"strategy": "tracked_gossip", "compressor": "int8"},
    {"strategy": "tracked_gossip", "compressor": "none"},
    {"strategy": "sparse_loco", "compressor": "lossless+topk"},
    {"strategy": "sparse_loco", "compressor": "lossless+topk", "ratio": 0.1, "value_bits": 2},
)
"""Strategies and codecs that the planner has rows of, and the large mode plays."""


@dataclass(frozen=True, kw_only=True)
class SwarmSetup:
    """One configuration, as a plan and a scenario are told it."""

    number: int
    nodes: int
    degree: int
    up_mbit: float
    step_s: float
    rtt_s: float
    inner_steps: int
    sync: Mapping[str, Any]
    task: Mapping[str, Any] = field(default_factory=lambda: {"name": TASK})

    def request(self) -> PlanRequest:
        """Return it as a plan's request."""
        settings = {
            "task": dict(self.task),
            "train": {
                "inner_steps": self.inner_steps,
                "batch_size": BATCH,
                "schedule": "constant",
                "eval_every": NEVER,
                "epsilon": EPSILON,
            },
            "sync": dict(self.sync),
            "network": {"degree": self.degree},
        }
        return PlanRequest(
            shape=_shape(str(self.task["name"])),
            length=1,
            config=from_raw(settings),
            nodes=self.nodes,
            link=PlannedLink(
                up_bits_s=1e6 * self.up_mbit, down_bits_s=1e6 * DOWN_TO_UP * self.up_mbit, rtt_s=self.rtt_s
            ),
            device=accelerator("cpu-core"),
            tokens=float(MOST_STEPS * BATCH * 8),
            step_s=self.step_s,
        )


@dataclass(frozen=True, kw_only=True)
class SimulatedTime:
    """What a simulation found."""

    seconds: float
    """Virtual, until the mean held-out loss was that; infinite where it never was."""
    round_s: float
    """Mean of the rounds until then."""
    steps: float
    """Inner steps of a member until then, at the planned steps a round; infinite as `seconds` is."""


class _LossReached(Exception):  # noqa: N818 - no error: it ends a simulation early
    """The loss is there: nothing more is needed."""


def drawn_setup(number: int, *, seed: int) -> SwarmSetup:
    """Return the configuration of this number under this seed, whatever others were drawn."""
    rng = np.random.default_rng([seed, number])

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    nodes = int(rng.choice(MEMBERS))
    return SwarmSetup(
        number=number,
        nodes=nodes,
        degree=min(int(rng.choice(DEGREES)), nodes - 1),
        up_mbit=between(*UP_MBIT),
        step_s=between(*STEP_S),
        rtt_s=between(*RTT_S),
        inner_steps=int(rng.choice([each for each in NOTCHES if each <= MOST_H])),
        sync=RULES[int(rng.integers(len(RULES)))],
    )


def foretold(setup: SwarmSetup) -> RunForecast:
    """Return the plan of a configuration."""
    return forecast(setup.request())


def simulated_time(
    setup: SwarmSetup, *, seed: int = 1, target: float = TARGET_LOSS, most_steps: int = MOST_STEPS
) -> SimulatedTime:
    """Play a configuration in the large mode until its mean held-out loss is `target`. Only virtual time counts: where
    this process stops does not change it."""

    def look(swarm: LargeSwarm) -> None:
        if _crossing(_curve([node.told for node in swarm.nodes]), target) is not None:
            seen.append(swarm)
            raise _LossReached

    seen: list[LargeSwarm] = []
    try:
        swarm = play_large(loaded_setup(setup, seed=seed, most_steps=most_steps), look).swarm
    except _LossReached:
        (swarm,) = seen
    return time_to_loss([node.told for node in swarm.nodes], setup.inner_steps, target)


def loaded_setup(setup: SwarmSetup, *, seed: int, most_steps: int = MOST_STEPS, mode: str = "large") -> LoadedScenario:
    """Return a configuration as a scenario: what a plan of it writes, evaluated often."""
    found = foretold(setup)
    raw = tomllib.loads(scenario_toml(found))
    rounds = max(2, math.ceil(most_steps / setup.inner_steps))
    raw["mode"], raw["seed"] = mode, seed
    raw["until_s"] = 10.0 * rounds * found.times.round_s + 60
    raw["train"] |= {"rounds": rounds, "eval_every": max(1, STEPS_AN_EVALUATION // setup.inner_steps)}
    for charge in NOT_CHARGED if mode == "large" else ("evaluate_s",):
        raw["devices"]["planned"].pop(charge, None)
    with tempfile.TemporaryDirectory(prefix="p2ptrain-plan-") as folder:
        file = Path(folder) / f"setup-{setup.number}.toml"
        file.write_text(tomli_w.dumps(raw), encoding="utf-8")
        return load_scenario(file)


def time_to_loss(told: Sequence[Observations], inner_steps: int, target: float) -> SimulatedTime:
    """Return when the mean over nodes was at `target`, between two evaluations by the logarithm of the loss."""
    curve = _curve(told)
    found = _crossing(curve, target)
    if found is None:
        last_s, last = curve[-1][:2] if curve else (math.nan, 1)
        return SimulatedTime(seconds=math.inf, round_s=last_s / last, steps=math.inf)
    seconds, rounds = found
    return SimulatedTime(seconds=seconds, round_s=seconds / rounds, steps=rounds * inner_steps)


def _curve(told: Sequence[Observations]) -> list[tuple[float, float, float]]:
    """Mean second, rounds and mean loss of the evaluated nodes, of each round that all of them have evaluated."""
    by_round: dict[int, list[tuple[float, float]]] = {}
    watched = sum(bool(each.losses) for each in told)
    for each in told:
        for seconds, round_, loss in each.losses:
            by_round.setdefault(round_, []).append((seconds, loss))
    return [
        (float(np.mean([s for s, _ in found])), float(round_), float(np.mean([loss for _, loss in found])))
        for round_, found in sorted(by_round.items())
        if len(found) >= watched
    ]


def _crossing(curve: Sequence[tuple[float, float, float]], target: float) -> tuple[float, float] | None:
    """Second and rounds at which a curve first is at `target`; None: never."""
    before_s, before_round, before = 0.0, 0.0, math.nan
    for seconds, round_, loss in curve:
        if loss <= target:
            if math.isnan(before):
                return seconds, round_
            share = math.log(before / target) / math.log(before / loss)
            return before_s + share * (seconds - before_s), before_round + share * (round_ - before_round)
        before_s, before_round, before = seconds, round_, loss
    return None


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; values alike share their mean rank, so that all that is infinite is last
    together. ValueError below three pairs."""
    if len(one) != len(other) or len(one) < 3:
        raise ValueError(f"a rank correlation is of three pairs or more, not of {len(one)} and {len(other)}")
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def correlation_interval(
    one: Sequence[float], other: Sequence[float], *, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the 95% interval of the rank correlation, by drawing pairs anew with replacement."""
    rng = np.random.default_rng(seed)
    a, b = np.asarray(one), np.asarray(other)
    found = []
    for _ in range(draws):
        chosen = rng.integers(0, len(a), len(a))
        found.append(rank_correlation(a[chosen].tolist(), b[chosen].tolist()))
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return float(low), float(high)


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    _, place, count = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    means: npt.NDArray[np.float64] = (2 * ends - count + 1) / 2
    return means[place]


def _shape(task: str) -> ModelShape:
    """The shape of a small task's model: of it a plan whose step is given reads the number of parameters alone."""
    with torch.device("meta"):
        count = sum(each.numel() for each in tasks.get(task).build_model().parameters())
    return ModelShape(
        parameters=count,
        trained=count,
        multiplied=count,
        layers=1,
        width=1,
        heads=1,
        head_width=1,
        vocabulary=1,
        is_assumed=True,
        source=task,
    )
