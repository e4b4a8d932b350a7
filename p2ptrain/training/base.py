"""What trains a node's model, as the rest of the node sees it.

There are two: `Trainer` builds the model of a task and takes every step itself; `UserModel` is a model and an optimizer
of the user's own, whose steps the user's loop takes. A node corrects either between two steps, by one flat vector.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from p2ptrain.inner.base import MomentBuffer, Place
from p2ptrain.inner.inner_state import BufferPart, InnerState
from p2ptrain.privacy.base import Release
from p2ptrain.saved.tensor_file import Storable
from p2ptrain.sync.sliced_vectors import SliceHolders
from p2ptrain.tasks.base import Shard
from p2ptrain.tasks.metrics import Measures
from p2ptrain.training.data_looks import DataLook
from p2ptrain.training.device_copies import Gathering
from p2ptrain.training.layout import StateLayout
from p2ptrain.training.train_config import TrainConfig


class Learner(Protocol):
    """A model that learns. Vectors are fp32 (d,) on the CPU; d is `numel`.

    Steps, corrections and states belong to the thread that trains. What says "Safe beside steps" may be called from
    another one.
    """

    config: TrainConfig
    shard: Shard
    data_seed: int
    global_step: int
    """The next step's number. Settable: a late joiner begins elsewhere."""
    tokens: int
    """Predictions trained on."""
    skipped_steps: int
    """Steps not taken because loss or gradient was not finite."""
    learning_rate: float | None
    """Of the newest step; None: not known."""
    fingerprint: bytes
    """32 bytes over parameter names and shapes: equal on every node that can join in."""

    @property
    def identity(self) -> bytes:
        """What members must have in common beside it, such as a digest of a frozen base model; empty: nothing."""

    @property
    def numel(self) -> int:
        """How many parameters are trained."""

    @property
    def device(self) -> torch.device:
        """Where it trains."""

    @property
    def metric(self) -> str:
        """What the held-out loss is measured in, for people."""

    @property
    def units(self) -> Mapping[str, str]:
        """Units of its own metrics, by name."""

    @property
    def evaluates(self) -> bool:
        """Whether it can tell a held-out loss. Where not, `measure`, `evaluate` and `judge` must not be called."""

    @property
    def micro_batch(self) -> int | None:
        """Examples that go through the model at a time, where a whole batch was too much; None: a batch."""

    @property
    def compile_fault(self) -> str:
        """Why steps are not compiled although they were to be; else empty."""

    @property
    def steps_elsewhere(self) -> bool:
        """Whether somebody else's loop takes the steps: `take_step` is then called after each, and only notes it."""

    def take_step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        """Take one step. Return its mean loss (not finite where it was skipped, nan where it is not known), or None
        where no step was taken, nor will be."""

    def vector(self) -> torch.Tensor:
        """Return a copy of the live parameters."""

    def doubts(self) -> list[str]:
        """Return what the user should know of the model, a line each, and each once. Call it between two steps."""

    def begin_round(self) -> None:
        """Note that the model as it is now is a snapshot, from which the next correction is worked out."""

    def correct(self, correction_d: torch.Tensor) -> None:
        """Add `correction_d` to the live parameters. ValueError on another shape."""

    def load_vector(self, x_d: torch.Tensor) -> None:
        """Set the live parameters. ValueError on another shape."""

    def evaluate(self, x_d: torch.Tensor | None = None) -> float:
        """Return the held-out loss of the model `x_d`, or of the live one. Safe beside steps."""

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """Return the same, and metrics of its own. Safe beside steps."""

    def judge(self, x_d: torch.Tensor, round: int) -> float:
        """Return the loss of the model `x_d` on data of its own, the same in a round. Safe beside steps."""

    def divergence(self, own_d: torch.Tensor, others: Iterable[torch.Tensor]) -> float | None:
        """Return how far the predictions of `own_d` are from the mean of the others', in nats; None where that cannot
        be told. Safe beside steps."""

    def layout(self) -> StateLayout | None:
        """Return names, shapes and types of the model's own `state_dict`; None where they are not enough."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return everything that a checkpoint needs, as copies on the CPU."""

    def state_view(self) -> Mapping[str, Storable]:
        """Return `state_dict` without copies where that can be: to be read while nobody trains. What takes more memory
        than there is for it lies in a file."""

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError, with nothing changed, where it is of another model."""


@dataclass(frozen=True, kw_only=True)
class OptimizerPlace:
    """What an inner optimizer must know of a model."""

    places: Sequence[Place]
    """Where each trainable parameter lies in the vector."""
    options: Mapping[str, object]
    """What the task asks of the optimizer, where nothing is set."""
    moments: Sequence[MomentBuffer] = ()
    """The moments that its own optimizer holds."""


@runtime_checkable
class TellsInnerState(Learner, Protocol):
    """A learner that tells of its steps what a strategy wants, and whose optimizer's state can be set."""

    def inner_state(self) -> InnerState:
        """Return what it was built to tell, of the steps since the last call."""

    def take_optimizer_state(self, parts: Sequence[BufferPart]) -> None:
        """Set parts of the inner optimizer's buffers; what is not named stays. ValueError on another shape."""

    def optimizer_place(self) -> OptimizerPlace:
        """Return what an optimizer like its own is built of."""


@runtime_checkable
class KeepsItsModel(Learner, Protocol):
    """A learner whose vector is no model: its checkpoints have the `parameters` of its state in place of a vector."""

    def initial_vector(self) -> torch.Tensor:
        """Return the vector (d,) that all members begin from, whatever their models."""


@runtime_checkable
class HoldsSlices(Protocol):
    """A learner whose vectors may lie in slices in several processes: they are `SlicedVector`s then."""

    @property
    def slices(self) -> SliceHolders | None:
        """Return who holds them; None where they are whole."""


@runtime_checkable
class GivesBackMemory(Protocol):
    """A learner that does without its device's memory while nobody trains."""

    def give_back_memory(self) -> None:
        """Move what training alone needs from the device to the host. Until `take_memory` nothing but `state_view` and
        `state_dict` may be asked of its live model; vectors that are given are measured as before. On a CPU nothing is
        done."""

    def take_memory(self) -> None:
        """Move it back. Raises torch.OutOfMemoryError, with nothing changed, where the device has no room."""


@runtime_checkable
class ProtectsData(Protocol):
    """A learner that may protect what it trains on (p2ptrain/privacy). Where it does not, the calls do nothing."""

    def ask_ahead(self, steps: int) -> bool:
        """Ask for the releases of a round of so many steps, from who counts them. False where that is refused:
        `take_step` then takes no more steps."""

    def release_of(self, steps: int) -> Release | None:
        """Return what a round of so many steps will release; None where nothing is protected."""

    def end_round(self) -> None:
        """Make the round's own move what may be released of it, in the live model. Call it before a snapshot."""


@runtime_checkable
class LooksAtData(Learner, Protocol):
    """A learner that tells how a model does on its own data, and what their inputs are like, for shift detectors."""

    def kept(self, x_d: torch.Tensor) -> torch.Tensor:
        """Return a copy of the model `x_d` (d,), on the CPU, whose looks no later step changes: with local parameters
        as they are now, where there are any. It may wait for a step."""

    def look_at_own(self, x_d: torch.Tensor, step: int, *, examples: int) -> DataLook:
        """Return what the model `x_d`, (d,) or a `kept` one, and the inputs say of so many examples of own data, as
        they are at `step`. Safe beside steps."""

    def look_at_held_out(self, x_d: torch.Tensor, *, examples: int) -> DataLook:
        """Return the same of held-out examples, which all nodes have alike. Safe beside steps."""


@runtime_checkable
class TakesSnapshots(Protocol):
    """A learner whose parameters are copied while it takes its next step: it knows when they are written to."""

    def snapshot(self) -> tuple[torch.Tensor, Gathering]:
        """Return what becomes a copy of the live parameters as they are now, and its gathering."""
