"""Find a learning rate by short runs: for this model, data, batch and optimizer, and not by a rule for all.

The best peak rate falls by some four from one size of byte-lm to the next, and optimizers differ by two to four
(docs/benchmarks.md): no default fits all. A short run of each rate, with its own warm-up and decay, is cheap beside the
run itself. Its best rate is too high for a much longer one; "Scaling Optimal LR Across Token Horizons" (2409.19913)
measured by how much: the best rate falls as the length to the power of 0.32.

Deterministic: every trial begins from the same model, and has the same examples in the same order.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from p2ptrain.tasks import Shard, Task
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.trainer import Trainer

TRIAL_STEPS: Final = 200
"""Of one short run: some six of them are as long as a default run. After 100 steps the best of eight rates was twice
or half of what longer runs want (docs/benchmarks.md)."""
FIRST_RATE: Final = 3e-3
"""Where the search begins: the default of `train.learning_rate`."""
COARSE: Final = 4.0
"""Between the rates that are tried first."""
FINE: Final = 2.0
"""Between the best of these and the two tried last. Losses hardly differ within less."""
LEAST_RATE: Final = 1e-7
LARGEST_RATE: Final = 100.0
HORIZON: Final = 0.32
"""2409.19913: the best rate goes as steps to the power of minus this."""
SHORT: Final = 5
"""Up to so many times a trial's steps its rate is taken as it is: a model is far from trained in either. Chosen."""
AS_GOOD: Final = 0.01
"""Of the loss. Within that the lowest rate is taken: one twice too high costs a long run far more than half of the
best."""
SAME: Final = 1e-6
"""Of the loss: what rounding alone may change in it. Chosen."""
WARMUP_SHARE: Final = 5
"""A fifth of a trial's steps are its warm-up at most."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One short run."""

    rate: float
    """Its peak."""
    loss: float
    """Held-out, at its end; infinite where it is not finite."""


@dataclass(frozen=True, kw_only=True)
class FoundRate:
    """What a search found."""

    trials: tuple[Trial, ...]
    """In the order in which they ran; one of them has a finite loss at least."""
    trial_steps: int
    total_steps: int
    """Of the run that the rate is for."""

    @property
    def best(self) -> Trial:
        """The trial of the lowest rate, of those whose loss is about the least."""
        least = min(trial.loss for trial in self.trials)
        most = least + AS_GOOD * abs(least)
        return min((trial for trial in self.trials if trial.loss <= most), key=lambda it: it.rate)

    @property
    def nothing_learned(self) -> bool:
        """Whether all rates came to the same loss, over a range in which no model learns alike."""
        losses = [trial.loss for trial in self.trials]
        apart = max(trial.rate for trial in self.trials) / min(trial.rate for trial in self.trials)
        return apart >= COARSE**2 and max(losses) - min(losses) <= SAME * abs(min(losses))

    @property
    def rate(self) -> float:
        """The peak rate for the run, to two digits: the best trial's, and less for a run that is much longer."""
        longer = max(1.0, self.total_steps / (SHORT * self.trial_steps))
        return float(f"{self.best.rate * longer**-HORIZON:.2g}")


def search(loss_at: Callable[[float], float], *, first: float = FIRST_RATE) -> Iterator[Trial]:
    """Yield trials, each as it ends: from `first` by factors of four to where the loss is least, then by two to both
    sides of it. `loss_at` runs one; NaN and minus infinity count as infinite. Five to seven trials where `first` is
    within a factor of sixteen of the best rate."""
    losses: dict[float, float] = {}

    def tried(rate: float) -> Trial:
        loss = loss_at(rate)
        losses[rate] = loss if math.isfinite(loss) else math.inf
        return Trial(rate=rate, loss=losses[rate])

    def best() -> float:
        return min(losses, key=lambda rate: (losses[rate], rate))

    yield tried(first)
    for factor in (COARSE, 1 / COARSE):
        rate = first * factor
        while LEAST_RATE <= rate <= LARGEST_RATE:
            trial = tried(rate)
            yield trial
            improved = best() == rate and trial.loss < math.inf
            hopeless = factor < 1 and losses[first] == trial.loss == math.inf  # nothing was finite yet: go on downwards
            if not improved and not hopeless:
                break
            rate *= factor
        if best() > first:
            break
    middle = best()
    if losses[middle] < math.inf:
        yield tried(middle * FINE)
        yield tried(middle / FINE)


def trial_config(train: TrainConfig, rate: float, steps: int) -> TrainConfig:
    """Return the settings of a short run at this peak rate: a warm-up and a decay within its own steps. How the real
    run's steps are spread over rounds, and over shared and local parameters, is no matter of it."""
    alone = replace(
        train, inner_steps_schedule="constant", least_inner_steps=None, synchronous_share=None, local_steps=0
    )
    warmup = min(train.warmup_steps, steps // WARMUP_SHARE)
    return replace(alone, rounds=steps, inner_steps=1, learning_rate=rate, warmup_steps=warmup)


def run_trial(task: Task, train: TrainConfig, rate: float, steps: int) -> float:
    """Train the task's initial model for so many steps on all of its data, and return the held-out loss at the end.
    Raises what a Trainer does."""
    trainer = Trainer(task, trial_config(train, rate, steps), Shard())
    for _ in range(steps):
        trainer.step()
    return trainer.evaluate()
