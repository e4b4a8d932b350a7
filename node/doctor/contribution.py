"""What this machine would give to the swarm, and what that takes of it, a day: measured on steps of the real model.

Steps, energy and memory are measured. Bytes are those of the run's own codec and strategy, with the overhead of
measured swarms. A round is as long as its steps and its share of an evaluation take here: without the exchange, beside
which training goes on unless `node.overlap` is false. Or it is as long as the swarm's are, where its owner says so, and
then has as many steps as fit: one at least, which a round is never shorter than, and at most the planned ones where
training waits for the exchange. A day is 24 hours of training.
"""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch

from node.config.schema import Config
from node.doctor.finding import Finding, Measuring, Model
from node.metrics.energy import Meter, meter_for
from node.planning.calibration import usual_rates
from node.planning.forecast import DAY_S, evaluation_seconds, sent_in_round
from node.planning.payload_sizes import RoundTraffic, round_traffic
from node.system import text
from node.system.process_use import cores_of_process
from p2ptrain.training import Trainer
from p2ptrain.training.speed import StepRates, step_rates

GUESSED: Final = "estimate"
"""The meter's source that is no counter: so many watts for a busy core."""
JOULES_A_KWH: Final = 3.6e6
SMALL: Final = 9.995
"""A rate below it, of steps, examples or rounds, is shown with three digits."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What some seconds of training have shown."""

    rates: StepRates
    watts: float | None
    """None: no counter of this machine can be read."""
    watts_by: str
    """Whose counters: `nvml`, `rapl`, or both."""
    peak_bytes: int
    """The most main memory that this process has had."""
    device_peak_bytes: int | None
    """The most of the GPU's memory that tensors had; None on another device."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What follows of it, a day where nothing else is said. None: not known."""

    examples_per_s: float
    tokens_per_s: float
    steps_per_s: float
    step_s: float
    steps_timed: int
    micro_batch: int | None
    round_s: float
    steps_a_round: float
    rounds_a_day: float
    steps_a_day: float
    neighbours: int
    payload_bytes: float | None
    bytes_unknown: str
    """Why bytes are not known; empty where they are."""
    up_bytes_a_day: float | None
    down_bytes_a_day: float | None
    link_bits_per_s: float | None
    """That the link must carry, each way, for an exchange to take no longer than a round."""
    watts: float | None
    watts_by: str
    """`nvml`, `rapl`, both, or `--watts`; empty: not known."""
    kwh_a_day: float | None
    cost_a_day: float | None
    peak_bytes: int
    device_peak_bytes: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as `--json` prints them."""
        return asdict(self)


def measured(
    trainer: Trainer,
    config: Config,
    for_s: float,
    clock: Callable[[], float] = time.perf_counter,
    step: Callable[[], object] | None = None,
) -> Measurement:
    """Train for `for_s` seconds, by `step`, where it is more than one of the trainer's. Whatever the task raises."""
    on_gpu = trainer.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(trainer.device)
    meter = meter_for(trainer.device, watts=config.monitoring.watts_per_core)
    began = clock()
    rates = step_rates(trainer, clock, for_s, step)
    rates = replace(rates, step_s=_slowed(config, trainer) * rates.step_s)
    watts, by = _watts(meter, clock() - began)
    return Measurement(
        rates=rates,
        watts=watts,
        watts_by=by,
        peak_bytes=_peak_bytes(),
        device_peak_bytes=torch.cuda.max_memory_allocated(trainer.device) if on_gpu else None,
    )


def contribution(config: Config, shared: int, found: Measurement, asked: Measuring) -> Contribution:
    """Return what follows of what was measured, where members share vectors of so many values."""
    rates, train = found.rates, config.train
    evaluation_s = evaluation_seconds(train, rates.step_s)
    round_s, steps = _round(config, rates.step_s, evaluation_s, asked)
    neighbours = config.network.degree if asked.neighbours is None else asked.neighbours
    traffic, bytes_unknown = _traffic(config, shared, neighbours)
    sent = None if traffic is None else sent_in_round(traffic, usual_rates(), round_s)
    rounds = DAY_S / round_s
    watts, by = (found.watts, found.watts_by) if asked.watts is None else (asked.watts, "--watts")
    kwh = None if watts is None else watts * DAY_S / JOULES_A_KWH
    return Contribution(
        examples_per_s=rates.examples / rates.step_s,
        tokens_per_s=rates.tokens / rates.step_s,
        steps_per_s=1 / rates.step_s,
        step_s=rates.step_s,
        steps_timed=rates.steps,
        micro_batch=rates.micro_batch,
        round_s=round_s,
        steps_a_round=steps,
        rounds_a_day=rounds,
        steps_a_day=rounds * steps,
        neighbours=neighbours,
        payload_bytes=None if traffic is None else traffic.payload_bytes,
        bytes_unknown=bytes_unknown,
        up_bytes_a_day=None if sent is None else rounds * sent,
        down_bytes_a_day=None if sent is None else rounds * sent,
        link_bits_per_s=None if sent is None else 8 * sent / round_s,
        watts=watts,
        watts_by=by,
        kwh_a_day=kwh,
        cost_a_day=None if kwh is None or asked.price_kwh is None else kwh * asked.price_kwh,
        peak_bytes=found.peak_bytes,
        device_peak_bytes=found.device_peak_bytes,
    )


def findings_of(it: Contribution, config: Config, model: Model, asked: Measuring) -> list[Finding]:
    """Return the page's lines about it."""
    return [_speed(it), _rounds(it, config, asked), _bytes(it, config, model), _energy(it), _peak(it)]


def _speed(it: Contribution) -> Finding:
    rate = f"{_amount(it.tokens_per_s)} tokens/s"
    rate += "" if it.tokens_per_s == it.examples_per_s else f", {_amount(it.examples_per_s)} examples/s"
    seen = f"{rate}: {_amount(it.steps_per_s)} steps/s of {_time(it.step_s)} (median of {it.steps_timed})"
    seen += f", {text.plural(it.micro_batch, 'example')} at a time" if it.micro_batch else ""
    return Finding(check="speed", level="ok", seen=seen)


def _rounds(it: Contribution, config: Config, asked: Measuring) -> Finding:
    a_day = f"{_amount(it.rounds_a_day)} rounds and {_amount(it.steps_a_day)} steps a day"
    planned, waits = config.train.inner_steps, not config.node.overlap
    if asked.round_s is not None:
        steps = f"{it.steps_a_round:,.4g} {'step' if it.steps_a_round == 1 else 'steps'}"
        seen = f"{steps} in a round of {_time(it.round_s)}, {planned} are planned: {a_day}"
        if it.round_s > asked.round_s:
            seen += f"; {_time(asked.round_s)} are shorter than a step and its share of an evaluation"
        seen += "; training waits for the exchange, whose time is not taken off (node.overlap = false)" if waits else ""
        return Finding(check="rounds", level="ok", seen=seen)
    seen = f"{text.plural(planned, 'step')} in {_time(it.round_s)}: {a_day} at this machine's own pace"
    longer = "training waits for each exchange (node.overlap = false), whose time is not in it"
    longer = longer if waits else "an exchange that takes longer makes rounds longer"
    fix = f"{longer}; for the swarm's pace, give its rounds': --round-time 30s"
    return Finding(check="rounds", level="ok", seen=seen, fix=fix)


def _bytes(it: Contribution, config: Config, model: Model) -> Finding:
    if it.payload_bytes is None or it.up_bytes_a_day is None or it.link_bits_per_s is None:
        return Finding(check="bytes", level="unknown", seen=f"not known beforehand: {it.bytes_unknown}")
    each_bits, of = 8 * it.payload_bytes / model.shared, "parameter" if model.logits is None else "logit"
    seen = f"{text.size(it.up_bytes_a_day)} a day up and as much down, with {text.plural(it.neighbours, 'neighbour')}: "
    seen += f"{text.size(it.payload_bytes)} a round to each ({each_bits:.3g} bits a {of}); "
    seen += f"a link with {_rate(it.link_bits_per_s)} each way keeps up"
    bounds = (config.network.up_bytes_per_s, config.network.down_bytes_per_s)
    least = min((bound for bound in bounds if bound), default=None)
    if least is not None and 8 * least < it.link_bits_per_s:
        fix = "rounds will last longer: raise network.up_bytes_per_s and down_bytes_per_s, or lower network.degree"
        return Finding(check="bytes", level="warning", seen=f"{seen}, {_rate(8 * least)} are allowed", fix=fix)
    return Finding(check="bytes", level="ok", seen=seen)


def _energy(it: Contribution) -> Finding:
    if it.watts is None or it.kwh_a_day is None:
        fix = "say what the machine takes while it trains: --watts 65"
        return Finding(check="energy", level="unknown", seen="no counter of this machine can be read", fix=fix)
    seen = f"{it.watts:.3g} W by {it.watts_by}: {it.kwh_a_day:.3g} kWh a day"
    seen += "" if it.cost_a_day is None else f", which cost {it.cost_a_day:.3g}"
    return Finding(check="energy", level="ok", seen=seen)


def _peak(it: Contribution) -> Finding:
    seen = f"{text.size(it.peak_bytes)} of main memory"
    seen += "" if it.device_peak_bytes is None else f", {text.size(it.device_peak_bytes)} of the GPU's"
    return Finding(check="peak", level="ok", seen=f"{seen} while it trained here, without neighbours' models")


def _round(config: Config, step_s: float, evaluation_s: float, asked: Measuring) -> tuple[float, float]:
    """The seconds of a round, and its steps."""
    planned = config.train.inner_steps
    if asked.round_s is None:
        return planned * step_s + evaluation_s, planned
    round_s = max(asked.round_s, step_s + evaluation_s)
    fitting = max(1.0, (round_s - evaluation_s) / step_s)
    return round_s, fitting if config.node.overlap else min(planned, fitting)


def _traffic(config: Config, shared: int, neighbours: int) -> tuple[RoundTraffic | None, str]:
    """None, and why, for a codec or strategy of which no plan can know the bytes."""
    try:
        return round_traffic(config, shared, neighbours + 1), ""
    except ValueError as error:
        return None, str(error)


def _slowed(config: Config, trainer: Trainer) -> float:
    """Times as long as here a step takes where `budget.cpu` leaves less than the cores that its threads keep busy: a
    quota that holds a node, and not this process."""
    cpu = config.budget.cpu
    if cpu is None or trainer.device.type != "cpu":
        return 1.0
    busy = min(trainer.machine.threads or torch.get_num_threads(), cores_of_process())
    return max(1.0, busy / cpu)


def _watts(meter: Meter, seconds: float) -> tuple[float | None, str]:
    joules = {source: total for source, total in meter.joules().items() if source != GUESSED and total > 0}
    return (sum(joules.values()) / seconds, " and ".join(joules)) if joules and seconds > 0 else (None, "")


def _peak_bytes() -> int:
    """Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _rate(bits_per_s: float) -> str:
    amount = text.amount(bits_per_s)
    return f"{amount.rstrip('kMGT')} {amount.lstrip('0123456789.')}bit/s"


def _amount(rate: float) -> str:
    """Small ones with three digits, for a slow machine's would be 0."""
    return f"{rate:.3g}" if rate < SMALL else text.amount(rate)


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
