"""Steps of the anchor that one simulated member took are recalled for the others, to the bit.

Members of a swarm step one anchor by one mean gradient (p2ptrain/sync/mime.py). In one process that is the same work
n times: half of the time of such a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from p2ptrain.sync.base import AnchorSteps


@dataclass(frozen=True)
class _Taken:
    """A round's steps: what they began with, and where they led."""

    round: int
    x_d: torch.Tensor
    gradient_d: torch.Tensor
    buffers: Mapping[str, torch.Tensor]
    after_d: torch.Tensor
    buffers_after: Mapping[str, torch.Tensor]

    def begins_with(self, x_d: torch.Tensor, gradient_d: torch.Tensor, buffers: Mapping[str, torch.Tensor]) -> bool:
        """Return whether it began with just these values."""
        return (
            torch.equal(self.x_d, x_d)
            and torch.equal(self.gradient_d, gradient_d)
            and self.buffers.keys() == buffers.keys()
            and all(torch.equal(was, buffers[name]) for name, was in self.buffers.items())
        )


class StepsTaken:
    """The steps that a member of a swarm took last. One for all members."""

    def __init__(self) -> None:
        self.last: _Taken | None = None


class RecalledSteps:
    """`AnchorSteps` that are `inner`'s, or those that `taken` recalls from another member with the same values."""

    def __init__(self, inner: AnchorSteps, taken: StepsTaken) -> None:
        self._inner, self._taken = inner, taken

    @property
    def numel(self) -> int:
        """Return the number of parameters."""
        return self._inner.numel

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """The optimizer's whole state, by name. Changed in place."""
        return self._inner.buffers

    def steps_in(self, round: int) -> int:
        """Return how many steps the round has."""
        return self._inner.steps_in(round)

    @property
    def longest(self) -> float:
        """Return the largest norm of a gradient."""
        return self._inner.longest

    def load(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Take up `buffers`. ValueError when they are another optimizer's or model's."""
        self._inner.load(buffers)

    def advance_(self, x_d: torch.Tensor, gradient_d: torch.Tensor, round: int) -> None:
        """Move the model `x_d` (d,) in place by a round's steps, all with `gradient_d` (d,)."""
        last = self._taken.last
        if last is not None and last.round == round and last.begins_with(x_d, gradient_d, self.buffers):
            x_d.copy_(last.after_d)
            self._inner.load(last.buffers_after)
            return
        before_d, gradient_before_d, buffers = x_d.clone(), gradient_d.clone(), _copies(self.buffers)
        self._inner.advance_(x_d, gradient_d, round)
        self._taken.last = _Taken(round, before_d, gradient_before_d, buffers, x_d.clone(), _copies(self.buffers))


def _copies(buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in buffers.items()}
