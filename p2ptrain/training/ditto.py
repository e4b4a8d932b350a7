"""Ditto (Li et al., 2012.04221): beside the shared model x a second one, v, that is the node's own and never leaves it.

    v <- v - rate (grad f(v) + strength (v - x))          x: the anchor after the newest round

v sees the same shard, and is held near what the swarm knows: strength 0 trains it alone, a large one makes it x. The
term is part of the gradient, as in FedProx, which it is taken from: an optimizer that rescales coordinates (AdamW) ends
where the whole gradient is 0, like any other. Local parameters (`train.local`) have no x, and v's are not held.

Costs: the vectors of one more model and optimizer and two more, and for each personal step the time of a step. They
are taken within the node's own steps, so that what measures these has counted them.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from p2ptrain.drift.fedprox import FedProx
from p2ptrain.inner.inner_state import Wanted
from p2ptrain.tasks.base import OWN_SHARD, Batch, Shard, Task
from p2ptrain.tasks.metrics import Measures
from p2ptrain.training.model import shell_of
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.trainer import PERSONAL_PREFIX, UNTRAINED_PREFIX, Trainer

PERSONAL: Final = "personal model"
"""The metric of v's loss: on what the shard holds out for itself, where it does."""


@dataclass(frozen=True, kw_only=True)
class PersonalTraining:
    """How v is trained. ValueError on a value that cannot be."""

    strength: float
    """The paper's lambda, tuned there over 0.05 to 2."""
    every: float = 1.0
    """Share of the node's steps that a personal step goes with, above 0 and at most 1."""
    learning_rate: float | None = None
    """Peak of v's learning rate, which follows the schedule of the other; None: the same."""

    def __post_init__(self) -> None:
        if not 0 <= self.strength < math.inf:
            raise ValueError(f"strength must be a number >= 0, not {self.strength}")
        if not 0 < self.every <= 1:
            raise ValueError(f"every must be above 0 and at most 1, not {self.every}")
        if self.learning_rate is not None and not 0 <= self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be a number >= 0, not {self.learning_rate}")

    def is_due(self, step: int) -> bool:
        """Return whether a personal step goes with step `step`, from 0: spread evenly, whatever the share."""
        return math.floor((step + 1) * self.every) > math.floor(step * self.every)


class DittoTrainer(Trainer):
    """A trainer with a personal model, `personal`, which begins where the shared one does."""

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        shard: Shard,
        *,
        personal: PersonalTraining,
        data_seed: int | None = None,
        tells: Collection[Wanted] = (),
    ) -> None:
        super().__init__(task, config, shard, data_seed=data_seed, tells=tells)
        self._training = personal
        rate = config.learning_rate if personal.learning_rate is None else personal.learning_rate
        own = replace(
            config,
            drift=FedProx.name,
            drift_strength=personal.strength,
            learning_rate=rate,
            local_steps=0,
        )
        shell = shell_of(self.model).train()  # what is frozen is there once
        self.personal = Trainer(task, own, shard, data_seed=data_seed, model=shell)
        """Trains v: its shared parameters, and local ones of its own."""
        self._snapshot_d: torch.Tensor | None = None
        """The model whose correction comes next (d,); None: it has come."""
        self._has_begun = False
        """Whether v has taken a step, or goes on from its own state: then no other model takes its place."""
        self._begin_personal()

    @property
    def units(self) -> Mapping[str, str]:
        """Units of the task's own metrics, and of v's loss, by name."""
        units = super().units
        return {**units, PERSONAL: units.get(OWN_SHARD, self.metric)}

    def step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float:
        """As `Trainer.step`, and a personal one where it is due, at the same place of the schedule."""
        number = self.global_step
        loss = super().step(schedule_step, rate_factor=rate_factor)
        if self._training.is_due(number):
            self._has_begun = True
            self.personal.step(number if schedule_step is None else schedule_step, rate_factor=rate_factor)
        return loss

    def begin_round(self) -> None:
        """As `Trainer.begin_round`. x stays where it is until the round's correction has come."""
        super().begin_round()
        self._snapshot_d = self.flat.data_d.clone()

    def correct(self, correction_d: torch.Tensor) -> None:
        """As `Trainer.correct`: the anchor after the round is the snapshot and its correction (d,)."""
        super().correct(correction_d)
        if self._snapshot_d is not None:
            self._hold_at(self._snapshot_d)
            self._snapshot_d = None
        self._anchor_d.add_(self.flat.taken(correction_d))

    def load_vector(self, x_d: torch.Tensor) -> None:
        """As `Trainer.load_vector`: `x_d` (d,) is the anchor. A newcomer's v begins there; any other stays where it is:
        it is the node's own."""
        super().load_vector(x_d)
        self._snapshot_d = None
        if self._has_begun:
            self._hold_at(self.flat.taken(x_d))
        else:
            self._begin_personal()

    def train_local(self, batches: Iterable[Batch], rate: float) -> float:
        """As `Trainer.train_local`. A newcomer's v begins with what it leaves."""
        loss = super().train_local(batches, rate)
        if not self._has_begun:
            self._begin_personal()
        return loss

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """As `Trainer.measure`, with the loss of v. Safe beside `step`."""
        found = super().measure(x_d)
        loss = self.personal.own_loss(self.personal.vector())
        return replace(found, own={**found.own, PERSONAL: loss}) if math.isfinite(loss) else found

    def take_at_a_time(self, examples: int) -> None:
        """Let no more examples go through either model at a time."""
        super().take_at_a_time(examples)
        self.personal.take_at_a_time(examples)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """As `Trainer.state_dict`, with v's as `personal.<name>`."""
        return self._with_personal(super().state_dict(), self.personal.state_dict)

    def state_view(self) -> dict[str, torch.Tensor]:
        """As `Trainer.state_view`, with v's as `personal.<name>`."""
        return self._with_personal(super().state_view(), self.personal.state_view)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """As `Trainer.load_state_dict`. v goes on from its own state; where there is none, as in a checkpoint from
        before it was asked for, it begins at the model that is loaded."""
        super().load_state_dict(state)
        self._snapshot_d = None
        own = {name.removeprefix(PERSONAL_PREFIX): state[name] for name in state if name.startswith(PERSONAL_PREFIX)}
        if own:
            self.personal.load_state_dict(own)
        else:
            self._begin_personal()
        self._has_begun = bool(own)

    def park(self) -> int:
        """As `Trainer.park`, of both models."""
        return super().park() + self.personal.park()

    def take_memory(self) -> None:
        """As `Trainer.take_memory`, of both models."""
        super().take_memory()
        try:
            self.personal.take_memory()
        except BaseException:
            super().park()
            raise

    @property
    def _anchor_d(self) -> torch.Tensor:
        return self.personal.drift.buffers["anchor"]

    def _hold_at(self, x_d: torch.Tensor) -> None:
        self._anchor_d.copy_(x_d)

    def _begin_personal(self) -> None:
        self.personal.load_vector(self.vector())
        self.personal.global_step = self.global_step
        if self.local is not None and self.personal.local is not None:
            self.personal.local.flat.load_(self.local.vector())

    def _with_personal(
        self, state: dict[str, torch.Tensor], of_v: Callable[[], dict[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        frozen = {UNTRAINED_PREFIX + name for name, it in self.model.named_parameters() if not it.requires_grad}
        return {**state, **{PERSONAL_PREFIX + name: value for name, value in of_v().items() if name not in frozen}}
