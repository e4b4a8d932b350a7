"""An inner optimizer whose vectors lie in files without names, and are moved a block at a time.

For each block of parameters an optimizer of the same kind is made, given its part of the vectors, asked for its step,
and its part is written back. That comes to the same bits as one optimizer over the whole vector where each coordinate
moves by itself, so only optimizers that say so (`elementwise`) can be taken. Numbers that are no vectors, such as the
count of updates, are the same for all blocks and stay in memory.

Memory: the vectors of one block. Cost: a step reads and writes every vector once, through the system's cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from p2ptrain.inner.base import InnerOptimizer, Moment, Parameters, Place, moments_of
from p2ptrain.saved.filed_vector import OPTIMIZER, FiledVector, Raw, Refused
from p2ptrain.saved.nameless_file import NamelessFile

BLOCK_NUMEL: Final = 1 << 18
"""Parameters that are moved at a time: 1 MiB of each vector. Chosen: many enough that a call costs nothing beside
them. Whole cache lines, so that each value is computed by the same instructions as in the whole vector."""


@dataclass
class _FlatBlock:
    """A part of a model's vectors as an optimizer sees it."""

    data_d: torch.Tensor
    grad_d: torch.Tensor
    places: Sequence[Place]
    decayed: Sequence[torch.Tensor]


class FiledOptimizer:
    """Takes over from `optimizer`, which is attached to `parameters` on a CPU, with the state that it has. `make`
    returns another one with the same options, not attached.

    `refused` is called where the disk does not take a vector, which is in memory from then on. Raises ValueError for an
    optimizer that cannot be cut into blocks, and OSError where there is no room.
    """

    elementwise = True

    def __init__(
        self,
        optimizer: InnerOptimizer,
        make: Callable[[], InnerOptimizer],
        parameters: Parameters,
        *,
        new_file: Callable[[], NamelessFile],
        refused: Refused,
    ) -> None:
        if not can_be_filed(optimizer):
            raise ValueError(f"the optimizer {optimizer.name} wants whole matrices, and its state stays in memory")
        self.name, self.schedule = optimizer.name, optimizer.schedule
        self._make, self._parameters = make, parameters
        self._moments = moments_of(optimizer)
        numel = parameters.data_d.numel()
        self._blocks = [slice(start, min(start + BLOCK_NUMEL, numel)) for start in range(0, numel, BLOCK_NUMEL)]
        self._kept: dict[str, torch.Tensor | FiledVector] = {}
        for name, buffer in optimizer.buffers.items():
            if buffer.shape == parameters.data_d.shape:
                self._kept[name] = FiledVector(numel, buffer.dtype, new_file(), refused, holds=OPTIMIZER)
                self.put(name, buffer)
            else:
                self._kept[name] = buffer

    @property
    def moments(self) -> Mapping[str, Moment]:
        """What its buffers are averages of."""
        return self._moments

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Its whole state by name, to be read. Vectors are mapped: their pages count as memory while somebody holds
        them."""
        return {name: it.mapped() if isinstance(it, FiledVector) else it for name, it in self._kept.items()}

    def put(self, name: str, values: torch.Tensor) -> None:
        """Set a buffer to other values of its shape. Raises LostVectorError."""
        kept = self._kept[name]
        if isinstance(kept, FiledVector):
            for part in self._blocks:
                kept.write(part, _raw(values[part]))
        else:
            kept.copy_(values)

    def attach(self, parameters: Parameters) -> None:
        """It is attached already."""
        raise AssertionError("a filed optimizer is attached when it is made")

    def gradient_point(self) -> torch.Tensor | None:
        """Return where the next gradient is to be taken (d,), a new tensor; None: at the parameters themselves."""
        point_d: torch.Tensor | None = None
        for part, block in self._at_work():
            found = block.gradient_point()
            if found is None:
                return None
            if point_d is None:
                point_d = torch.empty_like(self._parameters.data_d)
            point_d[part] = found
        return point_d

    def step(self, rate: float) -> None:
        """Move the parameters by their gradient at this learning rate. Raises LostVectorError."""
        numbers: dict[str, torch.Tensor] = {}
        for part, block in self._at_work():
            block.step(rate)
            for name, buffer in block.buffers.items():
                kept = self._kept[name]
                if isinstance(kept, FiledVector):
                    kept.write(part, _raw(buffer))
                else:
                    numbers[name] = buffer
        for name, value in numbers.items():  # at the end: each block begins with those of the step before
            self.put(name, value)

    def _at_work(self) -> Iterator[tuple[slice, InnerOptimizer]]:
        """Yield each block's optimizer, with its state."""
        for part in self._blocks:
            optimizer = self._make()
            optimizer.attach(self._block(part))
            for name, buffer in optimizer.buffers.items():
                kept = self._kept[name]
                buffer.copy_(_values(kept, part) if isinstance(kept, FiledVector) else kept)
            yield part, optimizer

    def _block(self, part: slice) -> _FlatBlock:
        data_p = self._parameters.data_d[part]
        places = list(_within(self._parameters.places, part))
        decayed = [data_p[place.span] for place in places if place.decayed]
        return _FlatBlock(data_p, self._parameters.grad_d[part], places, decayed)


def can_be_filed(optimizer: InnerOptimizer) -> bool:
    """Return whether the state of an optimizer can be moved by blocks: it moves each coordinate by itself."""
    return bool(getattr(optimizer, "elementwise", False))


def _within(places: Sequence[Place], part: slice) -> Iterator[Place]:
    """Yield the pieces of places that lie in a part of the vector, flat, counted from its beginning."""
    for place in places:
        start, stop = max(place.span.start, part.start), min(place.span.stop, part.stop)
        if start < stop:
            span = slice(start - part.start, stop - part.start)
            yield replace(place, span=span, shape=torch.Size((stop - start,)))


def _values(vector: FiledVector, part: slice) -> torch.Tensor:
    raw = vector.read(part)
    values = torch.from_numpy(raw.view(np.int16) if vector.dtype == torch.bfloat16 else raw)
    return values.view(vector.dtype)


def _raw(values: torch.Tensor) -> Raw:
    values = values.detach().contiguous()
    return values.view(torch.int16).numpy().view(np.uint16) if values.dtype == torch.bfloat16 else values.numpy()
