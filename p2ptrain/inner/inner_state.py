"""What a learner tells a sync strategy of its steps beside the model, and what comes back of it.

A strategy names what it wants (`StrategySpec.wants`), the learner is built to tell that, and at the end of each phase
an `InnerState` goes to the strategy, before the model is packed. What the strategy makes of the optimizer's state
comes back as parts of buffers. Steps go on meanwhile: values of which nothing is said are not to be set back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

Wanted = Literal["gradient", "moments"]
"""`gradient`: the mean of the gradients of a round's steps. `moments`: the optimizer's buffers that are averages."""


@dataclass(frozen=True, kw_only=True)
class InnerState:
    """What is told at the end of a phase, all of it copies on the CPU."""

    gradient_d: torch.Tensor | None = None
    """The mean of the gradients by which steps moved the model since the last time, clipped, fp32 (d,)."""
    moments: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The optimizer's moments by the names of its buffers, fp32, flat."""


class BufferPart(NamedTuple):
    """New values of a part of one of an inner optimizer's buffers."""

    name: str
    at: slice | None
    """Where in the flat buffer; None: all of it."""
    values: torch.Tensor
    """Flat, or in the buffer's shape where it is all of it."""
    members: int = 0
    """Of moments that are the mean of so many members': what they are by now of one's own bounds them. 0: of none."""


def whole_buffers(buffers: Mapping[str, torch.Tensor]) -> Sequence[BufferPart]:
    """Return all of these buffers, as parts."""
    return [BufferPart(name, None, buffer) for name, buffer in buffers.items()]


def place_in(buffer: torch.Tensor, at: slice | None) -> torch.Tensor:
    """Return the part of a contiguous buffer that is meant, a view; a shorter one where the buffer ends before."""
    return buffer if at is None else buffer.view(-1)[at]
