"""One node's inner loop: local steps on its shard, with the model's vector open to corrections while it trains.

The parameters are one flat buffer (flat.py), which the inner optimizer (p2ptrain/inner) moves as one tensor, and the
drift correction (p2ptrain/drift) bends. A lock makes each public call atomic between steps: `step` may run in any one
worker thread while others read the vector, add a correction or evaluate. Evaluation uses a copy of the model under a
lock of its own, so that it runs beside a step and touches nothing live.

A step is a function of (parameters, buffers, step number): data is addressed by the step, so that a resumed run goes
on bit for bit (dropout, which draws from torch's global generator, would break that; the built-in tasks have none).
A step that runs out of memory is taken again, from the same random numbers, with half as many examples at a time
(micro_batch.py): its gradient stays that of the whole batch. On a GPU the number that fits is searched for from below
when a whole batch has not fitted for the first time.
A step whose loss or gradient is not finite is not taken: it is counted in `skipped_steps`, and the next one goes on.

With `train.local` some parameters are this node's alone (local_parameters.py): they move in the same steps, by an
optimizer of their own, and no vector that is given or taken here has them. A model that is evaluated has them as they
are now.

With `privacy` the gradient of each step is a private one (private_steps.py), or the move of each round is
(private_rounds.py). What it computes from its training data is then told to nobody otherwise: no loss, no count of
examples, no verdict of `judge`. Such a run does not go on bit for bit: examples and noise are drawn anew.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from p2ptrain import drift, inner
from p2ptrain.drift.base import SumsCorrections
from p2ptrain.drift.none import NoCorrection
from p2ptrain.inner.adamw import AdamW
from p2ptrain.inner.base import InnerOptimizer, bound_, moment_buffers
from p2ptrain.inner.filed_optimizer import FiledOptimizer
from p2ptrain.inner.inner_state import BufferPart, InnerState, Wanted, place_in
from p2ptrain.inner.muon import Muon
from p2ptrain.privacy.base import BudgetSpentError, Release
from p2ptrain.privacy.unprotected import Unprotected
from p2ptrain.saved.filed_vector import Refused
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.tasks.base import Batch, Shard, Task, TaskError, identity_of, optimizer_options, whole_batches
from p2ptrain.tasks.calling import calling, checked_loss
from p2ptrain.tasks.metrics import Measures, metric_units
from p2ptrain.training.base import Learner, OptimizerPlace
from p2ptrain.training.compiled_loss import CompiledLoss
from p2ptrain.training.data_looks import DataLook, fresh_batch, look_at
from p2ptrain.training.device_copies import Gathering, on_host, overwrite
from p2ptrain.training.evaluator import Evaluator, kl_of_mean
from p2ptrain.training.example_gradients import check_buffers
from p2ptrain.training.flat import FlatParameters, Named, fingerprint, places, trainable
from p2ptrain.training.layout import StateLayout, layout_of, take_up_untrained, untrained_of
from p2ptrain.training.local_parameters import LOCAL_PREFIX, LocalParameters, shared_and_local
from p2ptrain.training.machine import Machine
from p2ptrain.training.machine import pick_device as pick_device
from p2ptrain.training.micro_batch import MicroBatch
from p2ptrain.training.model import bind_parameters, build_model, shell_of
from p2ptrain.training.parked_tensors import ParkedTensors
from p2ptrain.training.preflight import kept_by_a_batch
from p2ptrain.training.private_rounds import PrivateRounds
from p2ptrain.training.private_steps import PrivateSteps, expected_tokens
from p2ptrain.training.private_training import PrivateTraining
from p2ptrain.training.train_config import TrainConfig, lr_at

DRIFT_PREFIX = "drift."
UNTRAINED_PREFIX = "model."
"""Before the names of buffers, frozen and local parameters in `state_dict`."""
PERSONAL_PREFIX = "personal."
"""Before the names of what a second model has there (personal_training.py)."""
JUDGED = 0x1D
"""Turned in the data's seed for what models are judged by: another order of the same shard."""


class Trainer(Learner):
    """Builds the task's model from the seed and trains it on one shard. TaskError when model or device do not fit,
    ValueError when the optimizer cannot train such a model.

    `data_seed` orders the data, by default as the seed does; nodes that share a shard need different ones.
    `tells` is what `inner_state` has, beside the model, of each round; `gradient` takes a vector more. `privacy`: how
    the shard's examples are protected; None: not at all. `model`: one that the task has built, on the machine's device,
    in place of a new one.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        shard: Shard,
        *,
        data_seed: int | None = None,
        tells: Collection[Wanted] = (),
        privacy: PrivateTraining | None = None,
        model: nn.Module | None = None,
    ) -> None:
        self.task, self.config, self.shard = task, config, shard
        self.data_seed = config.seed if data_seed is None else data_seed
        self.machine = Machine.of(config)
        self.global_step = 0
        """The next step's number; it addresses data and learning rate. Settable: a late joiner begins elsewhere."""
        self.tokens = 0
        self.learning_rate: float | None = None
        """Of the newest step that was taken."""
        """Predictions trained on since construction, or since the state that was loaded."""
        self.skipped_steps = 0
        """Steps not taken because loss or gradient was not finite."""
        self.model = build_model(task, config.seed).to(self.machine.device) if model is None else model
        shared, local = shared_and_local(self.model, config.local)
        self.fingerprint = fingerprint(self.model, shared)
        """32 bytes over names and shapes of shared parameters: equal on every node that can join in."""
        self.flat = FlatParameters(self.model, shared)
        """The shared parameters."""
        self._suited = optimizer_options(task).get(config.optimizer, {})
        self.optimizer = self._own_optimizer()
        self.optimizer.attach(self.flat)
        self.local = LocalParameters(self.model, shared, local, self._optimizer_of(local)) if local else None
        """Those of this node alone; None: there are none."""
        self._round_steps = 0
        """Steps since the round began."""
        self.drift = drift.get(config.drift, **config.drift_options())
        self.drift.attach(self.flat.data_d)
        self._sums_corrections = self.drift if isinstance(self.drift, SumsCorrections) else None
        self._tells = frozenset(tells)
        self._gradients_d = torch.zeros_like(self.flat.data_d) if "gradient" in self._tells else None
        self._summed = 0
        self._bends = self.drift.name != NoCorrection.name
        """Whether the drift correction wants the corrections, whole and on the device."""
        self._micro = MicroBatch(task)
        self._searches = self.machine.has_own_memory and not config.compile
        """Whether it is searched for how many examples fit at a time, once a whole batch has not. Compiled steps take
        less memory than those that it would be found out by, and another number of examples would compile them anew."""
        self._loss = CompiledLoss(task, compiles=config.compile)
        self._live = threading.Lock()
        self._parked: ParkedTensors | None = None
        """What training needs, while the device's memory is given back."""
        self._told_of_rounds = False
        self._evaluator = Evaluator(
            task, self.machine, self._shell, examples=config.eval_examples, shard=shard, bind=self._bind
        )
        self.budget_spent = False
        """Whether no more steps are taken, as they would exceed the budget of privacy."""
        self._private_steps: PrivateSteps | None = None
        self._private_rounds: PrivateRounds | None = None
        self._expected_tokens: int | None = None
        """Predictions that a step is said to have, where the true number would tell of private data."""
        if privacy is not None and privacy.privatizer.name != Unprotected.name:
            self._protect(privacy)

    def keep_optimizer_in(self, new_file: Callable[[], NamelessFile], refused: Refused) -> None:
        """Keep the inner optimizer's vectors in files from now on, with the same numbers. Call it while nobody trains,
        on a CPU. Raises ValueError for an optimizer that cannot be cut into blocks, and OSError where there is no room.
        """
        with self._live:
            self.optimizer = FiledOptimizer(
                self.optimizer, self._own_optimizer, self.flat, new_file=new_file, refused=refused
            )

    def take_at_a_time(self, examples: int) -> None:
        """Let no more examples go through the model at a time, in a step or an evaluation. The gradient is that of the
        whole batch, within rounding."""
        self._micro.take(examples)
        if self._private_steps is not None:
            draws = self._private_steps.draws
            draws.chunk = min(draws.chunk, examples)
        self._evaluator.take_at_a_time(examples)

    def least_at_a_time(self) -> int:
        """Return how few examples may go through the model at a time: 1, or a batch where the task's loss compares its
        examples, or the model cannot be trained on one, as with batch normalization. Call it before the first step."""
        if whole_batches(self.task):
            return self.config.batch_size
        try:
            self.kept_by(1)
        except Exception:  # whatever it is, a batch raises it again if it is the task's fault
            return self.config.batch_size
        return 1

    def kept_by(self, examples: int) -> int:
        """Return the bytes that the forward pass of so many examples keeps for the backward pass. TaskFaultError where
        they cannot be trained on. Call it before the first step."""
        with calling(self.task, "train_batch"):
            batch = self.task.train_batch(0, seed=self.data_seed, shard=self.shard, size=examples)
        with self._live:
            return kept_by_a_batch(self.task, self.model, self.machine, batch)

    def _own_optimizer(self) -> InnerOptimizer:
        return inner.get(self.config.optimizer, **{**self._suited, **self.config.optimizer_options()})

    def _optimizer_of(self, local: Named) -> InnerOptimizer:
        """One for the local parameters. Muon without a hidden matrix is the AdamW that it has beside it."""
        if self.config.optimizer != Muon.name or any(place.hidden for place in places(self.model, local)):
            return self._own_optimizer()
        given = {**self._suited, **self.config.optimizer_options()}
        return inner.get(AdamW.name, **{name: given[name] for name in ("weight_decay", "betas") if name in given})

    @property
    def identity(self) -> bytes:
        """What the task says of it."""
        return identity_of(self.task, self.model)

    @property
    def numel(self) -> int:
        """How many parameters are shared: the d of every vector."""
        return self.flat.numel

    @property
    def trained_numel(self) -> int:
        """How many parameters are trained: shared and local ones."""
        return self.numel + (0 if self.local is None else self.local.flat.numel)

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.machine.device

    @property
    def precision(self) -> str:
        """`bf16` or `fp32`."""
        return self.machine.precision

    @property
    def metric(self) -> str:
        """What the held-out loss is measured in, for people."""
        return self.task.metric

    @property
    def units(self) -> Mapping[str, str]:
        """Units of the task's own metrics, by name."""
        return metric_units(self.task)

    @property
    def evaluates(self) -> bool:
        """Whether it can tell a held-out loss: every task can."""
        return True

    @property
    def micro_batch(self) -> int | None:
        """Examples that go through the model at a time, where a whole batch was too much; None: a batch."""
        return self._micro.size

    @property
    def compile_fault(self) -> str:
        """Why steps are not compiled although they were to be; else empty."""
        return self._loss.fault

    @property
    def steps_elsewhere(self) -> bool:
        """Whether somebody else's loop takes the steps: no."""
        return False

    def take_step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        """As `step`. None, with no step taken, where the budget of privacy allows none."""
        if self.budget_spent:
            return None
        try:
            return self.step(schedule_step, rate_factor=rate_factor)
        except BudgetSpentError:
            self.budget_spent = True
            return None

    def ask_ahead(self, steps: int) -> bool:
        """Ask for what a round of so many steps will release, before the first of them. False where the budget does not
        allow it: then no more steps are taken."""
        with self._live:
            try:
                if self._private_steps is not None:
                    self._private_steps.allowance.ask_ahead(steps)
                elif self._private_rounds is not None:
                    self._private_rounds.allowance.ask_ahead(1)
            except BudgetSpentError:
                self.budget_spent = True
            return not self.budget_spent

    def release_of(self, steps: int) -> Release | None:
        """Return what a round of so many steps will release; None where nothing is protected."""
        if self._private_steps is not None:
            return self._private_steps.allowance.release_of(steps)
        return None if self._private_rounds is None else self._private_rounds.allowance.release_of(1)

    def end_round(self) -> None:
        """Make the round's own move a release, in the live model, where rounds are private. Call it before a snapshot.
        Raises BudgetSpentError where `ask_ahead` was not called."""
        if self._private_rounds is not None:
            with self._live:
                self._private_rounds.release_()

    def step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float:
        """Return one optimizer step over `grad_accumulation` batches; the mean loss: nan or inf when it was
        skipped, nan where it is private. Raises BudgetSpentError, with no step taken.

        The learning rate is that of `schedule_step`, by default of the step's own number, times `rate_factor`.
        """
        with self._live:
            loss = self._compute_gradient(self.global_step)
            private = self._private_steps is not None  # its loss is not known
            self._finish_step(schedule_step, rate_factor=rate_factor, usable=private or math.isfinite(loss))
            return loss if self._private_rounds is None else math.nan

    def gradient(self, step: int | None = None) -> tuple[float, torch.Tensor]:
        """The first half of `step`, for a strategy that averages gradients between the halves: mean loss, and gradient
        fp32 (d,) on the CPU, a copy, neither clipped nor checked, over the batches of `step` (by default the step's
        own number). The model does not move and the step's number stays."""
        with self._live:
            loss = self._compute_gradient(self.global_step if step is None else step)
            return loss, on_host(self.flat.copies, self.flat.grad_d)

    def apply_gradient(self, grad_d: torch.Tensor, schedule_step: int | None = None) -> bool:
        """The second half of `step`: clip `grad_d` (d,), move by it, go on to the next step's number. False when it is
        not finite: the step is then skipped and counted. ValueError on another shape. `grad_d` is not changed."""
        if grad_d.shape != (self.numel,):
            raise ValueError(f"a gradient of shape {tuple(grad_d.shape)} does not fit a model of {self.numel}")
        with self._live:
            self.machine.pin_threads()
            self.flat.copies.deliver([grad_d], [(self.flat.grad_d,)], overwrite)
            return self._finish_step(schedule_step, rate_factor=1.0, usable=True)

    def inner_state(self) -> InnerState:
        """Return what it `tells`: the `mean_gradient`, and copies of the optimizer's moments."""
        gradient_d = self.mean_gradient() if "gradient" in self._tells else None
        return InnerState(gradient_d=gradient_d, moments=self._moments() if "moments" in self._tells else {})

    def mean_gradient(self) -> torch.Tensor:
        """Return the mean of the gradients by which steps moved the model since the last call, clipped, fp32 (d,) on
        the CPU; zeros without a step. Only where it tells `gradient`."""
        with self._live:
            assert self._gradients_d is not None, "a trainer that sums no gradients"
            mean_d = on_host(self.flat.copies, self._gradients_d).div_(max(1, self._summed))
            self._gradients_d.zero_()
            self._summed = 0
            return mean_d

    def take_optimizer_state(self, parts: Sequence[BufferPart]) -> None:
        """Set parts of the inner optimizer's buffers; what is not named stays, and names that it does not have are
        passed over. ValueError, with nothing changed, on another shape."""
        with self._live:
            known = [part for part in parts if part.name in self.optimizer.buffers]
            places = [place_in(self.optimizer.buffers[part.name], part.at) for part in known]
            if any(part.values.shape != place.shape for part, place in zip(known, places, strict=True)):
                raise ValueError("the optimizer's state is of another model")
            self.flat.copies.deliver([part.values for part in known], [(place,) for place in places], overwrite)
            bound_(self.optimizer, known)

    def _moments(self) -> dict[str, torch.Tensor]:
        with self._live:
            buffers = self.optimizer.buffers
            names = [held.name for held in moment_buffers(self.optimizer)]
            return {name: on_host(self.flat.copies, buffers[name].view(-1)) for name in names}

    def optimizer_place(self) -> OptimizerPlace:
        """Return what an optimizer like its own is built of."""
        return OptimizerPlace(
            places=tuple(self.flat.places), options=self._suited, moments=moment_buffers(self.optimizer)
        )

    def vector(self) -> torch.Tensor:
        """Return a copy of the live parameters, fp32 (d,) on the CPU. Also while the device's memory is given back."""
        with self._live:
            if self._parked is not None:
                return self._parked.on_host(self._shown_d).clone()
            return on_host(self.flat.copies, self._shown_d)

    def snapshot(self) -> tuple[torch.Tensor, Gathering]:
        """Return what becomes a copy of the live parameters as they are now, fp32 (d,) on the CPU, and its gathering:
        steps may go on meanwhile, and wait for it before they move the model."""
        with self._live:
            return self.flat.snapshot()

    def doubts(self) -> list[str]:
        """Return nothing: a task is tried, and doubted, before a trainer is made for it."""
        return []

    def begin_round(self) -> None:
        """The model as it is now is a snapshot: the next correction is worked out from it, and a new round begins.

        Only a drift correction listens. Without any such call every correction is taken to be of the model that it is
        added to, which is so where nobody trains while a round closes.
        """
        with self._live:
            self._told_of_rounds = True
            self._round_steps = 0
            if self._private_rounds is not None:
                self._private_rounds.undo_()
            self.drift.begin_round(self.flat.data_d)

    def correct(self, correction_d: torch.Tensor) -> None:
        """Add `correction_d` (d,) to the live parameters, between two steps. ValueError on another shape."""
        with self._live:
            if self._private_rounds is not None:
                self._private_rounds.add_(correction_d)
            if not self._bends:
                self.flat.add_(correction_d)
                return
            correction_d = self.flat.taken(correction_d)
            if not self._told_of_rounds:
                self.drift.begin_round(self.flat.data_d)
            self.flat.copies.settle()
            self.flat.data_d.add_(correction_d)
            self.drift.close_round(correction_d)

    def train_local(self, batches: Iterable[Batch], rate: float) -> float:
        """Train the local parameters alone on these batches, with AdamW at this constant rate, before the first round.
        Return the newest loss; nan without a batch. A step whose loss or gradient is not finite is not taken. The run's
        own optimizer begins afresh after it."""
        assert self.local is not None, "a model without local parameters"
        loss = math.nan
        with self._live:
            self.machine.pin_threads()
            warm = AdamW(weight_decay=0.0)
            warm.attach(self.local.flat)
            for batch in batches:
                loss = self._step_local(batch, warm, rate)
            self.flat.grad_d.zero_()
            self.local.optimizer.attach(self.local.flat)
        return loss

    def _step_local(self, batch: Batch, rule: InnerOptimizer, rate: float) -> float:
        assert self.local is not None, "as `train_local` has found"
        self.local.flat.grad_d.zero_()
        with calling(self.task, "loss"):
            with self.machine.autocast():
                loss = checked_loss(self.task, self.task.loss(self.model, self.machine.take(batch)), trains=True)
            loss.backward()  # type: ignore[no-untyped-call]
        if math.isfinite(float(loss.detach())) and bool(self.local.flat.grad_d.isfinite().all()):
            self.local.flat.copies.settle()
            rule.step(rate)
        return float(loss.detach())

    def local_values(self) -> dict[str, torch.Tensor]:
        """Return copies of the local parameters on the CPU, by name."""
        with self._live:
            if self.local is None:
                return {}
            whole_l = self.local.vector()
            return {place.name: whole_l[place.span].view(place.shape) for place in self.local.flat.places}

    def load_untrained(self, values: Mapping[str, torch.Tensor]) -> None:
        """Set buffers, frozen and local parameters by name. What the model does not have like that is passed over."""
        with self._live:
            self._take_up_untrained(values)

    def load_vector(self, x_d: torch.Tensor) -> None:
        """Set the live parameters to `x_d` (d,); the optimizer's moments stay. ValueError on another shape."""
        with self._live:
            self.flat.load_(x_d)
            if self._gradients_d is not None:  # they are of another model
                self._gradients_d.zero_()
                self._summed = 0
            self.drift.begin_round(self.flat.data_d)
            if self._private_rounds is not None:
                self._private_rounds.begin()

    def evaluate(self, x_d: torch.Tensor | None = None) -> float:
        """Mean loss on the held-out examples of the model `x_d` (d,), or of the live one. Safe beside `step`."""
        return self._evaluator.loss(self.vector() if x_d is None else x_d)

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """Return the same, and the task's own metrics. Safe beside `step`."""
        return self._evaluator.measure(self.vector() if x_d is None else x_d)

    def own_loss(self, x_d: torch.Tensor) -> float:
        """Return the loss of the model `x_d` (d,) on what the shard holds out for itself; where it holds out nothing,
        on the held-out examples. Safe beside `step`."""
        return self._evaluator.own_loss(x_d)

    def logits(self, batches: list[Batch], x_d: torch.Tensor | None = None) -> torch.Tensor:
        """Return what the model `x_d` (d,), or the live one, says of `batches`: logits fp32 (n, classes) on the CPU.
        Safe beside `step`. ValueError for a model whose outputs are no logits of its targets."""
        return self._evaluator.logits(self.vector() if x_d is None else x_d, batches)

    def divergence(self, own_d: torch.Tensor, others: Iterable[torch.Tensor]) -> float | None:
        """Return how far the predictions of the model `own_d` (d,) are from the mean of those of the `others`, on a few
        held-out examples: KL(mean of theirs || own), in nats a prediction. None without others, and for a task whose
        loss is not in nats or whose model gives no logits. Safe beside `step`; one pass of a small batch a model."""
        if not self.task.metric.startswith("nats"):
            return None
        try:
            own = self._evaluator.log_probabilities(own_d)
            return kl_of_mean(map(self._evaluator.log_probabilities, others), own)
        except Exception:  # a task of the user's own may have any model: then there is nothing to compare
            return None

    def judge(self, x_d: torch.Tensor, round: int) -> float:
        """Mean loss of the model `x_d` (d,) on a batch of own data: the same one in a round, another in the next, and
        drawn apart from those that are trained on. Where these are private, on held-out data instead. Safe beside
        `step`."""
        size = self.config.batch_size
        if self.is_private:
            return self._evaluator.loss(x_d, self.task.eval_batches(size))
        with calling(self.task, "train_batch"):
            batch = self.task.train_batch(round, seed=self.data_seed ^ JUDGED, shard=self.shard, size=size)
        return self._evaluator.loss(x_d, [batch])

    def kept(self, x_d: torch.Tensor) -> torch.Tensor:
        """Return a copy of `x_d` (d,) followed by the local parameters as they are now, (d + l,) on the CPU: a model
        for `look_at_own` that no step moves. It waits for a step that is under way."""
        with self._live:
            return x_d.clone() if self.local is None else torch.cat([x_d, self.local.vector()])

    def look_at_own(self, x_d: torch.Tensor, step: int, *, examples: int) -> DataLook:
        """Return what the model `x_d`, (d,) or a `kept` one, and the inputs say of so many examples of own data, as
        they are at `step`. Safe beside `step`."""
        with calling(self.task, "train_batch"):
            batch = fresh_batch(self.task, step, seed=self.data_seed, shard=self.shard, examples=examples)
        return look_at([batch], partial(self._evaluator.losses, x_d))

    def look_at_held_out(self, x_d: torch.Tensor, *, examples: int) -> DataLook:
        """Return the same of held-out examples, at most so many, which all nodes have alike. Safe beside `step`."""
        with calling(self.task, "eval_batches"):
            batches = self.task.eval_batches(examples)
        return look_at(batches, partial(self._evaluator.losses, x_d))

    def model_with(self, x_d: torch.Tensor | None = None) -> nn.Module:
        """Return a model of its own in eval mode, with the parameters `x_d` (d,) or the live ones: to generate from."""
        vector_d = self.vector() if x_d is None else x_d.clone()
        return self._bind(vector_d, self._shell())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Everything a checkpoint needs, as copies on the CPU: parameters, the optimizer's buffers, the drift
        correction's (as `drift.<name>`), what the model has beside trained parameters (as `model.<name>`) and counters.
        `parameters` may be replaced by a corrected vector."""
        with self._live:
            return self._state(lambda it: it.clone() if it.device.type == "cpu" else on_host(self.flat.copies, it))

    def state_view(self) -> dict[str, torch.Tensor]:
        """Return `state_dict` without copies, where it is on the CPU: to be read while nobody trains."""
        with self._live:
            return self._state(lambda it: it if it.device.type == "cpu" else on_host(self.flat.copies, it))

    def give_back_memory(self) -> None:
        """Move the parameters and the optimizer's state to the host: most of what training holds. Frozen parameters
        stay, for evaluations read them. On a CPU nothing is done."""
        if self.device.type != "cpu":
            self.park()

    def park(self) -> int:
        """Do so on any device, and return how many bytes it gave back."""
        with self._live:
            self.flat.copies.settle()
            sums = () if self._gradients_d is None else (self._gradients_d,)
            own = {} if self.local is None else self.local.buffers  # stay, as what evaluations read does
            parked = [tensor for name, tensor in self._buffers().items() if name not in own]
            self._parked = ParkedTensors([*parked, self.flat.grad_d, *sums])
            self._evaluator.when_idle(self.machine.free_workspaces)
            self.machine.free()
            return self._parked.nbytes

    def take_memory(self) -> None:
        """Move it back. Raises torch.OutOfMemoryError, with nothing changed, where the device has no room."""
        with self._live:
            if self._parked is not None:
                self._parked.bring_back()
                self._parked = None

    def layout(self) -> StateLayout | None:
        """Names, shapes and types of the model's own `state_dict`; None where they are not enough (`layout_of`)."""
        with self._live:
            return layout_of(self.model, self._shared)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError, with nothing changed, when it is of another model, of another optimizer or
        drift correction, or incomplete. What is not trained, and numbers of the drift correction, may be missing, as in
        the states of older releases. Each tensor is asked for when it is copied, and not held."""
        untrained = {
            name.removeprefix(UNTRAINED_PREFIX): state[name] for name in state if name.startswith(UNTRAINED_PREFIX)
        }
        with self._live:
            buffers = self._buffers()
            if self.local is not None:
                self.local.check(untrained)
            elif any(name.startswith(LOCAL_PREFIX) for name in state):
                raise ValueError("it has local parameters, and this run has none: train.local was another")
            self._check_state(state, {name: tensor.shape for name, tensor in buffers.items()} | {"counters": (3,)})
            for name, tensor in buffers.items():
                if name in state and isinstance(self.optimizer, FiledOptimizer) and name in self.optimizer.buffers:
                    self.optimizer.put(name, state[name])
                elif name in state:
                    self.flat.copies.deliver([state[name]], [(tensor,)], overwrite)
            self._take_up_untrained(untrained)
            self.global_step, self.tokens, self.skipped_steps = (int(count) for count in state["counters"])
            if self._private_rounds is not None:
                self._private_rounds.begin()

    @property
    def is_private(self) -> bool:
        """Return whether the shard's examples are protected."""
        return self._private_steps is not None or self._private_rounds is not None

    @property
    def _shown_d(self) -> torch.Tensor:
        """The parameters that may be seen: where rounds are private, those without the own steps of the round under
        way."""
        return self.flat.data_d if self._private_rounds is None else self._private_rounds.shown_d

    def _protect(self, privacy: PrivateTraining) -> None:
        if privacy.privatizer.unit == "example":
            self._private_steps = PrivateSteps(
                self.task,
                self.model,
                [self.flat] if self.local is None else [self.flat, self.local.flat],
                self.machine,
                self.shard,
                privacy,
                self._micro,
                batch_size=self.config.batch_size * self.config.grad_accumulation,
            )
        elif privacy.privatizer.unit in ("update", "sum"):
            if self.local is not None:
                raise TaskError(
                    f"privacy.privatizer={privacy.privatizer.name} hides a round's move of shared parameters: what is "
                    "shown of a model with local ones (train.local) would not be covered; take "
                    "privacy.privatizer=example"
                )
            with calling(self.task, "train_batch"):
                batch = self.task.train_batch(0, seed=self.data_seed, shard=self.shard, size=self.config.batch_size)
            with calling(self.task, "loss"):
                check_buffers(self.task.loss, self.model, self.machine, batch)
            self._private_rounds = PrivateRounds(self.flat, privacy)
            examples = self.config.batch_size * self.config.grad_accumulation
            self._expected_tokens = round(examples * expected_tokens(self.task))
        else:
            raise TaskError(
                f"privacy.privatizer={privacy.privatizer.name} protects {privacy.privatizer.unit!r}, which no trainer "
                "knows: its unit has to be 'example', 'update' or 'sum'"
            )

    def _state(self, take: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        counters = torch.tensor([self.global_step, self.tokens, self.skipped_steps], dtype=torch.int64, device="cpu")
        buffers = self._told_buffers()
        if self._parked is not None:
            buffers = {name: self._parked.on_host(tensor) for name, tensor in buffers.items()}
        state = {name: take(tensor) for name, tensor in buffers.items()}
        kept = () if self.local is None else self.local.names
        found = untrained_of(self.model, self._shared, kept)
        untrained = {UNTRAINED_PREFIX + name: value for name, value in found.items()}
        return {**state, **untrained, "counters": counters}

    def _buffers(self) -> dict[str, torch.Tensor]:
        drift_buffers = {DRIFT_PREFIX + name: tensor for name, tensor in self.drift.buffers.items()}
        local_buffers = {} if self.local is None else self.local.buffers
        return {"parameters": self.flat.data_d, **self.optimizer.buffers, **drift_buffers, **local_buffers}

    def _told_buffers(self) -> dict[str, torch.Tensor]:
        return {**self._buffers(), "parameters": self._shown_d}

    def _check_state(self, state: Mapping[str, torch.Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
        given = {name for name in state if not name.startswith((UNTRAINED_PREFIX, PERSONAL_PREFIX))}
        made_by = f"this run has optimizer {self.config.optimizer} and drift {self.config.drift}"
        optional = {name for name, shape in shapes.items() if name.startswith(DRIFT_PREFIX) and not shape}
        if missing := shapes.keys() - given - optional:
            raise ValueError(f"the trainer's state lacks {', '.join(sorted(missing))}: {made_by}")
        if foreign := given - shapes.keys():
            raise ValueError(f"the trainer's state also has {', '.join(sorted(foreign))}: {made_by}")
        for name, shape in shapes.items():
            if name in given and state[name].shape != shape:
                raise ValueError(
                    f"{name} has shape {tuple(state[name].shape)}, not {tuple(shape)}: "
                    f"the model has {self.numel} parameters, and {made_by}"
                )

    def _compute_gradient(self, step: int) -> float:
        """The gradient of `step`'s batches, left in the flat buffer; the loss."""
        self.machine.pin_threads()
        points = [(flat, point_d) for flat, rule in self._trained() if (point_d := rule.gradient_point()) is not None]
        if not points:
            return self._backward(step)
        kept = [(flat, flat.data_d.clone()) for flat, _ in points]
        self.flat.copies.settle()
        for flat, point_d in points:
            flat.data_d.copy_(point_d)
        try:
            return self._backward(step)
        finally:
            for flat, kept_d in kept:
                flat.data_d.copy_(kept_d)

    def _backward(self, step: int) -> float:
        """Forwards and backwards: without compiling once that has failed, and with ever smaller micro-batches until
        they fit. Of private steps the loss is nan."""
        if self._private_steps is not None:
            self._private_steps.gradient_()
            self.tokens += self._private_steps.tokens
            return math.nan
        while True:
            searches = False
            restore_random_state = self.machine.random_state()
            for flat, _ in self._trained():
                flat.grad_d.zero_()
            try:
                loss, tokens = self._accumulate(step)
            except Exception as error:
                if not self._loss.gives_up(error):
                    self._micro.halve(error, self._batch(step, 0))
                    searches, self._searches = self._searches, False
            else:
                self.tokens += tokens if self._expected_tokens is None else self._expected_tokens
                return loss
            self.machine.free()
            if searches:
                self._search(step)
            restore_random_state()

    def _search(self, step: int) -> None:
        """Find out how many examples fit at a time, with those of `step`, all of which did not."""

        def attempt(twin: nn.Module, piece: Batch) -> None:
            with calling(self.task, "loss"):
                with self.machine.autocast():
                    loss = checked_loss(self.task, self.task.loss(twin, self.machine.take(piece)), trains=True)
                loss.backward()  # type: ignore[no-untyped-call]

        self._micro.search(self._batch(step, 0), self.model, attempt, self.machine.free)

    def _accumulate(self, step: int) -> tuple[float, int]:
        """Add the gradient of `step`'s batches to the flat buffer. The mean loss, and the predictions."""
        total, tokens, parts = (
            torch.zeros((), device=self.device, dtype=torch.float32),
            0,
            self.config.grad_accumulation,
        )
        for part in range(parts):
            cut = self._micro.cut(self._batch(step, part))
            predictions = sum(count for _, count in cut)
            for piece, count in cut:
                share = 1.0 if len(cut) == 1 else count / predictions
                with calling(self.task, "loss"):
                    piece = self.machine.take(piece)
                    with self.machine.autocast():
                        loss = checked_loss(self.task, self._loss(self.model, piece), trains=True)
                        loss = loss if share == 1 else loss * share
                    whole = loss if parts == 1 else loss / parts  # each is a step back that a small model would notice
                    whole.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            tokens += predictions
        return float(total) / parts, tokens

    def _batch(self, step: int, part: int) -> Batch:
        address = step * self.config.grad_accumulation + part
        size = self.config.batch_size
        with calling(self.task, "train_batch"):
            return self.task.train_batch(address, seed=self.data_seed, shard=self.shard, size=size)

    def _finish_step(self, schedule_step: int | None, *, rate_factor: float, usable: bool) -> bool:
        taken = usable and self._update(self.global_step if schedule_step is None else schedule_step, rate_factor)
        self.skipped_steps += not taken
        self.global_step += 1
        self._round_steps += 1
        return taken

    def _update(self, schedule_step: int, rate_factor: float) -> bool:
        """Bend, clip and move; False, with nothing moved, when the gradient is not finite."""
        if self._sums_corrections is not None:
            self._sums_corrections.round_steps = self.config.steps_around(schedule_step)
        point_d = self.optimizer.gradient_point()
        self.drift.adjust(self.flat.grad_d, self.flat.data_d if point_d is None else point_d)
        moving = self._moving()
        norm = math.hypot(*(float(torch.linalg.vector_norm(flat.grad_d)) for flat, _ in moving))
        if not math.isfinite(norm):
            return False
        if 0 < self.config.clip_norm < norm:
            for flat, _ in moving:
                flat.grad_d.mul_(self.config.clip_norm / norm)
        moves_shared = moving[0][0] is self.flat
        if self._gradients_d is not None and moves_shared:
            self._gradients_d.add_(self.flat.grad_d)
            self._summed += 1
        rate = rate_factor * lr_at(schedule_step, self.config.total_steps, self.config)
        self.learning_rate = rate
        self.flat.copies.settle()  # a snapshot was gathered beside this step so far
        for _, rule in moving:
            rule.step(rate)
        if moves_shared:
            self.drift.nudge(self.flat.data_d, rate)
        return True

    def _trained(self) -> list[tuple[FlatParameters, InnerOptimizer]]:
        """All that is trained, with what moves it: the shared parameters first."""
        shared = [(self.flat, self.optimizer)]
        return shared if self.local is None else [*shared, (self.local.flat, self.local.optimizer)]

    def _moving(self) -> list[tuple[FlatParameters, InnerOptimizer]]:
        """What this step moves of it."""
        if not self.config.local_steps:
            return self._trained()
        return self._trained()[1:] if self._round_steps < self.config.local_steps else self._trained()[:1]

    @property
    def _shared(self) -> Named | None:
        """The shared parameters by name; None: all that are trained."""
        if self.local is None:
            return None
        return [each for each in trainable(self.model) if each[0] not in self.local.names]

    def _take_up_untrained(self, values: Mapping[str, torch.Tensor]) -> None:
        if self.local is not None:
            self.local.flat.copies.settle()
        take_up_untrained(self.model, values, self._shared)

    def _bind(self, x_d: torch.Tensor, shell: nn.Module) -> nn.Module:
        """`shell` with `x_d` (d,) as its shared parameters, and copies of the local ones as they are now; of a `kept`
        model with its own."""
        if self.local is None:
            return bind_parameters(x_d, shell)
        if x_d.shape == (self.trained_numel,):
            return self.local.bind(x_d[: self.numel], x_d[self.numel :], shell)
        with self._live:
            local_l = self.local.vector()
        return self.local.bind(x_d, local_l, shell)

    def _shell(self) -> nn.Module:
        with self._live:
            return shell_of(self.model)
