"""How much of the machine's memory a node will take: what it holds, part by part, each as bytes.

Nothing is built for it: optimizers and outer steps are given vectors without memory (torch's device `meta`), and say
by their buffers what they keep. docs/operations.md ("What a node needs") has the same table, with measurements.
"""

from dataclasses import dataclass, fields
from typing import Final

import torch

from gossip.blobs.hashing_task import FILED_FROM
from node.config.schema import Config
from p2ptrain import compress, drift, inner, outer
from p2ptrain.inner.base import Place
from p2ptrain.outer import Average

PROGRAM_BYTES: Final = 450_000_000
"""Python, torch and the rest, with no model. Measured."""

FP32: Final = 4

SAMPLE: Final = 1 << 16
"""Parameters of the vector that is encoded to see how large payloads are: as many as whole blocks of every codec."""


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
    """What the outer optimizer and the compressor remember."""
    snapshot: int
    """A phase's last parameters, which become the correction."""
    estimates: int
    """Own public estimate, and one of each neighbour."""
    initial: int
    """The initial model, where it is too small for a file."""
    payloads: int
    """Updates: the neighbours' newest ones and those that are being fetched, and own ones."""
    work: int
    """Vectors that a round makes and drops: none with the outer step `average`."""

    @property
    def total(self) -> int:
        """Return the sum of all."""
        return sum(getattr(self, each.name) for each in fields(self))


def memory_forecast(
    parameters: int, device: str, config: Config, *, kept: int = 0, neighbours: int | None = None
) -> MemoryForecast:
    """Return what a node needs for a model of so many trained parameters, `kept` bytes of them for the backward pass of
    a batch. On a GPU the model, its optimizer and activations are not in main memory. `neighbours`: by default as many
    as `network.degree` allows."""
    on_gpu = device.startswith("cuda")
    vector = FP32 * parameters
    sync, tracked = config.sync, config.network.degree if neighbours is None else min(neighbours, config.network.degree)
    estimate = sync.estimate_dtype.itemsize * parameters
    payload = payload_bytes(config, parameters)
    own_payloads = 1 if payload >= FILED_FROM else config.network.history + 1
    rounds_outer = outer.get(sync.outer, **sync.outer_options())
    return MemoryForecast(
        program=PROGRAM_BYTES,
        parameters=0 if on_gpu else vector,
        gradient=0 if on_gpu else vector,
        optimizer=0 if on_gpu else optimizer_bytes(config, parameters),
        activations=0 if on_gpu else kept,
        anchor=vector,
        outer=outer_bytes(rounds_outer, parameters),
        snapshot=vector,
        estimates=(1 + tracked) * estimate,
        initial=estimate if vector < FILED_FROM else 0,
        payloads=(own_payloads + 2 * tracked) * payload,
        work=0 if isinstance(rounds_outer, Average) else 3 * vector,
    )


def optimizer_bytes(config: Config, parameters: int) -> int:
    """Return the bytes of the inner optimizer's and the drift correction's buffers."""
    nothing = _Meta(parameters)
    optimizer = inner.get(config.train.optimizer, **config.train.optimizer_options())
    optimizer.attach(nothing)
    correction = drift.get(config.train.drift, **config.train.drift_options())
    correction.attach(nothing.data_d)
    return sum(each.nbytes for each in (*optimizer.buffers.values(), *correction.buffers.values()))


def outer_bytes(rounds_outer: outer.OuterOptimizer, parameters: int) -> int:
    """Return the bytes that the outer optimizer remembers from round to round."""
    nothing_d = torch.empty(parameters, device="meta")
    rounds_outer.step(nothing_d, nothing_d)
    return sum(each.nbytes for each in rounds_outer.state_dict().values())


def payload_bytes(config: Config, parameters: int) -> int:
    """Return about how many bytes an update has, by encoding a short vector."""
    codec = compress.get(config.sync.compressor, **config.sync.codec_options())
    sample_d = torch.randn(SAMPLE, generator=torch.Generator().manual_seed(0))
    return len(codec.encode(sample_d)) * parameters // SAMPLE


class _Meta:
    """A model's flat buffers without memory, as one hidden matrix."""

    def __init__(self, parameters: int) -> None:
        self.data_d = torch.empty(parameters, device="meta")
        self.grad_d = torch.empty(parameters, device="meta")
        whole = slice(0, parameters)
        self.places = [Place(name="all", span=whole, shape=torch.Size((parameters, 1)), decayed=True, hidden=True)]
        self.decayed = [self.data_d]
