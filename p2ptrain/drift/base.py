"""What a drift correction is: it bends local steps, so that nodes with unlike data do not drift apart between rounds.

All that it learns of the swarm is what every closed round does to the own model, so that it costs no byte on the wire
and works with any compressor, aggregator and sync strategy. In a round that begins at the anchor phi and ends at the
snapshot theta, the correction that comes back is phi_new - theta; the own movement is theta - phi, the swarm's is
phi_new - phi. With overlap the correction of a round comes while the next one is under way.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class DriftCorrection(Protocol):
    """Called by the trainer in this order: `attach`; in each step `adjust` and, when the step is taken, `nudge`; at a
    snapshot `begin_round`; when its round is closed `close_round`. Members take `strength`, except for `none`."""

    name: str
    largest_gamma: float
    """The largest consensus step with which averaging stays stable on every graph (sync/model_averaging.py)."""
    buffers: Mapping[str, torch.Tensor]
    """Its whole state once attached, by name; the tensors are changed in place and never replaced."""

    def attach(self, theta_d: torch.Tensor) -> None:
        """Work on a model like `theta_d` (d,) from now on, with the first round beginning there. Called once."""

    def begin_round(self, theta_d: torch.Tensor) -> None:
        """A snapshot was taken: a round ended and the next one begins at `theta_d`, until a correction moves its
        anchor. Also called when another model was put in place of the own."""

    def close_round(self, correction_d: torch.Tensor) -> None:
        """The round that ended at the last `begin_round` was closed: `correction_d`, on the model's device, is added
        to the model, and the anchor of the round under way moves by it."""

    def adjust(self, grad_d: torch.Tensor, point_d: torch.Tensor) -> None:
        """Change the gradient, taken at `point_d`, in place, before it is clipped."""

    def nudge(self, theta_d: torch.Tensor, rate: float) -> None:
        """Move the model in place, after a step of this learning rate."""


@runtime_checkable
class SumsCorrections(DriftCorrection, Protocol):
    """A drift correction that sums up what rounds do to the own model. It is right only where that is the way to the
    members' mean, and not beyond it, as with outer momentum. Optional: any other takes what comes."""

    strength: float
    """The share of it that a sum takes. Where a round takes the drift of several for its own, their number times this
    has to stay below 2."""
    round_steps: int
    """Steps of a whole round, the same at all members: set by who takes them, before the first one of each round. 0: as
    many as are taken."""
