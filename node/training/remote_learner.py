"""A learner in another process: `RemoteLearner` is what the node sees of it, `LearnerHost` answers where it is.

Of a user's own loop steps need no call: who takes them tells what came of each (`Counters`). A trainer that the node
has started itself is in remote_trainer.py. Vectors and states travel in shared memory (node/system/tensor_channel.py).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from node.metrics.gpu_metrics import GpuMemory, gpu_memory
from node.system.calls import Calls
from node.system.errors import RunError
from node.system.tensor_channel import ChannelClosedError
from p2ptrain.saved.tensor_file import TensorsInFile
from p2ptrain.tasks.base import Shard
from p2ptrain.tasks.metrics import Measures
from p2ptrain.training.base import Learner, OptimizerPlace, TellsInnerState
from p2ptrain.training.layout import StateLayout
from p2ptrain.training.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class LearnerFacts:
    """What does not change while a learner trains."""

    config: TrainConfig
    shard: Shard
    data_seed: int
    numel: int
    device: torch.device
    metric: str
    units: Mapping[str, str]
    evaluates: bool
    fingerprint: bytes
    identity: bytes
    layout: StateLayout | None
    optimizer_place: OptimizerPlace | None = None
    """Where it is a learner that tells of its steps."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """The counters of a learner, and the loss of its newest step (nan: not told)."""

    global_step: int
    tokens: int
    skipped_steps: int
    learning_rate: float | None
    loss: float = math.nan
    micro_batch: int | None = None
    compile_fault: str = ""
    gpu: GpuMemory | None = None


class RemoteLearner:
    """Learner whose model is at the other end of `steps`. `beside` is answered while that end trains."""

    def __init__(
        self, facts: LearnerFacts, taken: Counters, steps: Calls, beside: Calls, *, told: str | None = None
    ) -> None:
        """`told`: one more thing that the user should know."""
        self.config, self.shard, self.data_seed = facts.config, facts.shard, facts.data_seed
        self.numel, self.device, self.metric, self.units = facts.numel, facts.device, facts.metric, facts.units
        self.evaluates, self.fingerprint, self.identity = facts.evaluates, facts.fingerprint, facts.identity
        self.ended = False
        """Whether the other end takes no more steps."""
        self._facts, self._steps, self._beside = facts, steps, beside
        self._doubts = [told] if told else []
        self._loss = math.nan
        self.note(taken)

    @property
    def steps_elsewhere(self) -> bool:
        """Whether somebody else's loop takes the steps: yes."""
        return True

    def note(self, taken: Counters) -> None:
        """Take up the counters as they are now."""
        self.gpu = taken.gpu
        self.micro_batch, self.compile_fault = taken.micro_batch, taken.compile_fault
        self._global_step, self.tokens, self.skipped_steps = taken.global_step, taken.tokens, taken.skipped_steps
        self.learning_rate, self._loss = taken.learning_rate, taken.loss

    @property
    def global_step(self) -> int:
        """The next step's number."""
        return self._global_step

    @global_step.setter
    def global_step(self, step: int) -> None:
        self._global_step = step
        self._ask("set_global_step", step)

    def doubts(self) -> list[str]:
        """Return what the user should know of the model, a line each, and each once."""
        found, own = self._ask("doubts"), self._doubts
        assert isinstance(found, list)
        self._doubts = []
        return [*own, *found]

    def take_step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        """Return the loss of the step that was told last, else nan; None when no more is taken."""
        if self.ended:
            return None
        loss, self._loss = self._loss, math.nan
        return loss

    def vector(self) -> torch.Tensor:
        """Return a copy of the live parameters, fp32 (d,)."""
        return self._tensor("vector")

    def begin_round(self) -> None:
        """Do nothing, as `UserModel`."""

    def correct(self, correction_d: torch.Tensor) -> None:
        """Add `correction_d` (d,) to the live parameters. ValueError on another shape."""
        self._ask("correct", correction_d)

    def load_vector(self, x_d: torch.Tensor) -> None:
        """Set the live parameters to `x_d` (d,). ValueError on another shape."""
        self._ask("load_vector", x_d)

    def evaluate(self, x_d: torch.Tensor | None = None) -> float:
        """Return the held-out loss of the model `x_d` (d,), or of the live one."""
        return self.measure(x_d).loss

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """Return the same, and the user's own metrics."""
        found = self._ask_beside("measure", x_d)
        assert isinstance(found, Measures)
        return found

    def judge(self, x_d: torch.Tensor, round: int) -> float:
        """Return the loss of the model `x_d` (d,) by which it is judged in this round."""
        return float(self._ask_beside("judge", x_d, round))

    def divergence(self, own_d: torch.Tensor, others: Iterable[torch.Tensor]) -> float | None:
        """Return None, as `UserModel`."""
        return None

    def layout(self) -> StateLayout | None:
        """Return names, shapes and types of the bare model's `state_dict`; None where they are not enough."""
        return self._facts.layout

    def counters(self) -> torch.Tensor:
        """Return int64 (3,): steps, tokens, skipped steps."""
        return torch.tensor([self.global_step, self.tokens, self.skipped_steps], dtype=torch.int64)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return parameters, optimizer state, buffers and counters: copies, which shared memory makes of them."""
        state = self._ask("state")
        assert isinstance(state, dict)
        return state

    def state_view(self) -> dict[str, torch.Tensor]:
        """Return `state_dict`."""
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError, with nothing changed, where it is of another model or optimizer."""
        state = state if isinstance(state, TensorsInFile) else dict(state)  # the file is read where it is wanted
        taken = self._ask("load_state", state)
        assert isinstance(taken, Counters)
        self.note(taken)

    def _tensor(self, name: str) -> torch.Tensor:
        found = self._ask(name)
        assert isinstance(found, torch.Tensor)
        return found

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call the other end, in order with its steps."""
        return _asked(self._steps, name, *arguments)

    def _ask_beside(self, name: str, *arguments: Any) -> Any:
        """Call the other end, beside its steps."""
        return _asked(self._beside, name, *arguments)


def gpu_memory_of(learner: Learner) -> GpuMemory | None:
    """Return the memory of the GPU on which `learner` trains; None where that is not a CUDA device."""
    return learner.gpu if isinstance(learner, RemoteLearner) else gpu_memory(learner.device)


def _asked(calls: Calls, name: str, *arguments: Any) -> Any:
    try:
        return calls.call(name, *arguments)
    except ChannelClosedError:
        raise RunError(
            "the process that trains has ended", "start it again with the same run folder to go on"
        ) from None


class LearnerHost:
    """Answers for `learner`. `keeps_live`: a state that is to be loaded is not: the model is newer than it."""

    def __init__(self, learner: Learner, *, keeps_live: bool = False) -> None:
        self.learner, self._keeps_live = learner, keeps_live

    def again(self) -> "LearnerHost":
        """Return the host for another node in place of this one: the model is newer than that one's checkpoint."""
        return LearnerHost(self.learner, keeps_live=True)

    def facts(self) -> LearnerFacts:
        """Return what does not change."""
        it = self.learner
        return LearnerFacts(
            config=it.config,
            shard=it.shard,
            data_seed=it.data_seed,
            numel=it.numel,
            device=it.device,
            metric=it.metric,
            units=dict(it.units),
            evaluates=it.evaluates,
            fingerprint=it.fingerprint,
            identity=it.identity,
            layout=it.layout(),
            optimizer_place=it.optimizer_place() if isinstance(it, TellsInnerState) else None,
        )

    def taken(self, loss: float = math.nan) -> Counters:
        """Return the counters as they are now."""
        it = self.learner
        return Counters(
            global_step=it.global_step,
            tokens=it.tokens,
            skipped_steps=it.skipped_steps,
            learning_rate=it.learning_rate,
            loss=loss,
            micro_batch=it.micro_batch,
            compile_fault=it.compile_fault,
            gpu=gpu_memory(it.device),
        )

    def step_taken(self) -> Counters:
        """Count a step that was taken, and return what came of it."""
        loss = self.learner.take_step()
        return self.taken(math.nan if loss is None else loss)

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer a call of `RemoteLearner`. Raises what the learner raises."""
        it = self.learner
        match name, arguments:
            case "vector", ():
                return it.vector()
            case "correct", (correction_d,):
                it.correct(correction_d)
            case "load_vector", (x_d,):
                it.load_vector(x_d)
            case "measure", (x_d,):
                return it.measure(x_d)
            case "judge", (x_d, round):
                return it.judge(x_d, round)
            case "state", ():
                return it.state_view()
            case "load_state", (state,):
                if not self._keeps_live:
                    it.load_state_dict(state)
                return self.taken()
            case "doubts", ():
                return it.doubts()
            case "set_global_step", (step,):
                it.global_step = step
            case _:
                raise LookupError(name)
        return None
