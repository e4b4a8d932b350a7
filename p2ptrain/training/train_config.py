"""What a user sets about local training, and the learning rate as a pure function of the step.

Every member of a swarm should run with the same values (the seed above all: it makes the initial model), except for
`device`, `precision`, `compile` and `threads`, which belong to the machine.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar, Final, Literal

from p2ptrain import drift, inner, step_normalization, step_schedules
from p2ptrain.inner.schedule_free import ScheduleFree
from p2ptrain.step_normalization.base import StepNormalization
from p2ptrain.training.relative_rates import relative_rates

MOST_TEMPERATURE: Final = 100.0
"""Beyond it two distributions are all but even, and T^2 multiplies rounding. Chosen; 2 to 4 are common."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The inner loop. ValueError, with the field's name, on a value that cannot be."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    rounds: int = 60
    """Rounds of `inner_steps`: 1,200 steps, about three minutes of a nano model on two cores."""
    inner_steps: int = 20
    """H. Averaging gains more from a small H than from a finer codec; 20 hides a home link behind the computing."""
    inner_steps_schedule: str = "constant"
    """How many steps each round has, `inner_steps` being their mean: constant, qsr, post_local, or a plug-in. The run
    has as many rounds and steps with each."""
    least_inner_steps: int | None = None
    """Of qsr: fewest steps of a round; None: 1, which binds nowhere but where `inner_steps` is small."""
    synchronous_share: float | None = None
    """Of post_local: share of the rounds that have one step, the first ones; None: half, as in its paper."""
    batch_size: int = 16
    """Examples in one forward pass; 16 x 64 bytes was the batch of the runs that chose the other defaults."""
    grad_accumulation: int = 1
    """Forward passes in one step: more where memory, not time, is what lacks."""
    learning_rate: float = 3e-3
    """Peak. 2e-3 and 3e-3 tie for byte-lm nano alone (6e-3: 0.03 worse); averaging favours the higher. Other models
    want others: `p2ptrain tune` finds them, and so do `up` and `swarm create` where this is "auto"."""
    final_lr_fraction: float = 0.1
    """Where the cosine ends, as a share of the peak (Chinchilla, 2203.15556: decay to a tenth)."""
    schedule: Literal["auto", "cosine", "constant"] = "auto"
    """After the warm-up. `auto`: what the optimizer was made for, which is cosine for all but schedule_free.
    `constant` when the end is not known beforehand."""
    warmup_steps: int = 40
    """Linear rise from 0: Adam's variance is an average over 1 / (1 - beta2) = 20 steps, so twice that."""
    late_average: float = 0.0
    """Share of the run's last rounds whose weights are averaged, for evaluation and export alone; 0: none. Under a
    constant rate 0.1 gains a percent; a cosine leaves nothing to gain."""
    weight_decay: float | None = None
    """Decoupled, on tensors of two or more dimensions only. None: the optimizer's own, 0.1 (GPT-3, 2005.14165), and
    0.005 for sgd, whose learning rates are larger."""
    optimizer: str = "adamw"
    """adamw, sgd, muon, schedule_free, or a plug-in. Each wants a learning rate of its own, muon AdamW's."""
    betas: tuple[float, float] | None = None
    """Of adamw, muon and schedule_free; None: the optimizer's own, (0.9, 0.95) for all three."""
    epsilon: float | None = None
    """Of adamw, beside the root of the mean square; None: what the task asks for, else 1e-8."""
    momentum: float | None = None
    """Of sgd and muon; None: the optimizer's own, 0.9 and 0.95."""
    nesterov: bool | None = None
    """Of sgd and muon; None: the optimizer's own, no and yes."""
    drift: str = "none"
    """What keeps nodes with unlike data together between rounds: none, fedprox, scaffold, momentum_tracking, qgm, or
    a plug-in."""
    drift_strength: float | None = None
    """Its one number; None: its own default."""
    step_normalization: str = "none"
    """How far a round counts in which a slow node did fewer steps than scheduled: none, as far as these went; fednova,
    as far as all of the steps, or a plug-in."""
    normalization_exponent: float | None = None
    """Of fednova, in (0, 1]: how far short rounds are lengthened; None: 1, as long as whole ones."""
    most_lengthening: float | None = None
    """Of fednova, 1 to 16: the most that steps scheduled over steps done count as; None: 16."""
    local: tuple[str, ...] = ()
    """Parameters that each node keeps for itself, which are neither averaged nor sent: names, with `*` for any
    characters, such as "head.*" (FedPer) or "*norm*" (FedBN). Members must name the same ones."""
    local_steps: int = 0
    """First steps of a round that move the local parameters alone; the others then move the shared ones alone (FedRep).
    0: every step moves both."""
    shares: Literal["parameters", "logits"] = "parameters"
    """What members share: parameters of one model, or logits of one public batch, for which their models may differ in
    shape. The task must have such a batch."""
    public_digest: str = ""
    """Of logits: the address of the public batch, 64 hex digits. A node whose batch is another does not start. Empty:
    no check at the start; members with another batch are in another run all the same."""
    distill_temperature: float = 1.0
    """Of logits: what both the members' and the own ones are divided by in a public step."""
    distill_rate: float = 1.0
    """Of logits: a public step's learning rate, as a share of an own step's. 0: what all say is heard, and not
    learned."""
    clip_norm: float = 1.0
    """Largest gradient norm (GPT-3, 2005.14165); 0 turns clipping off."""
    seed: int = 0
    """Of the initial model, which must be one in a swarm, and of the data order, which also depends on the shard."""
    device: str = "auto"
    """`auto` (CUDA, else MPS, else the CPU) or a torch device such as `cuda:1`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 autocast where the device computes in it (CUDA from Ampere on), else fp32. Weights stay fp32."""
    compile: bool = False
    """Whether steps go through torch.compile: quicker after the first ones, which take a minute. It needs a C++
    compiler, for a GPU Triton; where it fails, steps go on without it."""
    threads: int = 0
    """Torch's CPU threads; 0 leaves torch's own choice. Several nodes on one machine want cores / nodes each."""
    eval_every: int = 10
    """Rounds between evaluations: six points of a curve in a default run, for some 2% of its time."""
    eval_examples: int = 256
    """Held-out examples of one evaluation: 16k predictions put the sampling error near 0.02 nats per byte."""

    def __post_init__(self) -> None:
        for name in ("rounds", "inner_steps", "batch_size", "grad_accumulation", "eval_every", "eval_examples"):
            _check(name, getattr(self, name), minimum=1)
        for name in ("warmup_steps", "seed", "threads", "clip_norm", "local_steps"):
            _check(name, getattr(self, name), minimum=0)
        if self.weight_decay is not None:
            _check("weight_decay", self.weight_decay, minimum=0)
        _check("learning_rate", self.learning_rate, minimum=0)
        _check("final_lr_fraction", self.final_lr_fraction, minimum=0, maximum=1)
        _check("late_average", self.late_average, minimum=0, maximum=1)
        if self.betas is not None and (len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas)):
            raise ValueError(f"betas must be two numbers in [0, 1), not {self.betas}")
        _check_choice("shares", self.shares, ("parameters", "logits"))
        if self.public_digest and not re.fullmatch("[0-9a-f]{64}", self.public_digest):
            raise ValueError(f"public_digest must be 64 hex digits, not {self.public_digest!r}")
        if not 0 < self.distill_temperature <= MOST_TEMPERATURE:
            raise ValueError(
                f"distill_temperature must be in (0, {MOST_TEMPERATURE:g}], not {self.distill_temperature}"
            )
        _check("distill_rate", self.distill_rate, minimum=0, maximum=10)
        _check_choice("schedule", self.schedule, ("auto", "cosine", "constant"))
        _check_choice("precision", self.precision, ("auto", "fp32", "bf16"))
        inner.get(self.optimizer, **self.optimizer_options())  # both check their options themselves
        drift.get(self.drift, **self.drift_options())
        self.normalization()
        least = self._step_schedule().least_inner_steps
        if self.inner_steps < least:
            raise ValueError(
                f"inner_steps must be at least {least}, the fewest of a round of {self.inner_steps_schedule}, "
                f"not {self.inner_steps}"
            )
        if self.local_steps and not self.local:
            raise ValueError(f"local_steps={self.local_steps}: no parameter is local")
        if self.local_steps and self.inner_steps_schedule != "constant":
            raise ValueError(f"local_steps: rounds of {self.inner_steps_schedule} may have as few steps or fewer")
        if self.local_steps >= self.inner_steps:
            raise ValueError(f"local_steps must be below inner_steps={self.inner_steps}, not {self.local_steps}")
        if self.late_average and self.optimizer == ScheduleFree.name:
            raise ValueError(f"late_average: {self.optimizer}'s model is an average of its steps: leave it at 0")

    def optimizer_options(self) -> dict[str, object]:
        """Return the options that were set for the inner optimizer."""
        names = ("weight_decay", "betas", "epsilon", "momentum", "nesterov")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def drift_options(self) -> dict[str, float]:
        """Return the options that were set for the drift correction."""
        return {} if self.drift_strength is None else {"strength": self.drift_strength}

    def normalization(self) -> StepNormalization:
        """Return what lengthens rounds of few steps. ValueError on an option that cannot be."""
        given = {"exponent": self.normalization_exponent, "most": self.most_lengthening}
        options = {name: value for name, value in given.items() if value is not None}
        return step_normalization.get(self.step_normalization, **options)

    @property
    def largest_gamma(self) -> float:
        """The largest consensus step that the drift correction stands on every graph."""
        return drift.get(self.drift, **self.drift_options()).largest_gamma

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.rounds * self.inner_steps

    def step_schedule_options(self) -> dict[str, object]:
        """Return the options that were set for the step schedule."""
        names = ("least_inner_steps", "synchronous_share")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def steps_in(self, round_: int) -> int:
        """Return the steps of round `round_`, from 0: by the schedule, and past the end `inner_steps`."""
        return self.first_step(round_ + 1) - self.first_step(round_)

    def steps_around(self, step: int) -> int:
        """Return the steps of the round that step `step` of the run, from 0, is in by the schedule."""
        return self.inner_steps if step >= self.total_steps else self.steps_in(bisect_right(self._starts, step) - 1)

    def first_step(self, round_: int) -> int:
        """Return the steps of the run before round `round_`."""
        past = max(0, round_ - self.rounds)
        return self._starts[round_ - past] + past * self.inner_steps

    @cached_property
    def _starts(self) -> Sequence[int]:
        """The step at which each round begins, and the run's last: once, for a long run takes a second."""
        return self._step_schedule().starts(self.rounds, self.inner_steps, self._relative_rates)

    def _relative_rates(self) -> Sequence[int]:
        return relative_rates(
            self.total_steps,
            warmup=self.warmup_steps,
            final_fraction=self.final_lr_fraction,
            decays=self.decay_schedule == "cosine",
        )

    def _step_schedule(self) -> step_schedules.StepSchedule:
        return step_schedules.get(self.inner_steps_schedule, **self.step_schedule_options())

    @property
    def decay_schedule(self) -> str:
        """`cosine` or `constant`: `schedule`, with `auto` resolved."""
        return _made_for(self.optimizer) if self.schedule == "auto" else self.schedule


def lr_at(step: int, total: int, config: TrainConfig) -> float:
    """Return the learning rate of step `step` (from 0) of `total`; past the end it stays at its final value."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.decay_schedule == "constant":
        return config.learning_rate
    done = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    cosine = (1 + math.cos(math.pi * min(1.0, done))) / 2
    return config.learning_rate * (config.final_lr_fraction + (1 - config.final_lr_fraction) * cosine)


@cache
def _made_for(optimizer: str) -> str:
    return inner.get(optimizer).schedule


def _check(name: str, value: float, *, minimum: float, maximum: float = math.inf) -> None:
    if not math.isfinite(value) or not minimum <= value <= maximum:
        upper = "" if maximum == math.inf else f" and at most {maximum:g}"
        raise ValueError(f"{name} must be at least {minimum:g}{upper}, not {value}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
