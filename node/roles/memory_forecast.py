"""How much of the machine's memory a node will take: what it holds, part by part, each as bytes.

Nothing is built for it: optimizers and outer steps are given short vectors, and say by their buffers what they keep.
(torch's device `meta` would do without any, and has sympy loaded: 34 MB.) docs/operations.md ("What a node needs") has
the same table, with measurements.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Final

import torch

from gossip.blobs.hashing_task import FILED_FROM
from node.config.schema import Config
from p2ptrain import compress, drift, inner, outer
from p2ptrain.compress.blocks import CHUNK_NUMEL
from p2ptrain.compress.by_parts import ByParts
from p2ptrain.drift.none import NoCorrection
from p2ptrain.inner.base import Place
from p2ptrain.inner.filed_optimizer import BLOCK_NUMEL
from p2ptrain.outer import BySlices
from p2ptrain.step_normalization.unnormalized import Unnormalized
from p2ptrain.sync import SyncConfig, averages_gradients, build
from p2ptrain.sync.encoder import ErrorFeedbackEncoder
from p2ptrain.visits.model_versions import VERSIONS_KEPT
from p2ptrain.visits.visitor_mean import AT_ONCE, DIFFERENCES

PROGRAM_BYTES: Final = 450_000_000
"""Python, torch and the rest, with no model. Measured."""

FP32: Final = 4

SAMPLE: Final = 1 << 16
"""Parameters of the vector that is encoded to see how large payloads are: as many as whole blocks of every codec."""

FEW: Final = 64
"""Parameters of the vector that an outer optimizer is tried with."""

STEPS: Final = 256
"""Steps that it takes: more than one that gathers movements gathers, or is likely to."""

FRAGMENT_PAGES: Final = 1.25
"""Pages in which a fragment's correction lies, for each that it fills: its runs are of 16 KiB, and begin anywhere."""

FILED_COPIES: Final = 2
"""Times that a block of an optimizer in files is in memory: as it was read, and as it is moved."""

ERROR_FEEDBACK_VECTORS: Final = 2
"""Vectors that an encoder with an error feedback makes beside what it keeps: what it wishes, and what was told."""


BODY_COPIES: Final = 1.25
"""Times a visitor's difference on its way: what arrives grows by an eighth at a time, and one at a time is copied."""

MEAN_CHUNKS: Final = 3.5
"""Times a chunk of all differences' columns while their mean is taken, its loop included. Measured: 2.8 to 3.4."""

VISIT_VECTORS: Final = 5
"""Vectors of a host: the model that its visitors do not see, what they add, and, while a round closes, the model of the
round, the next one, and a difference that is decoded."""


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Bytes of main memory by what they are for."""

    program: int
    parameters: int
    gradient: int
    optimizer: int
    """Buffers of the inner optimizer and of the drift correction."""
    activations: int
    """What the backward pass of one batch keeps, as far as it was tried."""
    anchor: int
    outer: int
    """What the strategy, its outer optimizer and the compressor remember."""
    late_average: int
    """Mean of late weights, where it is kept, and the one that becomes it when a round is added."""
    snapshot: int
    """A phase's last parameters, which become the correction."""
    estimates: int
    """Own public estimate, and one of each neighbour, unless those lie on disk."""
    initial: int
    """The initial model, where it is too small for a file."""
    payloads: int
    """Updates: the neighbours' newest ones and those that are being fetched, and own ones."""
    work: int
    """Vectors that a round makes and drops: none where a whole model is averaged, and a codec works by parts."""
    personal: int
    """A second model of the node's own, its gradient and optimizer, and the two models that it is held near."""
    shift: int
    """The model that is kept to notice shifts of data, and the round's, which takes its place."""
    visits: int
    """As many visitors' differences as a round takes, the models that they start from, and what their mean takes: who
    comes is nobody's choice here."""

    @property
    def total(self) -> int:
        """Return the sum of all."""
        return sum(getattr(self, each.name) for each in fields(self))


def memory_forecast(
    parameters: int,
    device: str,
    config: Config,
    *,
    kept: int = 0,
    neighbours: int | None = None,
    program: int = PROGRAM_BYTES,
) -> MemoryForecast:
    """Return what a node needs for a model of so many trained parameters, `kept` bytes of them for the backward pass of
    a batch. On a GPU the model, its optimizer and activations are not in main memory. `neighbours`: by default as many
    as `network.degree` allows. `program`: bytes without a model, where they were measured here."""
    on_gpu = device.startswith("cuda")
    vector = FP32 * parameters
    sync, tracked = config.sync, config.network.degree if neighbours is None else min(neighbours, config.network.degree)
    estimate = sync.estimate_dtype.itemsize * parameters
    payload = payload_bytes(config, parameters)
    own_payloads = 1 if payload >= FILED_FROM else config.network.history + 1
    rounds_outer = outer.get(sync.outer, **sync.outer_options())
    remembered, drafting = encoder_bytes(config, parameters)
    spec = sync.spec()
    # Twice where the anchor steps: as it is, and as the round began. Copies, where moments are averaged.
    inner_states = optimizer_bytes(config, parameters) * (2 * spec.steps_anchor + ("moments" in spec.wants))
    return MemoryForecast(
        program=program * (2 if config.node.lane == "process" else 1),
        parameters=0 if on_gpu else vector,
        gradient=0 if on_gpu else vector * (1 + ("gradient" in spec.wants)),
        optimizer=0 if on_gpu else resident_optimizer_bytes(config, parameters, kept),
        activations=0 if on_gpu else kept,
        anchor=vector,
        outer=outer_bytes(sync, parameters) + remembered + spec.vectors * vector + inner_states,
        late_average=2 * vector if config.train.late_average else 0,
        snapshot=vector,
        estimates=(1 if config.node.estimates_on == "disk" else 1 + tracked) * estimate,
        initial=estimate if vector < genesis_filed_from(config) else 0,
        payloads=(own_payloads + 2 * tracked) * payload,
        work=max(work_bytes(config, rounds_outer, parameters), drafting)
        + vector * (config.train.step_normalization != Unnormalized.name),
        personal=0 if on_gpu or config.personal.find() is None else personal_bytes(config, parameters),
        shift=2 * vector if config.shift.on else 0,
        visits=visits_bytes(config, parameters) if config.visits.on else 0,
    )


def personal_bytes(config: Config, parameters: int) -> int:
    """Return the bytes of a personal model and of what trains it."""
    return 4 * FP32 * parameters + optimizer_bytes(_without_drift(config), parameters)


def visits_bytes(config: Config, parameters: int) -> int:
    """Return the most bytes that visitors make a node hold."""
    most, payload = config.visits.most_a_round, DIFFERENCES.size(parameters)
    models = 2 * VERSIONS_KEPT * payload  # and what leads from each to the newest
    at_once = 1 if config.visits.noise is not None else most
    chunk = FP32 * min(parameters, CHUNK_NUMEL, AT_ONCE // at_once) * at_once
    return models + round(BODY_COPIES * most * payload) + round(MEAN_CHUNKS * chunk) + VISIT_VECTORS * FP32 * parameters


def optimizer_bytes(config: Config, parameters: int) -> int:
    """Return the bytes of the inner optimizer's and the drift correction's buffers."""
    sample = _ShortModel(min(parameters, SAMPLE))
    optimizer = inner.get(config.train.optimizer, **config.train.optimizer_options())
    optimizer.attach(sample)
    correction = drift.get(config.train.drift, **config.train.drift_options())
    correction.attach(sample.data_d)
    numel = sample.data_d.numel()
    return sum(
        each.nbytes * (parameters if each.numel() >= numel else numel) // numel
        for each in (*optimizer.buffers.values(), *correction.buffers.values())
    )


def resident_optimizer_bytes(config: Config, parameters: int, kept: int) -> int:
    """Return the bytes of memory that they take, beside the `kept` of a batch: of what lies in files a block at a time,
    twice. A block is moved when what a batch keeps is free again, so the larger of the two counts."""
    if config.node.optimizer_on == "memory":
        return optimizer_bytes(config, parameters)
    without_drift = _without_drift(config)
    filed = optimizer_bytes(without_drift, parameters)
    block = optimizer_bytes(without_drift, min(parameters, BLOCK_NUMEL))
    return optimizer_bytes(config, parameters) - filed + max(0, FILED_COPIES * block - kept)


def _without_drift(config: Config) -> Config:
    return config.model_copy(update={"train": replace(config.train, drift=NoCorrection.name)})


def genesis_filed_from(config: Config) -> int:
    """Return the bytes from which on the initial model lies in a file."""
    return FILED_FROM if config.budget.memory is None else 0


def outer_bytes(sync: SyncConfig, parameters: int) -> int:
    """Return the most bytes that the outer optimizer remembers from round to round."""
    return _remembered_of_few(sync) * parameters // FEW


@lru_cache(maxsize=64)  # hundreds of steps, and a plan asks hundreds of times
def _remembered_of_few(sync: SyncConfig) -> int:
    """The most bytes that the outer optimizer of FEW parameters remembers in STEPS steps."""
    rounds_outer = outer.get(sync.outer, **sync.outer_options())
    few_d, most = torch.zeros(FEW), 0
    for _ in range(STEPS):
        rounds_outer.step(few_d, few_d)
        buffers = [each for each in rounds_outer.state_dict().values() if each.numel() == FEW]
        most = max(most, sum(each.nbytes for each in buffers))
    return most


def encoder_bytes(config: Config, parameters: int) -> tuple[int, int]:
    """Return the bytes that the encoder of messages remembers, and those of the vectors that it makes for one."""
    if averages_gradients(config.sync.strategy):
        return 0, 0
    kept = _remembered_of_a_sample(config.sync)
    return (0, 0) if kept is None else (kept * parameters // SAMPLE, ERROR_FEEDBACK_VECTORS * FP32 * parameters)


@lru_cache(maxsize=64)  # a strategy that reduces by parts takes a second to be built, and a plan asks hundreds of times
def _remembered_of_a_sample(sync: SyncConfig) -> int | None:
    """The bytes that the encoder of a strategy on SAMPLE parameters remembers; None: it remembers nothing."""
    strategy = build(sync, torch.ones(SAMPLE), judge=lambda model_d, round: 0.0)
    encoder = getattr(strategy, "encoder", None)
    if not isinstance(encoder, ErrorFeedbackEncoder):
        return None
    return sum(each.nbytes for each in encoder.state_dict().values())


def work_bytes(config: Config, rounds_outer: outer.OuterOptimizer, parameters: int) -> int:
    """Return the bytes of the vectors that closing a round makes and drops."""
    vector = FP32 * parameters
    outers = 0 if isinstance(rounds_outer, BySlices) else 3 * vector
    turn = config.sync.spec().turn
    fragment = 0 if turn == 1 else FRAGMENT_PAGES * vector // turn
    codec = compress.get(config.sync.compressor, **config.sync.codec_options())
    return outers + round(fragment) + (0 if isinstance(codec, ByParts) else vector)


def payload_bytes(config: Config, parameters: int) -> int:
    """Return about how many bytes an update has, by encoding a short vector."""
    codec = compress.get(config.sync.compressor, **config.sync.codec_options())
    sample_d = torch.randn(SAMPLE, generator=torch.Generator().manual_seed(0))
    return len(codec.encode(sample_d)) * parameters // SAMPLE


class _ShortModel:
    """The flat buffers of a short model, as one hidden matrix."""

    def __init__(self, parameters: int) -> None:
        self.data_d = torch.empty(parameters, device="cpu", dtype=torch.float32)
        self.grad_d = torch.empty(parameters, device="cpu", dtype=torch.float32)
        whole = slice(0, parameters)
        self.places = [Place(name="all", span=whole, shape=torch.Size((parameters, 1)), decayed=True, hidden=True)]
        self.decayed = [self.data_d]
