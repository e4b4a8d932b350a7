"""A member that shares what its model says of a public batch, and no parameters: models of any shape train together.

    x        the model's logits on the public batch, (n, classes) as one vector (d,), d = n classes
    target   <- x + correction: what a robust rule makes of all members' logits
    each own step, then a step on public examples:  theta <- theta - rate grad T^2 KL(target_T || model_T)

So every strategy, codec, aggregator, snapshot and check works on x as it does on a model's parameters. Sources: FedMD
(1910.03581) for logits on public data among different models; Cronus (1912.11279) for robust aggregation of them;
codistillation (1804.03235) for a term beside the own loss in place of a phase of its own.

The public step has an optimizer and a copy of the model of its own, as Ditto's second model has: what protects own data
(`privacy.privatizer = "example"`) sees own steps alone. The other step follows from what others have sent and from a
model that is protected already.

Costs: a step on as many public examples with each own step, one pass of the public batch a round, and the vectors of
one more model and optimizer.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from p2ptrain.privacy.base import Release
from p2ptrain.saved.tensor_file import Storable
from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.metrics import Measures
from p2ptrain.training.base import Learner
from p2ptrain.training.data_looks import DataLook
from p2ptrain.training.device_copies import GATHERED, Gathering
from p2ptrain.training.evaluator import kl_of_mean
from p2ptrain.training.layout import StateLayout
from p2ptrain.training.model import shell_of
from p2ptrain.training.public_logits import LARGEST_LOGIT, ConsensusTask, PublicBatch, shared_form
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.trainer import UNTRAINED_PREFIX, Trainer

CONSENSUS_PREFIX = "consensus."
"""Before the names of what public steps have in a state: `consensus.target`, and the optimizer's."""
_TARGET = CONSENSUS_PREFIX + "target"


class LogitsTrainer(Learner):
    """`own` with logits as its vector. Vectors are fp32 (d,) on the CPU, `numel` = predictions times classes.

    What is evaluated, judged and saved is the live model: no other can be made of logits. TaskError where the task has
    no public batch, where `train.public_digest` names another one, or where the model gives no logits of it.
    """

    def __init__(self, own: Trainer) -> None:
        self.own = own
        """What trains the model on own data."""
        self.config, self.shard, self.data_seed = own.config, own.shard, own.data_seed
        self._public = PublicBatch(own.task)
        _check_address(self._public, own.config.public_digest)
        self._consensus = ConsensusTask(own.task, self._public, own.config.distill_temperature)
        self._parts = self._public.parts()
        classes = self._heard().shape[-1]
        self.fingerprint = hashlib.blake2b(self._public.address + classes.to_bytes(8, "big"), digest_size=32).digest()
        """32 bytes over the public batch and the number of classes: the model's shape is each member's own."""
        self._classes = classes
        rate = own.config.learning_rate * own.config.distill_rate
        config = replace(own.config, learning_rate=rate, grad_accumulation=1)
        self._public_steps = Trainer(
            self._consensus, config, Shard(), data_seed=own.data_seed, model=shell_of(own.model).train()
        )
        if own.micro_batch is not None:  # `node.micro_batch`
            self._public_steps.take_at_a_time(own.micro_batch)
        self._has_target = False
        self._count()
        self._told_d = torch.zeros(self.numel, dtype=torch.float32)
        """The newest snapshot."""
        self._snapshot_d = self._told_d
        """That to which the next correction belongs."""

    @property
    def address(self) -> bytes:
        """The public batch's address."""
        return self._public.address

    @property
    def global_step(self) -> int:
        """The next step's number."""
        return self.own.global_step

    @global_step.setter
    def global_step(self, step: int) -> None:
        self.own.global_step = step

    @property
    def identity(self) -> bytes:
        """Nothing: members may hold different models."""
        return b""

    @property
    def numel(self) -> int:
        """How many logits are shared."""
        return self._public.predictions * self._classes

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.own.device

    @property
    def metric(self) -> str:
        """What the held-out loss is measured in."""
        return self.own.metric

    @property
    def units(self) -> Mapping[str, str]:
        """Units of the task's own metrics, by name."""
        return self.own.units

    @property
    def evaluates(self) -> bool:
        """Whether it can tell a held-out loss."""
        return self.own.evaluates

    @property
    def micro_batch(self) -> int | None:
        """Examples that go through the model at a time; None: a batch."""
        return self.own.micro_batch

    @property
    def compile_fault(self) -> str:
        """Why own steps are not compiled although they were to be; else empty."""
        return self.own.compile_fault

    @property
    def steps_elsewhere(self) -> bool:
        """Whether somebody else's loop takes the steps: no."""
        return False

    def initial_vector(self) -> torch.Tensor:
        """Return what all members begin from, whatever their models: zeros (d,), by which all classes are alike."""
        return torch.zeros(self.numel, dtype=torch.float32)

    def take_step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        """Take an own step and, once there is a consensus, a public one at the same place of the schedule. Return the
        own step's mean loss; None where no step was taken, nor will be."""
        place = self.global_step if schedule_step is None else schedule_step
        loss = self.own.take_step(schedule_step, rate_factor=rate_factor)
        self._count()
        if loss is not None and self._has_target and self._public_steps.config.learning_rate > 0:
            self._public_steps.load_vector(self.own.vector())
            self._public_steps.step(place, rate_factor=rate_factor)
            self.own.load_vector(self._public_steps.vector())
        return loss

    def ask_ahead(self, steps: int) -> bool:
        """As `Trainer.ask_ahead`, for own steps: public ones release nothing of own data."""
        return self.own.ask_ahead(steps)

    def release_of(self, steps: int) -> Release | None:
        """Return what own steps of a round will release; None where nothing is protected."""
        return self.own.release_of(steps)

    def end_round(self) -> None:
        """As `Trainer.end_round`."""
        self.own.end_round()

    def vector(self) -> torch.Tensor:
        """Return what the live model says of the public batch (d,). Safe beside steps."""
        return shared_form(self._heard()).flatten()

    def snapshot(self) -> tuple[torch.Tensor, Gathering]:
        """Return the same, which the next round's correction belongs to."""
        self._told_d = self.vector()
        return self._told_d.clone(), GATHERED

    def begin_round(self) -> None:
        """The newest snapshot is the one whose correction comes next."""
        self.own.begin_round()
        self._snapshot_d = self._told_d

    def correct(self, correction_d: torch.Tensor) -> None:
        """Learn from here on towards the snapshot and its correction (d,). ValueError on another shape."""
        self._aim_at(self._snapshot_d + self._checked(correction_d))

    def load_vector(self, x_d: torch.Tensor) -> None:
        """Learn from here on towards the logits `x_d` (d,): no parameters follow from them. ValueError on another
        shape."""
        self._told_d = self._snapshot_d = self._checked(x_d).clone()
        self._aim_at(self._told_d)

    def evaluate(self, x_d: torch.Tensor | None = None) -> float:
        """Return the held-out loss of the live model, whatever `x_d` is. Safe beside steps."""
        return self.own.evaluate()

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """Return the same, and the task's own metrics. Safe beside steps."""
        return self.own.measure()

    def judge(self, x_d: torch.Tensor, round: int) -> float:
        """Return the live model's loss on data of its own. Safe beside steps."""
        return self.own.judge(self.own.vector(), round)

    def divergence(self, own_d: torch.Tensor, others: Iterable[torch.Tensor]) -> float | None:
        """Return how far the logits `own_d` (d,) are from the mean of what the others say: KL(mean || own), in nats a
        prediction. None without others."""
        return kl_of_mean(map(self._log_probabilities, others), self._log_probabilities(own_d))

    def kept(self, x_d: torch.Tensor) -> torch.Tensor:
        """Return a copy of `x_d`: what is looked at is the live model all the same."""
        return x_d.clone()

    def look_at_own(self, x_d: torch.Tensor, step: int, *, examples: int) -> DataLook:
        """Return what the live model and the inputs say of own data. Safe beside steps."""
        return self.own.look_at_own(self.own.vector(), step, examples=examples)

    def look_at_held_out(self, x_d: torch.Tensor, *, examples: int) -> DataLook:
        """Return the same of held-out examples. Safe beside steps."""
        return self.own.look_at_held_out(self.own.vector(), examples=examples)

    def layout(self) -> StateLayout | None:
        """Return names, shapes and types of the model's own `state_dict`."""
        return self.own.layout()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """As `Trainer.state_dict`: `parameters` are the model's. With what public steps have, as `consensus.<name>`."""
        return {**self.own.state_dict(), **self._consensus_state(self._public_steps.state_dict())}

    def state_view(self) -> Mapping[str, Storable]:
        """As `Trainer.state_view`."""
        return {**self.own.state_view(), **self._consensus_state(self._public_steps.state_view())}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError, with nothing of the model changed, where it is of another."""
        of_public = {name: state[name] for name in state if name.startswith(CONSENSUS_PREFIX)}
        if not of_public:
            raise ValueError("it shares parameters, and this run shares logits: train.shares was another")
        target_d = of_public.pop(_TARGET, None)
        if target_d is not None:
            self._checked(target_d)
        self.own.load_state_dict({name: state[name] for name in state if not name.startswith(CONSENSUS_PREFIX)})
        steps = {name.removeprefix(CONSENSUS_PREFIX): value for name, value in of_public.items()}
        self._public_steps.load_state_dict({**steps, "parameters": self.own.vector()})
        self._count()
        self._told_d = self._snapshot_d = self.vector()
        if target_d is not None:
            self._aim_at(target_d.clone())

    def doubts(self) -> list[str]:
        """Return nothing."""
        return []

    def _count(self) -> None:
        """Take up the counts of own steps: public ones train on nobody's data."""
        self.tokens, self.skipped_steps = self.own.tokens, self.own.skipped_steps
        self.learning_rate = self.own.learning_rate

    def _heard(self) -> torch.Tensor:
        try:
            return self.own.logits(self._parts)
        except ValueError as error:
            raise TaskError(f"train.shares=logits: {error}") from error

    def _log_probabilities(self, x_d: torch.Tensor) -> torch.Tensor:
        counted_nc = x_d.view(-1, self._classes)[self._public.counted]
        return counted_nc.double().log_softmax(-1)

    def _aim_at(self, target_d: torch.Tensor) -> None:
        self._consensus.consensus_nc = target_d.clamp(-LARGEST_LOGIT, LARGEST_LOGIT).view(-1, self._classes)
        self._has_target = True

    def _checked(self, x_d: torch.Tensor) -> torch.Tensor:
        if x_d.shape != (self.numel,):
            raise ValueError(f"a vector of shape {tuple(x_d.shape)} does not fit {self.numel} logits")
        return x_d

    def _consensus_state(self, state: Mapping[str, Storable]) -> dict[str, torch.Tensor]:
        kept = {
            CONSENSUS_PREFIX + name: value
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and name != "parameters" and not name.startswith(UNTRAINED_PREFIX)
        }
        return {**kept, **({_TARGET: self._consensus.consensus_nc.flatten()} if self._has_target else {})}


def is_of_logits(config: TrainConfig) -> bool:
    """Return whether members share logits and not parameters."""
    return config.shares == "logits"


def _check_address(public: PublicBatch, wanted: str) -> None:
    """TaskError where the run's public batch is another than this machine's."""
    found = public.address.hex()
    if wanted and wanted != found:
        raise TaskError(
            f"the public batch of this machine has the address {found}, and train.public_digest={wanted} is the run's: "
            "its data are others"
        )
