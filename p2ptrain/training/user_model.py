"""A model and an optimizer of the user's own: a `Learner` whose steps the user's training loop takes.

Nothing of the user's is replaced: parameters keep their storage, the optimizer its state. Between two steps, in the
thread that trains, the swarm's corrections are added to the parameters.
"""

import copy
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.metrics import MAX_METRICS, Measures, is_name
from p2ptrain.training.flat import fingerprint, frozen_digest, trainable
from p2ptrain.training.layout import StateLayout, layout_of, take_up_untrained, untrained_of
from p2ptrain.training.parameter_vector import ParameterVector
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.trainer import UNTRAINED_PREFIX

OPTIMIZER_PREFIX: Final = "optimizer."
"""Before the optimizer's state in `state_dict`: `optimizer.<number of the parameter>.<name>`."""

Evaluate = Callable[[nn.Module], float | Mapping[str, float]]
"""Returns the held-out loss of a model, in eval mode and under no_grad: a number, or a dict with `loss` and metrics."""


class UserModel:
    """Learner over `model`; `optimizer` is only read, for checkpoints. `evaluate` gets a copy of the bare model.

    Raises TaskError where the parameters cannot be averaged.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        config: TrainConfig,
        shard: Shard,
        *,
        data_seed: int,
        evaluate: Evaluate | None = None,
        metric: str = "loss",
    ) -> None:
        self.model = unwrapped(model)
        self.optimizer = optimizer
        self.config, self.shard, self.data_seed = config, shard, data_seed
        self.global_step = self.tokens = self.skipped_steps = 0
        self.learning_rate: float | None = None
        self.metric = metric
        self.units: Mapping[str, str] = {}
        self.newest_loss = math.nan
        """Mean loss of the newest step, where the user's loop has told it."""
        self.ended = False
        """Whether the user's loop takes no more steps. Set by the thread that trains."""
        self.changes = 0
        """How often the parameters were changed from outside the user's loop."""
        self._values = ParameterVector(self.model)
        self._trained = trainable(self.model)
        """What is averaged: what needed gradients at the join, whatever the user freezes or thaws since."""
        self.fingerprint = fingerprint(self.model)
        self.identity = frozen_digest(self.model)
        """Of what is frozen at the join: adapters over unlike base models must not be averaged."""
        self._evaluate = evaluate
        self._evaluating = threading.Lock()

    @property
    def numel(self) -> int:
        """How many parameters are trained."""
        return self._values.numel

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained."""
        return list(self._values.parameters)

    @property
    def device(self) -> torch.device:
        """Where the first parameter is."""
        return self._values.device

    @property
    def evaluates(self) -> bool:
        """Whether the user has given an `evaluate`."""
        return self._evaluate is not None

    def doubts(self) -> list[str]:
        """Return what a user should know of this model, a line each."""
        found = []
        if any(isinstance(each, _BatchNorm) and each.track_running_stats for each in self.model.modules()):
            found.append("the model has BatchNorm: its running statistics are not averaged, each member keeps its own")
        if self._values.is_rounded:
            found.append(
                "parameters in bf16 or fp16: corrections keep their rounding rests, but the optimizer's own updates "
                "do not; keep fp32 weights (dtype=torch.float32) and compute under autocast"
            )
        missing = self._missing_in_optimizer()
        if missing:
            found.append(f"{len(missing)} of {len(self._values.names)} trainable tensors are not in the optimizer")
        return found

    def _missing_in_optimizer(self) -> list[str]:
        if self.optimizer is None:
            return []
        held = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        pairs = zip(self._values.names, self._values.parameters, strict=True)
        return [name for name, parameter in pairs if id(parameter) not in held]

    steps_elsewhere: Final = True
    micro_batch: Final = None
    compile_fault: Final = ""

    def take_step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        """Note the step that the user's loop has taken. Return the loss that it has told, else nan; None when it takes
        no more. The rate is the user's: the arguments are not used."""
        if self.ended:
            return None
        self.global_step += 1
        if self.optimizer is not None:
            self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        loss, self.newest_loss = self.newest_loss, math.nan
        return loss

    def vector(self) -> torch.Tensor:
        """Return a copy of the live parameters, fp32 (d,) on the CPU."""
        return self._values.vector()

    def begin_round(self) -> None:
        """Do nothing: there is no drift correction in a loop of the user's own."""

    def correct(self, correction_d: torch.Tensor) -> None:
        """Add `correction_d` (d,) to the live parameters. ValueError on another shape."""
        self.changes += 1
        self._values.add_(correction_d)

    def load_vector(self, x_d: torch.Tensor) -> None:
        """Set the live parameters to `x_d` (d,). ValueError on another shape."""
        self.changes += 1
        self._values.load_(x_d)

    def evaluate(self, x_d: torch.Tensor | None = None) -> float:
        """Return the held-out loss of the model `x_d` (d,), or of the live one, on a copy of the model."""
        return self.measure(x_d).loss

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """Return the same, and the user's own metrics."""
        if self._evaluate is None:
            raise RuntimeError("join was given no evaluate")
        with self._evaluating, torch.no_grad():
            return measures_of(self._evaluate(self.model_with(x_d)))

    def model_with(self, x_d: torch.Tensor | None = None) -> nn.Module:
        """Return a copy of the bare model in eval mode, with the parameters `x_d` (d,) or the live ones."""
        model = copy.deepcopy(self.model).eval()
        if x_d is not None:
            trained = {name for name, _ in self._trained}
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name in trained)
            ParameterVector(model).load_(x_d)
        return model

    def judge(self, x_d: torch.Tensor, round: int) -> float:
        """Return the held-out loss of the model `x_d` (d,): the user's loop has no batch to spare."""
        return self.evaluate(x_d)

    def divergence(self, own_d: torch.Tensor, others: Iterable[torch.Tensor]) -> float | None:
        """Return None: what a user's model predicts is not known here."""
        return None

    def layout(self) -> StateLayout | None:
        """Return names, shapes and types of the bare model's `state_dict`; None where they are not enough."""
        return layout_of(self.model, self._trained)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return parameters, optimizer state, buffers and counters, as copies on the CPU."""
        return self._state(lambda tensor: tensor.to("cpu", copy=True).contiguous())

    def state_view(self) -> dict[str, torch.Tensor]:
        """Return `state_dict` without copies of the optimizer's tensors where they are on the CPU: to be read while
        nobody trains."""
        return self._state(lambda tensor: tensor.to("cpu").contiguous())

    def _state(self, take: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        untrained = {UNTRAINED_PREFIX + name: value for name, value in untrained_of(self.model, self._trained).items()}
        return {"parameters": self.vector(), **self._optimizer_state(take), **untrained, "counters": self.counters()}

    def counters(self) -> torch.Tensor:
        """Return int64 (3,): steps, tokens, skipped steps."""
        return torch.tensor([self.global_step, self.tokens, self.skipped_steps], dtype=torch.int64, device="cpu")

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up `state_dict`. What it lacks of parameters, optimizer and buffers stays as the user has set it.
        ValueError, with nothing changed, where it is of another model or optimizer."""
        parameters_d = state.get("parameters")
        if parameters_d is not None and parameters_d.shape != (self.numel,):
            raise ValueError(f"it has {parameters_d.numel()} trained parameters, and this model {self.numel}")
        counters = state.get("counters")
        if counters is None or counters.shape != (3,):
            raise ValueError("its counters are missing")
        self._load_optimizer(
            {name.removeprefix(OPTIMIZER_PREFIX): value for name, value in state.items() if _is_optimizers(name)}
        )
        if parameters_d is not None:
            self.load_vector(parameters_d)
        untrained = {
            name.removeprefix(UNTRAINED_PREFIX): value
            for name, value in state.items()
            if name.startswith(UNTRAINED_PREFIX)
        }
        take_up_untrained(self.model, untrained, self._trained)
        self.global_step, self.tokens, self.skipped_steps = (int(count) for count in counters)

    def _optimizer_state(self, take: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        """The optimizer's tensors and numbers, by parameter. What is neither (closures, histories) is left out."""
        found: dict[str, torch.Tensor] = {}
        state = {} if self.optimizer is None else self.optimizer.state_dict()["state"]
        for index, values in state.items():
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    found[f"{OPTIMIZER_PREFIX}{index}.{name}"] = take(value.detach())
                elif isinstance(value, int | float):
                    found[f"{OPTIMIZER_PREFIX}{index}.{name}"] = torch.tensor(
                        float(value), dtype=torch.float64, device="cpu"
                    )
        return found

    def _load_optimizer(self, saved: Mapping[str, torch.Tensor]) -> None:
        if not saved or self.optimizer is None:
            return
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        state: dict[int, dict[str, Any]] = {}
        for key, value in saved.items():
            number, _, name = key.partition(".")
            index = int(number) if number.isdecimal() else len(parameters)
            if index >= len(parameters) or (value.ndim and value.numel() > parameters[index].numel()):
                raise ValueError(f"its optimizer state {key} fits no parameter of this optimizer")
            is_number = value.ndim == 0 and value.dtype is torch.float64 and parameters[index].ndim
            state.setdefault(index, {})[name] = float(value) if is_number else value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, DataParallel and `torch.compile`: its names are those that files should have."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def torch_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """Return the torch optimizer inside wrappers such as Accelerate's and Lightning's. TaskError where there is
    none."""
    seen = optimizer
    for _ in range(8):  # as deep as wrappers are nested; chosen
        # Wrappers may pretend to be an Optimizer, and then pass `step` on to the one inside, whose hooks are called.
        inner = getattr(seen, "optimizer", None) or getattr(seen, "_optimizer", None)
        if not isinstance(inner, torch.optim.Optimizer):
            break
        seen = inner
    if not isinstance(seen, torch.optim.Optimizer):
        raise TaskError(
            f"{type(optimizer).__name__} is no torch optimizer: leave it out, and call swarm.step() after each step"
        )
    return seen


def measures_of(found: float | Mapping[str, float] | torch.Tensor) -> Measures:
    """Return what a user's `evaluate` has returned; of its metrics the first MAX_METRICS that are finite and have a
    name. TaskError where it is neither a number nor a dict with `loss`."""
    if not isinstance(found, Mapping):
        return Measures(loss=_number(found))
    if "loss" not in found:
        raise TaskError(f"evaluate returned a dict without 'loss': {', '.join(map(str, found))}")
    named = [(name, value) for name, value in found.items() if name != "loss" and is_name(name)][:MAX_METRICS]
    own = {name: number for name, value in named if math.isfinite(number := _number(value))}
    return Measures(loss=_number(found["loss"]), own=own)


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # what cannot be one is told
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(f"evaluate returned what is no number: {error}") from None


def _is_optimizers(name: str) -> bool:
    return name.startswith(OPTIMIZER_PREFIX)
