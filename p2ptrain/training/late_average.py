"""The mean of late weights: of the outer parameters after each of a run's last rounds, for evaluation and export.

    mean <- mean + (phi - mean) / n        after the nth of the rounds in the window

While the rate is high, weights go to and fro around where they are good, and their mean is nearer to it than any of
them: SWA (1803.05407), and LAWA (2209.14981), which takes equally spaced checkpoints of the end. A rate that decays
does the same by another way, and leaves nothing to gain (docs/decisions/0076). A plain mean, and not an exponential
one: the window is known, and what was before it weighs nothing.

Training does not see it, and nothing of it travels. Members' means are apart by no more than their models are.
Memory: one vector, and another one while a round is added, so that a state that is saved is of whole rounds. Cost: one
pass over it in a round of the window.
"""

import math
from collections.abc import Mapping
from typing import Final

import torch

from p2ptrain.training.flat import all_finite

LATE: Final = "late."
"""Before the names of its tensors in a checkpoint."""
MEAN: Final = "mean"
_ROUNDS: Final = "rounds"


class LateAverage:
    """`share` of the rounds is the window, rounded up; 0: nothing is kept."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.mean_d: torch.Tensor | None = None
        """What is evaluated and exported in place of the outer parameters, fp32 (d,); None: those are."""
        self._first = self._last = 0

    def covers(self, round: int, rounds: int) -> bool:
        """Return whether a run of so many rounds averages over its round `round`, counted from 1."""
        return round > rounds - math.ceil(round_off(self.share * rounds))

    def add(self, phi_d: torch.Tensor, *, round: int, rounds: int) -> None:
        """Take in the outer parameters (d,) after round `round`, from 1, of so many; they stay as they are.

        It begins anew where a round is missing, as another model was adopted then; where it holds rounds from before
        the window, as the run was given more of them; and with weights that are not finite, which are no mean's part.
        """
        if not self.covers(round, rounds) or not all_finite(phi_d):
            self.drop()
            return
        if round != self._last + 1 or not self.covers(self._first, rounds) or self.mean_d is None:
            self.mean_d, self._first = phi_d.clone(), round
        else:
            self.mean_d = torch.lerp(self.mean_d, phi_d, 1 / (round - self._first + 1))
        self._last = round

    def drop(self) -> None:
        """Forget all rounds."""
        self.mean_d, self._first, self._last = None, 0, 0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return `mean` fp32 (d,) and `rounds`, the first one and the last one in it, int64 (2,); nothing where there
        is no mean. Not copies, and never changed in place."""
        if self.mean_d is None:
            return {}
        return {MEAN: self.mean_d, _ROUNDS: torch.tensor([self._first, self._last])}

    def load_state_dict(self, state: Mapping[str, torch.Tensor], numel: int) -> None:
        """Take up `state_dict`, for a model of `numel` parameters; of an empty one nothing. ValueError when it is of
        another model, or none."""
        self.drop()
        if not state or not self.share:
            return
        mean_d, rounds = state.get(MEAN), state.get(_ROUNDS)
        if mean_d is None or mean_d.shape != (numel,) or mean_d.dtype != torch.float32 or not all_finite(mean_d):
            raise ValueError("the average of late weights is of another model")
        if rounds is None or rounds.shape != (2,) or rounds.dtype != torch.int64 or not 0 < rounds[0] <= rounds[1]:
            raise ValueError("the average of late weights does not say of which rounds it is")
        self.mean_d = mean_d.clone()
        self._first, self._last = rounds.tolist()


def round_off(number: float) -> float:
    """Return the number without the last digits of its binary fraction: a tenth of 30 is 3.

    >>> math.ceil(0.07 * 100), math.ceil(round_off(0.07 * 100))
    (8, 7)
    """
    return round(number, 9)
