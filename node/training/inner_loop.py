"""The inner loop: local steps that never wait for the network, and the queue through which other tasks change the
model.

A phase is the steps of one round. It ends when `enough` returns true, with a copy of the parameters; the next phase
starts at once on the moving parameters. Changes of the model by the rest of the node (a correction from a closed round,
a model adopted from the neighbours) are queued, and applied between two steps in the thread that trains.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

import torch

from p2ptrain.inner.inner_state import BufferPart, InnerState
from p2ptrain.protocols import implements
from p2ptrain.saved.tensor_file import Storable
from p2ptrain.training.base import KeepsItsModel, Learner, ProtectsData, TakesSnapshots, TellsInnerState
from p2ptrain.training.device_copies import GATHERED, Gathering


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The result of one round's local training."""

    theta_d: torch.Tensor
    """The parameters at its end, fp32 (d,), a copy: whole once `gathering` has ended."""
    loss: float
    """Mean training loss over its steps; NaN when all of them were skipped."""
    steps: int
    work: float
    """How many steps at the full learning rate its steps were: less than `steps` where some were not taken, or were
    beyond those planned."""
    tokens: int
    compute_seconds: float
    """Time inside steps."""
    end_step: int
    """The trainer's step count at its end."""
    state: dict[str, Storable] | None
    """The trainer's state at its end, where the caller asked for it; the parameters may be missing: `theta_d` are
    those."""
    gathering: Gathering = GATHERED
    """The copying of `theta_d`, which from a GPU goes on during the next phase's first step. Call `finish` before
    reading."""
    inner_state: InnerState | None = None
    """What its steps left behind beside the parameters, where the strategy wants it."""
    skipped: int = 0
    """How many of its steps were not taken, as their loss or gradient was not finite."""

    @property
    def step_seconds(self) -> float:
        """Mean time of a step."""
        return self.compute_seconds / max(self.steps, 1)


Keep = Callable[[Mapping[str, Storable]], dict[str, Storable]]


def _copies(tensors: Mapping[str, Storable]) -> dict[str, Storable]:
    return {name: it.clone() if isinstance(it, torch.Tensor) else it for name, it in tensors.items()}


@dataclass(frozen=True)
class _Change:
    """A queued change of the model."""

    apply: Callable[[], None]
    adopts: bool = False
    """Whether another model takes its place."""


class InnerLoop:
    """Drives a trainer step by step. `phase` runs in the training thread, everything else on the event loop. A step of
    a big model must not delay that loop: hence the queue, and no call into the trainer while it trains."""

    def __init__(
        self,
        trainer: Learner,
        *,
        clock: Callable[[], float] = time.perf_counter,
        keep: Keep | None = None,
        tells: bool = False,
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        """`keep` returns tensors that training is about to change as they are now; by default copies. `tells`:
        phases have an `inner_state`, which wants a learner that `TellsInnerState`. `held`: whether training is to
        stand still."""
        self._tells = tells
        self.held = held
        self.trainer = trainer
        self._keep = _copies if keep is None else keep
        self.compute_seconds = 0.0
        self.steps = 0
        self.phase_steps = 0
        """Steps of the phase that is being trained."""
        self.told_together = 1
        """How many steps a loop of the user's own has taken since it reported the last."""
        self.late_steps = 0
        """How many steps after its snapshot the last correction was applied."""
        self.stands = False
        """Whether the phase stands still between two steps."""
        self.adoptions = 0
        """How many times another model took the place of this one."""
        self._clock = clock
        self._planned = 1
        self._step_seconds = math.inf
        """Of the newest step."""
        # Unbounded in type, but at most one correction a round, one difference of visitors and one adoption are in it.
        self._door: deque[_Change] = deque()

    @property
    def waiting(self) -> int:
        """Return how many changes are queued and not applied yet: corrections, or an adopted model."""
        return len(self._door)

    def phase(
        self,
        *,
        enough: Callable[[int], bool],
        keep_state: Callable[[], bool],
        schedule_step: Callable[[int], int] | None = None,
        rate_factor: Callable[[int], float] = lambda steps: 1.0,
        planned: int = 1,
    ) -> Generator[None, None, Phase | None]:
        """Step until `enough(steps so far)`; yields during every step's time and returns the phase: a shorter one where
        the learner takes no more steps, None where it has taken none.

        `schedule_step(steps so far)` is the place in the learning rate's schedule; None: the trainer's own count.
        `rate_factor(steps so far)` multiplies the rate there. `planned`: how many steps it will have, as far as known.
        """
        self._planned = planned
        losses, finite, steps, seconds, tokens_before = 0.0, 0, 0, 0.0, self.trainer.tokens
        work = 0.0
        skipped_before = self.trainer.skipped_steps
        self.stands = False  # the phase before may have been left where it stood
        self.trainer.begin_round()  # the snapshot before this phase is the one whose correction comes next
        if implements(self.trainer, ProtectsData) and not self.trainer.ask_ahead(planned):
            self.settle()
            return None
        while steps == 0 or not enough(steps):
            self.settle()
            self.phase_steps = steps
            if self.held():
                self.stands = True
                yield  # to `until_standing`
                self.stands = False
                continue  # it may be enough now: a round that is over, others that are far ahead
            began = self._clock()
            place = schedule_step(steps) if schedule_step else None
            if self.trainer.steps_elsewhere:
                yield  # somebody else's loop takes the step now
            together = self.told_together if self.trainer.steps_elsewhere else 1
            for _ in range(together):
                factor, skipped = rate_factor(steps), self.trainer.skipped_steps
                loss = self.trainer.take_step(place, rate_factor=factor)
                if loss is None:
                    break
                if math.isfinite(loss):  # the step was skipped otherwise, or its loss is not known
                    losses, finite = losses + loss, finite + 1
                if self.trainer.skipped_steps == skipped:
                    work += 1.0 if self.trainer.steps_elsewhere else factor
                steps += 1
                self.steps += 1
            if loss is None:
                break
            if not self.trainer.steps_elsewhere:
                yield  # before the clock is read: an inline executor gives the step its virtual time here
            elapsed = self._clock() - began
            self._step_seconds = elapsed / together
            seconds += elapsed
            self.compute_seconds += elapsed
        self.settle()
        self.phase_steps = 0
        if steps == 0:
            return None
        if implements(self.trainer, ProtectsData):
            self.trainer.end_round()
        theta_d, gathering = self._snapshot()
        return Phase(
            theta_d=theta_d,
            gathering=gathering,
            loss=losses / finite if finite else math.nan,
            steps=steps,
            work=work,
            tokens=self.trainer.tokens - tokens_before,
            compute_seconds=seconds,
            end_step=self.trainer.global_step,
            state=self._state() if keep_state() else None,
            inner_state=self._telling().inner_state() if self._tells else None,
            skipped=self.trainer.skipped_steps - skipped_before,
        )

    def until_standing(self, phase: Generator[None, None, Phase | None]) -> Generator[None, None, Phase | None]:
        """Run a phase to its end, and return what it returns; or to the place where it `stands`, and return None. Call
        it again to go on from there."""
        while True:
            try:
                next(phase)
            except StopIteration as end:
                trained: Phase | None = end.value
                return trained
            if self.stands:
                return None
            yield

    def untold(self, share: float, most_s: float) -> int:
        """Return how many steps a loop of the user's own may take before it tells of them: at most `share` of those
        planned with the one that tells, and those of `most_s` seconds. None of them ends the phase, and no change of
        the model waits already. For the thread that trains."""
        if self._door or self.stands:
            return 0
        left = self._planned - self.phase_steps
        return max(0, math.floor(min(share * self._planned, most_s / max(self._step_seconds, 1e-9), left)) - 1)

    def correct(
        self,
        correction_d: torch.Tensor,
        *,
        taken_at: int,
        optimizer_state: Sequence[BufferPart] = (),
    ) -> None:
        """Add `correction_d` fp32 (d,), computed from a snapshot at step `taken_at`, to the moving parameters, and set
        parts of the optimizer's buffers, where some are given."""

        def apply() -> None:
            self.trainer.correct(correction_d)
            if optimizer_state:
                self._telling().take_optimizer_state(optimizer_state)
            self.late_steps = self.trainer.global_step - taken_at

        self._door.append(_Change(apply))

    def add(self, difference_d: torch.Tensor) -> None:
        """Add `difference_d` fp32 (d,) to the moving parameters, as if own steps had led there: it belongs to no closed
        round. Not with a drift correction, which would take it for one of a round."""
        self._door.append(_Change(lambda: self.trainer.correct(difference_d)))

    def replace(self, theta_d: torch.Tensor, *, at_step: int) -> None:
        """Replace the parameters by another model, as of step `at_step` of the schedule."""

        def apply() -> None:
            self.trainer.load_vector(theta_d)
            self.trainer.global_step = at_step

        self.adoptions += 1
        self._door.append(_Change(apply, adopts=True))

    def forget_corrections(self) -> None:
        """Drop the queued corrections: the model that they belong to is lost. An adopted model stays queued, for it is
        a whole one."""
        self.adoptions += 1
        self._door = deque(change for change in self._door if change.adopts)

    def _telling(self) -> TellsInnerState:
        assert isinstance(self.trainer, TellsInnerState), "roles/assembly.py sees to it"
        return self.trainer

    def _snapshot(self) -> tuple[torch.Tensor, Gathering]:
        if implements(self.trainer, TakesSnapshots):
            return self.trainer.snapshot()
        return self.trainer.vector(), GATHERED

    def _state(self) -> dict[str, Storable]:
        given = () if implements(self.trainer, KeepsItsModel) else ("parameters",)
        return self._keep({name: value for name, value in self.trainer.state_view().items() if name not in given})

    def settle(self) -> None:
        """Apply the queued changes."""
        while self._door:
            self._door.popleft().apply()

    def settling(self) -> Generator[None, None, None]:
        """Apply the queued changes, as work for an executor: in the thread that trains, after training is over."""
        self.settle()
        yield from ()

    def state(self) -> Generator[None, None, Mapping[str, Storable]]:
        """Apply the queued changes, as `settling`, and return the trainer's state, to be read while nobody trains."""
        self.settle()
        yield from ()
        return self.trainer.state_view()
