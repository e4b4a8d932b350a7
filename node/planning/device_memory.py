"""What a node holds on its device and in main memory. Of main memory the node's own forecast is asked.

Activations of a transformer without checkpointing, which this project's trainer does not do, with an attention that
keeps no matrix of all pairs (torch's scaled_dot_product_attention), and the logits in fp32 with their gradient. Of a
layer, s tokens of b sequences and width h: 34 s b h bytes in 16 bits (Korthikanti, 2205.05198, less the term
5 a s^2 b), twice that in fp32. A model like Llama keeps more, counted as its layers are built in transformers: each
RMSNorm has its input and its result in fp32 and what goes on in 16 bits, the gated MLP four tensors of its hidden
width. A batch that does not fit is taken in smaller parts by the trainer, one sequence at the least.
"""

from dataclasses import dataclass
from typing import Final

from gossip.core.limits import MAX_BLOB_BYTES
from node.config.schema import Config
from node.planning.model_shape import ModelShape
from node.roles.memory_forecast import FP32, MemoryForecast, memory_forecast, optimizer_bytes

ACTIVATION_BYTES: Final = 34
"""Of a token, unit of width and layer, in 16 bits."""
LOGIT_BYTES: Final = 8
"""Of a token and word: fp32, and its gradient."""
CAST_BYTES: Final = 2
"""Of a parameter: autocast's copy in bf16, of one layer after another in the forward pass, all of them at most."""
PROGRAM_ON_DEVICE: Final = 1e9
"""CUDA's context, kernels and what its allocator cannot use. Chosen: between 0.5 and 1.5 GB of what is seen."""


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Bytes on the device that trains."""

    parameters: float
    frozen: float
    gradient: float
    optimizer: float
    activations: float
    """Of a batch."""
    least_activations: float
    """Of one sequence."""
    casts: float
    program: float

    @property
    def fixed(self) -> float:
        """Return what is there whatever the batch."""
        return self.parameters + self.frozen + self.gradient + self.optimizer + self.casts + self.program

    @property
    def total(self) -> float:
        """Return all of it, for a whole batch at a time."""
        return self.fixed + self.activations

    @property
    def least(self) -> float:
        """Return all of it, for one sequence at a time: below that nothing trains."""
        return self.fixed + self.least_activations

    def sequences(self, memory_bytes: float) -> int:
        """Return how many sequences fit at a time; 0 where none does."""
        return int(max(0.0, memory_bytes - self.fixed) / self.least_activations)


def device_memory(config: Config, shape: ModelShape, length: int, *, on_gpu: bool) -> DeviceMemory:
    """Return what a step of `train.batch_size` sequences of `length` tokens takes."""
    trained, half = (
        FP32 * shape.trained,
        config.train.precision == "bf16" or (config.train.precision == "auto" and on_gpu),
    )
    of_one = length * (shape.layers * shape.width * layer_bytes(shape, half=half) + shape.vocabulary * LOGIT_BYTES)
    gradients = 1 + ("gradient" in config.sync.spec().wants)
    return DeviceMemory(
        parameters=trained,
        frozen=shape.frozen_bytes,
        gradient=trained * gradients,
        optimizer=optimizer_bytes(config, shape.trained),
        activations=of_one * config.train.batch_size,
        least_activations=of_one,
        casts=CAST_BYTES * shape.trained if half else 0,
        program=PROGRAM_ON_DEVICE if on_gpu else 0,
    )


def layer_bytes(shape: ModelShape, *, half: bool) -> float:
    """Return the bytes that a layer keeps for the backward pass, of a token and unit of width. `half`: under autocast
    to 16 bits, where attention on a CPU also keeps its inputs and its result in fp32: a GPU keeps less."""
    if not shape.gated_width:
        return ACTIVATION_BYTES * (1 if half else 2)
    if half:
        return 20 + 8 * shape.gated_width + 10 + 4 * shape.key_share
    return 24 + 16 * shape.gated_width + 8 + 8 * shape.key_share


def host_memory(config: Config, shape: ModelShape, device: DeviceMemory, *, on_gpu: bool, nodes: int) -> MemoryForecast:
    """Return what the node takes of main memory, by its own forecast."""
    return memory_forecast(
        shape.trained,
        "cuda" if on_gpu else "cpu",
        config,
        kept=round(device.activations + device.frozen),
        neighbours=min(config.network.degree, max(0, nodes - 1)),
    )


def snapshot_bytes(config: Config, shape: ModelShape) -> float:
    """Return the bytes of a whole model as it travels to who joins."""
    return float(config.sync.estimate_dtype.itemsize * shape.trained)


def largest_blob() -> float:
    """Return the bytes beyond which nothing travels, whatever a node allows."""
    return float(MAX_BLOB_BYTES)
