"""A model and an optimizer of the user's own: a `Learner` whose steps the user's training loop takes.

Nothing of the user's is replaced: parameters keep their storage, the optimizer its state. Between two steps, in the
thread that trains, the swarm's corrections are added to the parameters.

Where it is to `protect` what the loop trains on, either the move of each round is clipped and noised in the live
parameters at the round's end (private_moves.py), or the gradient of each step is a private one (private_loop_steps.py).
Whatever the node asks of the model, also in the midst of a round, is then answered with the model without the own moves
that are not released.
"""

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from p2ptrain import faults
from p2ptrain.privacy.base import BudgetSpentError, Release
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.saved.tensor_file import Storable, append
from p2ptrain.sync.sliced_vectors import SliceHolders
from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.calling import TaskFaultError
from p2ptrain.tasks.metrics import MAX_METRICS, Measures, is_name
from p2ptrain.training.copied_model import copied, own_forwards
from p2ptrain.training.flat import fingerprint, frozen_digest, trainable
from p2ptrain.training.layout import StateLayout, layout_of, take_up_untrained, untrained_of
from p2ptrain.training.loop_turn import LoopTurn, random_state_kept
from p2ptrain.training.names import canonical
from p2ptrain.training.optimizer_state import Take, packed, unpack_into
from p2ptrain.training.parameter_vector import ParameterVector
from p2ptrain.training.private_loop_steps import LoopExamples, PrivateLoopSteps
from p2ptrain.training.private_moves import PrivateMoves
from p2ptrain.training.private_training import PrivateTraining
from p2ptrain.training.sharded_model import ShardedModel
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.trainer import UNTRAINED_PREFIX

OPTIMIZER_PREFIX: Final = "optimizer."
"""Before the optimizer's state in `state_dict` (optimizer_state.py)."""

FINER_PREFIX: Final = "finer."
"""Before what the fp32 `parameters` of a state lack of those in float64."""

PRIVATE_STEPS: Final = "private_steps"
"""In `state_dict`, a bool (): the optimizer's state is of private steps alone. That of a protected round is not."""

Evaluate = Callable[[nn.Module], float | Mapping[str, float]]
"""Returns the held-out loss of a model, in eval mode and under no_grad: a number, or a dict with `loss` and metrics."""


class UserModel:
    """Learner over `model`; `optimizer` is only read, for checkpoints. `evaluate` gets a copy of the bare model, in
    the `turn` of an evaluation. `shards`: the ranks among which `model` is shared out.

    Raises TaskError where the parameters cannot be averaged, or are not the optimizer's.
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
        turn: LoopTurn | None = None,
        shards: ShardedModel | None = None,
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
        self._noted: deque[float] = deque()
        """The losses of steps that are noted, and not yet counted by `take_step`."""
        self.ended = False
        """Whether the user's loop takes no more steps. Set by the thread that trains."""
        self.changes = 0
        """How often the parameters were changed from outside the user's loop."""
        self._shards = shards
        self._values = ParameterVector(self.model) if shards is None else shards
        self._trained = trainable(self.model)
        """What is averaged: what needed gradients at the join, whatever the user freezes or thaws since."""
        # FSDP2 lets go of gathered parameters when it is asked for a state, and the node asks during a backward pass.
        self._sharded_layout = None if shards is None else layout_of(self.model, self._trained)
        self.fingerprint = fingerprint(self.model)
        self.identity = frozen_digest(self.model)
        """Of what is frozen at the join: adapters over unlike base models must not be averaged."""
        self.budget_spent = False
        """Whether no round is released any more, as it would exceed the budget of privacy."""
        self._private: PrivateMoves | PrivateLoopSteps | None = None
        self._evaluate = evaluate
        self._turn = turn or LoopTurn()
        self._told: set[str] = set()
        """The doubts that were returned already."""
        self._unkept: list[str] = []
        """Entries of the optimizer's state that the newest checkpoint leaves out."""
        if optimizer is not None and len(self._missing_in_optimizer()) == len(self._values.names):
            raise TaskError(
                f"the optimizer ({type(optimizer).__name__}) holds none of the model's trainable parameters, and would "
                "undo every correction: make it from model.parameters(), or leave it out and call swarm.step()"
            )

    def protect(self, privacy: PrivateTraining, public_d: torch.Tensor) -> None:
        """Release nothing of the own moves but as `privacy` says, from now on. The model begins at `public_d` (d,),
        which counts as known to everybody. Raises TaskError for a model in parts, and for what is protected otherwise
        than by the example or the round."""
        if not isinstance(self._values, ParameterVector):
            raise TaskError("[privacy] wants the whole model in one process, and this one is in parts")
        if privacy.privatizer.unit == "update":
            self._private = PrivateMoves(self._values, privacy, public_d)
        elif privacy.privatizer.unit == "example":
            self._private = PrivateLoopSteps(self.model, self.optimizer, self._values, privacy, public_d)
        else:
            raise TaskError(
                f"privacy.privatizer={privacy.privatizer.name} protects {privacy.privatizer.unit!r}, which a loop of "
                "one's own cannot: take update or example"
            )

    @property
    def private_steps(self) -> PrivateLoopSteps | None:
        """Return what makes the gradient of each step, where examples are protected."""
        return self._private if isinstance(self._private, PrivateLoopSteps) else None

    def fill_gradient(self, examples: LoopExamples) -> bool:
        """Put a private gradient of new draws into `.grad`. False where the budget does not allow it: then no more
        steps are counted. TaskError where the model was changed by something else than private steps."""
        assert self.private_steps is not None, "examples are protected"
        try:
            self.private_steps.fill_(examples)
        except BudgetSpentError:
            self.budget_spent = True
        return not self.budget_spent

    def ask_ahead(self, steps: int) -> bool:
        """Ask for what a round of so many steps will release, before the first of them. False where the budget does not
        allow it: then no more steps are counted. True where nothing is protected."""
        if self._private is not None:
            try:
                self._private.ask_ahead(steps)
            except BudgetSpentError:
                self.budget_spent = True
        return not self.budget_spent

    def release_of(self, steps: int) -> Release | None:
        """Return what a round of so many steps will release; None where nothing is protected."""
        return None if self._private is None else self._private.release_of(steps)

    def end_round(self) -> None:
        """Make the round's own move a release, in the live parameters, where rounds are protected. TaskError where they
        are not those of the join any more."""
        if self._private is not None:
            self._values.check_same(self.model)
            self.changes += 1
            self._private.end_round()

    @property
    def is_private(self) -> bool:
        """Return whether what the loop trains on is protected."""
        return self._private is not None

    @property
    def _moving(self) -> ParameterVector | ShardedModel | PrivateMoves | PrivateLoopSteps:
        """What changes the parameters from outside the user's loop."""
        return self._values if self._private is None else self._private

    def tell(self, *, loss: float | None, tokens: int) -> None:
        """Take what the user's loop says of its newest step. Where its data are protected, neither is kept: no noise
        covers them."""
        if self._private is None:
            self.newest_loss = math.nan if loss is None else float(loss)
            self.tokens += tokens

    @property
    def numel(self) -> int:
        """How many parameters are trained."""
        return self._values.numel

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Those that are trained."""
        return list(self._values.parameters)

    @property
    def device(self) -> torch.device:
        """Where the first parameter is."""
        return self._values.device

    @property
    def slices(self) -> SliceHolders | None:
        """Who holds the slices of vectors of this model, where they are not whole here."""
        return None if self._shards is None else self._shards.slices

    @property
    def evaluates(self) -> bool:
        """Whether the user has given an `evaluate`."""
        return self._evaluate is not None

    def doubts(self) -> list[str]:
        """Return what a user should know of this model, a line each, and each once. Call it between two steps."""
        found = [doubt for doubt in self._doubts() if doubt not in self._told]
        self._told.update(found)
        return found

    def _doubts(self) -> Iterator[str]:
        if any(isinstance(each, _BatchNorm) and each.track_running_stats for each in self.model.modules()):
            yield "the model has BatchNorm: its running statistics are not averaged, each member keeps its own"
        if self._values.is_rounded:
            yield (
                "parameters in bf16 or fp16: corrections keep their rounding rests, but the optimizer's own updates "
                "do not; keep fp32 weights (dtype=torch.float32) and compute under autocast"
            )
        if self._values.is_finer:
            yield (
                "parameters in float64 are shared in fp32: corrections are added to all their bits, but what fp32 has "
                "no room for stays each member's own"
            )
        if missing := self._missing_in_optimizer():
            yield f"{len(missing)} of {len(self._values.names)} trainable tensors are not in the optimizer"
        if thawed := self._thawed():
            yield (
                f"{thawed[0]}{f' and {len(thawed) - 1} more' if len(thawed) > 1 else ''} began to need gradients after "
                "the join, and is trained here alone: to share it, leave the swarm and join with a new run_dir"
            )
        if self._shards is not None and self._shards.doubt:
            yield self._shards.doubt
        for entry in self._unkept:
            yield f"the optimizer's state {entry} fits into no checkpoint: it begins anew when the run goes on"

    def _thawed(self) -> list[str]:
        """Names of parameters that need gradients now, and are not among those of the join."""
        shared = {id(parameter) for parameter in self._values.parameters}
        return [
            canonical(name)
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and id(parameter) not in shared
        ]

    def _missing_in_optimizer(self) -> list[str]:
        if self.optimizer is None:
            return []
        held = held_by(self.optimizer)
        pairs = zip(self._values.names, self._values.parameters, strict=True)
        return [name for name, parameter in pairs if id(parameter) not in held]

    steps_elsewhere: Final = True
    compile_fault: Final = ""

    @property
    def micro_batch(self) -> int | None:
        """Examples whose private gradients are made at a time, once memory has run out with more; else None: how the
        loop cuts its batches is its own."""
        return None if self.private_steps is None else self.private_steps.micro_batch

    def take_step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        """Count the step that the user's loop has taken, or the first of those that are noted. Return the loss that it
        has told, else nan; None when it takes no more. The rate is the user's: the arguments are not used."""
        if self.ended or self.budget_spent:
            return None
        if not self._noted:
            self.note_step()
        return self._noted.popleft()

    def note_step(self) -> None:
        """Note the step that the user's loop has taken, to be counted by `take_step`."""
        self.global_step += 1
        if self.optimizer is not None:
            self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        self._noted.append(self.newest_loss)
        self.newest_loss = math.nan

    def vector(self) -> torch.Tensor:
        """Return a copy of the live parameters, fp32 (d,) on the CPU; of those that may leave, where the own moves are
        protected. TaskError where they are not those of the join any more."""
        self._values.check_same(self.model)
        return self._values.vector() if self._private is None else self._private.public_d.clone()

    def begin_round(self) -> None:
        """Take out of the model what was not released of a round that was left, where own moves are protected. There is
        no drift correction in a loop of the user's own."""
        if self._private is not None:
            self._private.begin_round()

    def correct(self, correction_d: torch.Tensor) -> None:
        """Add `correction_d` (d,) to the live parameters. ValueError on another shape."""
        self.changes += 1
        self._moving.add_(correction_d)

    def load_vector(self, x_d: torch.Tensor) -> None:
        """Set the live parameters to `x_d` (d,). ValueError on another shape."""
        self.changes += 1
        self._moving.load_(x_d)

    def evaluate(self, x_d: torch.Tensor | None = None) -> float:
        """Return the held-out loss of the model `x_d` (d,), or of the live one, on a copy of the model."""
        return self.measure(x_d).loss

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """Return the same, and the user's own metrics."""
        if self._evaluate is None:
            raise RuntimeError("join was given no evaluate")
        with self._turn.taken(), torch.no_grad(), _evaluate_told():
            return measures_of(self._evaluate(own_forwards(self.model_with(x_d), self.model)))

    def evaluate_live(self) -> float:
        """Return the held-out loss of the user's own model, as it is: for the thread that trains. Its random numbers
        and the modes of its modules are as before."""
        if self._evaluate is None:
            raise RuntimeError("join was given no evaluate")
        modes = {module: module.training for module in self.model.modules()}
        try:
            with random_state_kept(), torch.no_grad():
                return measures_of(self._evaluate(self.model.eval())).loss
        finally:
            for module, training in modes.items():
                module.training = training

    def model_with(self, x_d: torch.Tensor | None = None) -> nn.Module:
        """Return a copy of the bare model in eval mode, with the parameters `x_d` (d,), or as `vector` returns them."""
        if x_d is None and self._private is not None:
            x_d = self._private.public_d
        model = copied(self.model).eval()
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
        return layout_of(self.model, self._trained) if self._shards is None else self._sharded_layout

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return parameters, optimizer state, buffers and counters, as copies on the CPU."""
        state = self._state(lambda tensor: tensor.to("cpu", copy=True).contiguous())
        return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}

    def state_view(self) -> Mapping[str, Storable]:
        """Return `state_dict` without copies of the optimizer's tensors where they are on the CPU: to be read while
        nobody trains. Those of a model in parts are put together in a file, one after another."""
        scratch = None if self._shards is None else self._shards.scratch
        return self._state(_in_memory if scratch is None else _Filing(scratch))

    def _state(self, take: Take) -> dict[str, Storable]:
        steps = self.private_steps
        found = untrained_of(self.model, self._trained) if steps is None else steps.untrained
        untrained = {UNTRAINED_PREFIX + name: value for name, value in found.items()}
        kept = self._values.finer() if self._private is None else {}  # bits of moves that are not released
        finer = {FINER_PREFIX + name: value for name, value in kept.items()}
        optimizer = self._optimizer_state(take)
        by = {} if steps is None else {PRIVATE_STEPS: torch.ones((), dtype=torch.bool)}
        return {"parameters": self.vector(), **finer, **optimizer, **untrained, **by, "counters": self.counters()}

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
        optimizer = _Under(OPTIMIZER_PREFIX, state)
        if self.private_steps is not None and len(optimizer) and PRIVATE_STEPS not in state:
            raise ValueError("its optimizer has seen gradients that were not private: give another run_dir")
        self._load_optimizer(optimizer)
        if parameters_d is not None:
            self.load_vector(parameters_d)
            if self._private is None:
                self._values.add_finer_(_Under(FINER_PREFIX, state))
        take_up_untrained(self.model, _Under(UNTRAINED_PREFIX, state), self._trained)
        if self.private_steps is not None:
            self.private_steps.untrained_loaded()
        self.global_step, self.tokens, self.skipped_steps = (int(count) for count in counters)

    def _optimizer_state(self, take: Take) -> dict[str, Storable]:
        if self.optimizer is None or (self.private_steps is not None and not self.private_steps.knows_optimizer):
            return {}
        if self._shards is None:
            found, self._unkept = packed(self.optimizer, self._names(), take)
        else:
            found, self._unkept = self._shards.packed_optimizer(take)
        return {OPTIMIZER_PREFIX + name: value for name, value in found.items()}

    def _load_optimizer(self, saved: Mapping[str, torch.Tensor]) -> None:
        if not saved or self.optimizer is None:
            return
        if self._shards is not None:
            self._shards.unpack_optimizer(saved)
        else:
            unpack_into(self.optimizer, self._names(), saved)
        if self.private_steps is not None:
            self.private_steps.optimizer_loaded()

    def _names(self) -> dict[int, str]:
        return {id(parameter): canonical(name) for name, parameter in self.model.named_parameters()}


class _Filing:
    """Puts tensors into a file without a name in a folder; what the disk does not take stays in memory."""

    def __init__(self, folder: Path) -> None:
        self._file: NamelessFile | None = None
        with suppress(OSError):
            self._file = NamelessFile(folder)

    def __call__(self, tensor: torch.Tensor) -> Storable:
        with suppress(OSError):
            if self._file is not None:
                return append(tensor, self._file)
        return _in_memory(tensor)


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu").contiguous()


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


def held_by(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the `id` of each parameter that the optimizer steps now."""
    return {id(each) for group in optimizer.param_groups for each in group["params"]}


def is_in_backward() -> bool:
    """Whether this thread is in a backward pass, in one of its hooks."""
    return torch._C._current_graph_task_id() != -1


_HOOKED_STEP: Final = torch.optim.Optimizer.profile_hook_step(lambda optimizer: None).__code__
"""What torch wraps each class's `step` in, with the hooks of the optimizer that steps."""


def is_inherited_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a hook of this optimizer's step is called by a step of its own, of a class that calls the step it
    inherits. torch wraps both, where the other class has had an optimizer too, and calls the hooks twice. Frames are
    looked at since a step that raises never says that it is over."""
    hooked, frame = 0, inspect.currentframe()
    while frame is not None and hooked < 2:
        hooked += frame.f_code is _HOOKED_STEP and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return hooked > 1


@contextmanager
def _evaluate_told() -> Iterator[None]:
    """Say of what the user's `evaluate` raises where it comes from: it is seen in another thread, by a step."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TaskError) or faults.is_device_lost(error):
            raise
        raise TaskFaultError(f"{faults.place_of(error) or 'evaluate'} raised {faults.what_of(error)}") from error


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


@dataclass(frozen=True)
class _Under(Mapping[str, torch.Tensor]):
    """What of a state has a prefix, under names without it. Each is asked for when it is needed, and not held."""

    prefix: str
    state: Mapping[str, torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.state[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in self.state if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
