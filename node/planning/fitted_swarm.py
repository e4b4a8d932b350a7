"""What a calibration learns from rounds of real nodes: how simulated ones are to compute so that theirs are as long.

Rounds of two lengths give the time of a step, and what a round takes from training beside its steps. How long rounds
are, their exchanges, encoding and averaging, and how unlike each other, is in the nodes' logs. Four charges follow from
these, by simulating the same rounds with charges a little nearer each time:

- `rates.seconds_a_transfer` by how long a round is,
- `swarm.wake_s` by how long an exchange is,
- `swarm.crowding` by how long encoding and averaging take,
- `swarm.round_sigma` by how unlike each other rounds are.

Nobody learns in these simulations what the nodes learned: they train a quadratic, which takes no time of its own.
"""

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import tomli_w

from node.config.schema import from_raw
from node.planning.calibrated import MOST_SIGMA, measured_device
from node.planning.calibration import MachineCalibration, SwarmRounds, SwarmTiming
from node.simulation.like_run import real_nodes
from node.simulation.scenario import DeviceClass
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play

ONE_WAYS: Final = 7
"""Times that an exchange goes one way, one after another: the announcement, two round trips until the stream can be
used, the request, the answer."""
LOOPBACK_MS: Final = 0.05
"""One way, between processes of one machine; what an event loop takes on top is measured."""
SIMULATIONS: Final = 8
SIMULATED: Final = 60
"""Rounds of a simulation, at most: its mean of them is within two hundredths of that of many."""
SPREAD_COUNTS: Final = 0.5
"""Rounds by which a round becomes longer where `round_sigma` grows by 1, about."""
NEAR: Final = 0.015
"""Near enough, of what is to be alike."""
MOST_CHANGE: Final = 2.0
"""Times that a charge becomes, at most, from one simulation to the next."""
LEAST_S: Final = 1e-5
"""Of what is divided by."""
LEAST_SHARE: Final = 0.1
"""Of a round, that is taken for what it loses where steps seem to take all of it: a charge then moves on, and not to
its bound."""
APART: Final = 0.3
"""By which share of their steps two kinds of rounds are to differ for a line through them."""
MOST_CROWDING: Final = 100.0
UNTIL_S: Final = 36_000.0


def rounds_in(run: Path, inner_steps: int) -> SwarmRounds:
    """Return what the logs of a run's nodes tell of its rounds, the first left out. UsageError where there are none."""
    nodes = real_nodes(run)
    exchanges = [node.mean_exchange_s for node in nodes if node.mean_exchange_s is not None]
    return SwarmRounds(
        members=len(nodes),
        inner_steps=inner_steps,
        rounds=max(node.rounds for node in nodes),
        steps=statistics.fmean(node.steps for node in nodes),
        round_s=statistics.fmean(node.all_rounds_s / max(1, node.rounds - 1) for node in nodes),
        round_sigma=statistics.median(node.round_sigma for node in nodes),
        exchange_s=statistics.fmean(exchanges) if exchanges else 0.0,
        work_s=statistics.fmean(node.mean_work_s for node in nodes),
    )


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Charges, and the rounds of nodes that were simulated with them."""

    calibration: MachineCalibration
    simulated: SwarmRounds
    off: float
    """By what share of a round these are unlike the real ones."""


def fitted(measured: MachineCalibration, first: SwarmRounds, second: SwarmRounds) -> Tried:
    """Return the nearest of `fits`."""
    return min(fits(measured, first, second), key=lambda each: each.off)


def fits(measured: MachineCalibration, first: SwarmRounds, second: SwarmRounds) -> Iterator[Tried]:
    """Yield calibrations whose simulated nodes need about as long for the first rounds as the real ones did, each after
    some seconds of simulation, until one is near enough. The second rounds have another number of steps. `measured` is
    what was found without a swarm."""
    step_s, _ = step_and_round(first, second)
    timing = SwarmTiming(
        rounds=first,
        step_s=step_s,
        round_sigma=first.round_sigma,
        crowding=measured.crowding,
        wake_s=LOOPBACK_MS / 1000,
    )
    charged = replace(measured, swarm=timing)
    for _ in range(SIMULATIONS):
        simulated = simulated_rounds(charged)
        tried = Tried(calibration=charged, simulated=simulated, off=unlike(simulated, first))
        yield tried
        if tried.off <= NEAR:
            return
        charged = _nearer(charged, simulated, first)


def unlike(simulated: SwarmRounds, real: SwarmRounds) -> float:
    """Return by what share of a round they are unlike, at most, in what is fitted."""
    pairs = [
        (simulated.round_s, real.round_s),
        (simulated.exchange_s, real.exchange_s),
        (simulated.work_s, real.work_s),
        (simulated.round_sigma * SPREAD_COUNTS * real.round_s, real.round_sigma * SPREAD_COUNTS * real.round_s),
    ]
    return max(abs(one - other) for one, other in pairs) / real.round_s


def step_and_round(first: SwarmRounds, second: SwarmRounds) -> tuple[float, float]:
    """Return the mean seconds of a step, and those that a round takes from training beside its steps: the line through
    two kinds of rounds. Where it would go down, or a round give time, or they are too near each other, all of the time
    is the steps'."""
    apart = second.steps - first.steps
    step_s = (second.round_s - first.round_s) / apart if abs(apart) > APART * first.steps else 0.0
    lost_s = first.round_s - first.steps * step_s
    if step_s <= 0 or lost_s < 0:
        return first.round_s / first.steps, 0.0
    return step_s, lost_s


def simulated_rounds(measured: MachineCalibration) -> SwarmRounds:
    """Return the rounds of nodes that compute as a calibration with a swarm says, in a simulation of its rounds."""
    assert measured.swarm is not None
    rounds = measured.swarm.rounds
    count = min(rounds.rounds, SIMULATED)
    settings: dict[str, Any] = {
        "task": {"name": "quadratic", "functions": rounds.members},
        "train": {"inner_steps": rounds.inner_steps, "rounds": count, "eval_every": count},
    }
    device = measured_device(measured, from_raw(settings), neighbours=rounds.members - 1)
    with tempfile.TemporaryDirectory(prefix="p2ptrain-fit-") as name:
        scenario, run = Path(name) / "scenario.toml", Path(name) / "run"
        scenario.write_text(_scenario(settings, device, rounds.members), encoding="utf-8")
        run.mkdir()
        play(load_scenario(scenario), folder=run)
        return rounds_in(run, rounds.inner_steps)


def _nearer(measured: MachineCalibration, simulated: SwarmRounds, real: SwarmRounds) -> MachineCalibration:
    swarm = measured.swarm
    assert swarm is not None
    lost_s = max(LEAST_SHARE * simulated.round_s, simulated.round_s - simulated.steps * swarm.step_s)
    crowding = min(MOST_CROWDING, swarm.crowding * _times(simulated.work_s, real.work_s))
    times = 1.0
    if crowding:  # a transfer is charged times the crowding: what that has changed is taken off again
        times = _times(lost_s, lost_s + real.round_s - simulated.round_s) * swarm.crowding / crowding
    return replace(
        measured,
        rates=replace(measured.rates, seconds_a_transfer=measured.rates.seconds_a_transfer * times),
        swarm=replace(
            swarm,
            crowding=crowding,
            wake_s=max(0.0, swarm.wake_s + (real.exchange_s - simulated.exchange_s) / ONE_WAYS),
            round_sigma=min(MOST_SIGMA, swarm.round_sigma * _times(simulated.round_sigma, real.round_sigma)),
        ),
    )


def _times(simulated: float, real: float) -> float:
    """By how much what is charged is to grow."""
    return min(MOST_CHANGE, max(1 / MOST_CHANGE, max(real, LEAST_S) / max(simulated, LEAST_S)))


def _scenario(settings: Mapping[str, Any], device: DeviceClass, members: int) -> str:
    raw = {
        "until_s": UNTIL_S,
        **settings,
        "regions": [{"name": "here", "latency_ms": {"here": LOOPBACK_MS}}],
        "devices": {"here": device.model_dump(exclude_none=True)},
        "nodes": [{"name": "node", "count": members, "region": "here", "device": "here"}],
    }
    return tomli_w.dumps(raw)
