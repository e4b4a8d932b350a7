"""What an inner optimizer is: a rule that moves one flat vector of parameters by its gradient, once a step.

It is built with its options, attached once to a model's buffers, and from then on changes them in place. Between two
steps others may add a correction to the parameters or set them anew, and save or replace the `buffers`; so a member
keeps nothing in them that is tied to where the model stands: momentum and moments, and differences of positions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

import torch

from p2ptrain.inner.inner_state import BufferPart, place_in

STEEPEST: Final = 1.17
"""`steepest` with betas of 0.9 and 0.95."""

MOST_STEEP: Final = 10.0
"""It where nothing bounds it, as the second moment forgets faster than the square of the first one. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one parameter lies in the flat vector."""

    name: str
    span: slice
    shape: torch.Size
    decayed: bool
    """Whether weight decay applies to it."""
    hidden: bool
    """A matrix between two hidden layers: no embedding and no output layer."""


class Parameters(Protocol):
    """A model's parameters and their gradient as flat fp32 vectors (d,), on the device that trains."""

    data_d: torch.Tensor
    grad_d: torch.Tensor

    @property
    def places(self) -> Sequence[Place]:
        """One for each parameter, in the vector's order."""

    @property
    def decayed(self) -> Sequence[torch.Tensor]:
        """The parameters that weight decay applies to, as views of `data_d`."""


@runtime_checkable
class InnerOptimizer(Protocol):
    """Members take `weight_decay` and, where they have a use for it, `betas`, `momentum` and `nesterov`."""

    name: str
    schedule: str
    """The learning rate after the warm-up for which it was made: `cosine` or `constant`."""
    # One that moves each coordinate by itself says `elementwise = True`: then parts of a vector can be moved apart.

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Its whole state once attached, by name; the tensors are changed in place and never replaced. What stands in
        them does not depend on where the parameters are, so that code that moves the model can ignore them."""

    def attach(self, parameters: Parameters) -> None:
        """Work on these buffers from now on. Called once. ValueError when they cannot be trained by this rule."""

    def gradient_point(self) -> torch.Tensor | None:
        """Return where the next gradient is to be taken (d,), a new tensor; None: at the parameters themselves."""

    def step(self, rate: float) -> None:
        """Move `data_d` by `grad_d` at this learning rate. `grad_d` may be overwritten."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What one of an inner optimizer's buffers is an average of: what members may average in turn."""

    order: Literal["first", "second"]
    """Of gradients, or of their squares."""
    scaled_by: str = ""
    """Of a first one: the buffer of second ones by whose root a step divides it, place by place; empty: none."""
    steepest: float = STEEPEST
    """Of such a one: the largest that it can be by steps alone, over that root. 1 is that of a steady gradient."""


@runtime_checkable
class HasMoments(InnerOptimizer, Protocol):
    """An inner optimizer that says which of its buffers are averages over steps. Optional: of any other none are."""

    @property
    def moments(self) -> Mapping[str, Moment]:
        """What the buffers of these names are, known before `attach`. All others are its own: counts, positions."""


@dataclass(frozen=True, kw_only=True)
class MomentBuffer:
    """A buffer of moments."""

    name: str
    numel: int
    moment: Moment


def moments_of(optimizer: InnerOptimizer) -> Mapping[str, Moment]:
    """Return which of its buffers are moments, by name."""
    return optimizer.moments if isinstance(optimizer, HasMoments) else {}


def moment_buffers(optimizer: InnerOptimizer) -> tuple[MomentBuffer, ...]:
    """Return the moments that an attached optimizer holds, by name: the same order at all members."""
    held = sorted(moments_of(optimizer).items())
    return tuple(
        MomentBuffer(name=name, numel=optimizer.buffers[name].numel(), moment=moment)
        for name, moment in held
        if name in optimizer.buffers
    )


def steepest(betas: tuple[float, float]) -> float:
    """Return `Moment.steepest` where both are exponential averages of these betas (Cauchy-Schwarz)."""
    first, second = betas
    if not first**2 < second < 1:
        return MOST_STEEP
    return min(MOST_STEEP, 1.005 * (1 - first) / math.sqrt((1 - second) * (1 - first**2 / second)))


def bound_(optimizer: InnerOptimizer, parts: Sequence[BufferPart]) -> None:
    """Bound moments that have just become members' means, as steps went on meanwhile: a first one that has grown since
    is not to be divided by a second one of before, nor one of before by a second one that has faded. None is beyond
    what `sync.moment_packing` lets it be where no step was taken."""
    moments, buffers = moments_of(optimizer), optimizer.buffers
    with torch.no_grad():
        for name, at, _, members in parts:
            if not members:
                continue
            place_p = place_in(buffers[name], at)
            for first, moment in moments.items():
                if first not in buffers or not moment.scaled_by:
                    continue
                most = moment.steepest * math.sqrt(members)
                if moment.scaled_by == name:
                    torch.maximum(place_p, (place_in(buffers[first], at) / most).square_(), out=place_p)
                elif first == name:
                    most_p = place_in(buffers[moment.scaled_by], at).clamp(min=0).sqrt_().mul_(most)
                    torch.minimum(torch.maximum(place_p, -most_p), most_p, out=place_p)


def decay(parameters: Parameters, factor: float) -> None:
    """Decoupled weight decay (1711.05101): the decayed parameters times `1 - factor`."""
    if factor and parameters.decayed:
        # torch's types want a list or a tuple; views of one buffer, in one kernel.
        torch._foreach_mul_(list(parameters.decayed), 1 - factor)
