"""One run, foretold: memory, bytes, seconds, days, loss as a ratio, energy and money. A pure function of what is asked.

The settings are a node's own configuration, so that what is foretold is what runs: H, batch, codec, strategy, degree,
overlap and evaluations are read there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from node.config.schema import Config, from_raw
from node.planning.accelerators import MAIN_MEMORY, Accelerator
from node.planning.calibration import MachineCalibration, WorkRates, usual_rates
from node.planning.device_memory import DeviceMemory, device_memory, host_memory, largest_blob, snapshot_bytes
from node.planning.loss_penalties import LearningChoice, LossOutlook, codec_label, outlook
from node.planning.model_shape import ModelShape
from node.planning.payload_sizes import RoundTraffic, round_traffic
from node.planning.round_timing import PlannedLink, RoundTimes, RoundWork, Transfer, round_times
from node.roles.memory_forecast import MemoryForecast
from p2ptrain import aggregate
from p2ptrain.sync import ALLREDUCE
from p2ptrain.training import TrainConfig

DAY_S: Final = 86_400.0
TOKENS_A_PARAMETER: Final = 20.0
"""Chinchilla's (2203.15556): what a plan takes where no number of tokens is given."""
FORWARD_SHARE: Final = 1 / 3
"""Of a step's work that an evaluation of as many tokens takes: the forward pass."""
GIGA: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class Prices:
    """In one currency. 0: not counted."""

    kwh: float = 0.0
    gpu_hour: float = 0.0
    gb_sent: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What is known of a run."""

    shape: ModelShape
    length: int
    """Tokens of a sequence."""
    config: Config
    """Its settings; `train.rounds` is not read: `tokens` say how many."""
    nodes: int
    link: PlannedLink
    device: Accelerator
    tokens: float
    """That all members together train on."""
    calibration: MachineCalibration | None = None
    step_s: float | None = None
    """Of a step as measured, in place of all else."""
    availability: float = 1.0
    """Share of the time in which a member is there."""
    host_bytes: float | None = None
    """Main memory of a member; None: not checked."""
    prices: Prices = Prices()
    exchange_s: float | None = None
    """Of a round's exchange, as measured."""

    @property
    def on_gpu(self) -> bool:
        """Return whether the model is in a memory of the device's own."""
        return self.device.memory_bytes != MAIN_MEMORY

    @property
    def present(self) -> int:
        """Return the members that are there on average."""
        return max(1, round(self.nodes * self.availability))

    def with_settings(self, **sections: Mapping[str, Any]) -> "PlanRequest":
        """Return the same with some settings changed: `with_settings(train={"inner_steps": 5})`. UsageError on what
        cannot be."""
        return replace(self, config=changed_config(self.config, **sections))


@dataclass(frozen=True, kw_only=True)
class RunForecast:
    """What comes of it. Per member where nothing else is said."""

    request: PlanRequest
    traffic: RoundTraffic
    sent_bytes: float
    """In a round, overhead included, on average."""
    published_bits: float
    """Of a payload, for each parameter that is trained."""
    sent_bits: float
    """For each of these and inner step."""
    step_s: float
    evaluation_s: float
    """Of a round on average."""
    times: RoundTimes
    rounds: int
    days: float
    device: DeviceMemory
    host: MemoryForecast
    loss: LossOutlook
    robust_share: float
    """Share of the time in which a node hears as many members as its aggregator needs."""
    crash_s: float
    """Of training that a crash costs: half a round, and the models that a node takes to come back."""
    kwh: float
    """Of all members."""
    sent_gb: float
    """By all members."""
    cost: float
    problems: tuple[str, ...]
    """Why it cannot run as it stands, a sentence each."""

    @property
    def days_to_equal_loss(self) -> float:
        """Return the days to the loss that the reference has after as many tokens (loss_penalties.py). Rounds that an
        exchange lengthens come further than their planned steps."""
        progress = self.times.effective_steps / self.request.config.train.inner_steps
        return self.days * self.loss.time_factor / progress

    @property
    def binding(self) -> str:
        """Say what binds: what does not fit at all, else what a round's length is made by."""
        return self.problems[0] if self.problems else self.times.words


def forecast(request: PlanRequest) -> RunForecast:
    """Return what comes of a run. ValueError for settings of which no plan can know the bytes."""
    config, shape = request.config, request.shape
    train, sync = config.train, config.sync
    traffic = round_traffic(config, shape.trained, request.present)
    rates = usual_rates() if request.calibration is None else request.calibration.rates
    step_s = step_seconds(request)
    work = round_work(request, traffic, rates, step_s)
    transfer = transfer_of(traffic, rates)
    overlap_s = _overlap_s(config, step_s)
    times = round_times(work, transfer, request.link, overlap_s=overlap_s, exchange_s=request.exchange_s)
    a_round = request.present * train.inner_steps * train.batch_size * train.grad_accumulation * request.length
    rounds = max(1, math.ceil(request.tokens / a_round))
    seconds = rounds * times.round_s
    sent_bytes = sent_in_round(traffic, rates, times.round_s)
    device = device_memory(config, shape, request.length, on_gpu=request.on_gpu)
    host = host_memory(config, shape, device, on_gpu=request.on_gpu, nodes=request.nodes)
    exact = sync.spec().averager == ALLREDUCE and sync.strategy not in ("moshpit", "noloco")
    progress = times.effective_steps / train.inner_steps
    choice = LearningChoice(
        strategy=sync.strategy,
        compressor=codec_label(sync),
        inner_steps=times.effective_steps,
        late_steps=times.late_steps * progress if config.node.overlap else 0.0,
        neighbours=traffic.neighbours,
        nodes=request.present,
        parameters=shape.trained,
        rounds=rounds,
        exact=exact,
    )
    busy = 1.0 if config.node.overlap else times.utilization
    kwh = request.present * request.device.watts * busy * seconds / 3.6e6
    sent_gb = request.present * rounds * sent_bytes / GIGA
    prices = request.prices
    return RunForecast(
        request=request,
        traffic=traffic,
        sent_bytes=sent_bytes,
        published_bits=traffic.bits(shape.trained),
        sent_bits=8 * sent_bytes / shape.trained / train.inner_steps,
        step_s=step_s,
        evaluation_s=work.evaluation_s,
        times=times,
        rounds=rounds,
        days=seconds / DAY_S,
        device=device,
        host=host,
        loss=outlook(choice),
        robust_share=_robust_share(request, traffic),
        crash_s=work.planned_s / 2 + _donors(config) * snapshot_bytes(config, shape) / request.link.down,
        kwh=kwh,
        sent_gb=sent_gb,
        cost=prices.kwh * kwh + prices.gpu_hour * request.present * seconds / 3600 + prices.gb_sent * sent_gb,
        problems=tuple(_problems(request, traffic, device, host)),
    )


def step_seconds(request: PlanRequest) -> float:
    """Return the seconds of a step: as measured, where it was; else its operations over what the device reaches."""
    if request.step_s is not None:
        return request.step_s
    train, measured = request.config.train, request.calibration
    flops = request.shape.flops(train.batch_size * train.grad_accumulation, request.length)
    if measured is None:
        return flops / request.device.flops
    step = measured.step
    same = (step.parameters, step.batch, step.length) == (request.shape.parameters, train.batch_size, request.length)
    return step.median_s * train.grad_accumulation if same else flops / measured.flops


def round_work(request: PlanRequest, traffic: RoundTraffic, rates: WorkRates, step_s: float) -> RoundWork:
    """Return what a member computes in a round."""
    train, sync = request.config.train, request.config.sync
    values, spec = float(request.shape.trained), sync.spec()
    encode, decode = rates.encode_rate(sync.compressor), rates.decode_rate(sync.compressor)
    if spec.averager == ALLREDUCE:  # own vector and own part out; all of that part and the mean in
        codec_s = 2 * values / encode + 2 * values / decode + 2 * values / rates.aggregate
    else:
        told = values / spec.turn
        codec_s = told / encode + traffic.neighbours * told / decode
        codec_s += (traffic.neighbours + 1) * values / rates.aggregate
    if request.present < 2:
        codec_s = 0.0
    crowding = 0.0 if request.calibration is None or request.on_gpu else request.calibration.crowding
    return RoundWork(
        step_s=step_s,
        inner_steps=train.inner_steps,
        codec_s=codec_s + traffic.transfers * rates.seconds_a_transfer,
        evaluation_s=evaluation_seconds(train, step_s),
        crowding=crowding,
    )


def evaluation_seconds(train: TrainConfig, step_s: float) -> float:
    """Return the seconds that evaluations take of a round, on average, where a step takes `step_s`."""
    examples = train.batch_size * train.grad_accumulation
    return FORWARD_SHARE * train.eval_examples / examples * step_s / train.eval_every


def sent_in_round(traffic: RoundTraffic, rates: WorkRates, round_s: float) -> float:
    """Return the bytes that a member sends in a round of `round_s` seconds on average, overhead included; it receives
    as many."""
    beside = traffic.transfers * rates.bytes_a_transfer + traffic.neighbours * rates.bytes_a_second * round_s
    return traffic.sent_bytes * (1 + rates.share_of_bytes) + beside


def transfer_of(traffic: RoundTraffic, rates: WorkRates) -> Transfer:
    """Return what goes through a member's link in a round, with what stands beside payloads."""
    beside = traffic.transfers * rates.bytes_a_transfer
    return Transfer(
        sent_bytes=traffic.most_sent_bytes * (1 + rates.share_of_bytes) + beside,
        received_bytes=traffic.most_received_bytes * (1 + rates.share_of_bytes) + beside,
        payload_bytes=traffic.peak_bytes,
        one_ways=traffic.one_ways,
    )


def changed_config(config: Config, **sections: Mapping[str, Any]) -> Config:
    """Return a configuration with some settings changed; options of members that are not chosen any more are left out.
    UsageError on what cannot be."""
    raw = {name: dict(values) for name, values in config.model_dump(mode="json", exclude_none=True).items()}
    for name, values in sections.items():
        if name == "sync" and "strategy" in values:
            raw[name] = {}  # another strategy has defaults of its own
        raw[name] = {**raw[name], **values}
    return from_raw(raw)


def _overlap_s(config: Config, step_s: float) -> float | None:
    """Seconds of training beside which an exchange may run; None: all of the round's."""
    if not config.node.overlap:
        return 0.0
    return config.node.overlap_steps * step_s or None


def _donors(config: Config) -> int:
    """Models of others that a node takes when it comes back."""
    return config.node.min_donors or 2 * config.sync.f + 1


def _robust_share(request: PlanRequest, traffic: RoundTraffic) -> float:
    """The chance that enough of the neighbours are there, each by itself (binomial)."""
    sync, neighbours = request.config.sync, min(request.config.network.degree, max(0, request.nodes - 1))
    needed = aggregate.get(sync.aggregator, f=sync.f, **sync.rule_options()).minimum() - 1
    p = request.availability
    if needed <= 0 or p >= 1:
        return float(needed <= neighbours)
    return min(1.0, sum(math.exp(_log_chance(there, neighbours, p)) for there in range(needed, neighbours + 1)))


def _log_chance(there: int, of: int, p: float) -> float:
    """The logarithm of the chance that just so many are there. By logarithms: the number of ways to choose 600 among
    1,200 is beyond a float."""
    ways = math.lgamma(of + 1) - math.lgamma(there + 1) - math.lgamma(of - there + 1)
    return ways + there * math.log(p) + (of - there) * math.log1p(-p)


def _problems(request: PlanRequest, traffic: RoundTraffic, device: DeviceMemory, host: MemoryForecast) -> list[str]:
    found = []
    if request.on_gpu and device.least > request.device.memory_bytes:
        found.append(
            f"device memory: {_gb(device.least)} of {_gb(request.device.memory_bytes)}, with one sequence at a time"
        )
    if request.host_bytes is not None and host.total > request.host_bytes:
        found.append(f"main memory: {_gb(host.total)} of {_gb(request.host_bytes)}")
    snapshot = snapshot_bytes(request.config, request.shape)
    if request.nodes > 1 and max(snapshot, traffic.peak_bytes) > largest_blob():
        found.append(
            f"model as it travels: {_gb(max(snapshot, traffic.peak_bytes))} of {_gb(largest_blob())}, "
            "the network's bound: nobody can join late"
        )
    if request.present < min(2, request.nodes):
        there = request.nodes * request.availability
        found.append(
            f"members: {there:.2g} of {request.nodes} are there on average, so that each mostly trains alone; what is "
            "foretold is of one that is always there"
        )
    return found


def _gb(value: float) -> str:
    return f"{value / GIGA:,.3g} GB"
