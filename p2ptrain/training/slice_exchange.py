"""Values on their way between the blocks of a model that its ranks hold, and the slices of its flat vector.

Who holds which block is the model's to say (FSDP2, tensor parallelism), and who which slice the strategy's. Each rank
sends to each what is in both, in messages of a bounded size: no rank has more than its blocks and its slice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import Final, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from p2ptrain.tasks.base import TaskError
from p2ptrain.training.tensor_block import TensorBlock

MESSAGE_NUMEL: Final = 1 << 20
"""Values in a message at the most: 4 MiB. Chosen: enough that its fixed cost is nothing beside it."""


class Span(NamedTuple):
    """Some values in a row of what a rank holds of a parameter."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class SliceExchange:
    """The exchange as one rank sees it. Collective: all ranks call the same method together. TaskError where one cannot
    be reached."""

    group: dist.ProcessGroup
    rank: int
    shapes: Sequence[Sequence[int]]
    """Of the parameters."""
    blocks: Sequence[Sequence[TensorBlock]]
    """By rank, and parameter."""
    brings: Sequence[Sequence[int]]
    """By rank: the parameters of which it is the first that holds its block."""
    cuts: Sequence[slice]
    """By rank, the slices; ranks beyond these have none."""
    patience: timedelta
    _known: dict[tuple[int, int, bool], list[list[Span]]] = field(default_factory=dict)
    """Messages from blocks of a rank to the slice of another, or back: the same in each round."""

    def up(self, local_p: torch.Tensor) -> torch.Tensor:
        """Return this rank's slice fp32 (s,), perhaps empty, from what each rank holds of the parameters, one after
        another. Blocks that several hold come from the first of them."""
        x_s = _new(self._size(self.rank))

        def place(span: Span, source: int, value_v: torch.Tensor) -> None:
            at = 0
            for view in self._views(x_s, self.rank, source, span):
                view.copy_(value_v[at : at + view.numel()].view(view.shape))
                at += view.numel()

        self._exchange(
            lambda to: self._messages(self.rank, to, is_up=True),
            lambda source: self._messages(source, self.rank, is_up=True),
            lambda span, to: [self._local(local_p, span)],
            place,
        )
        return x_s

    def down(self, x_s: torch.Tensor) -> torch.Tensor:
        """Return what this rank holds of the parameters, one after another, fp32, from the ranks' slices."""
        local_p = _new(sum(block.numel for block in self.blocks[self.rank]))
        self._exchange(
            lambda to: self._messages(to, self.rank, is_up=False),
            lambda source: self._messages(self.rank, source, is_up=False),
            lambda span, to: [view.reshape(-1) for view in self._views(x_s, self.rank, to, span)],
            lambda span, source, value_v: self._local(local_p, span).copy_(value_v),
        )
        return local_p

    def _exchange(
        self,
        leaving: Callable[[int], list[list[Span]]],
        arriving: Callable[[int], list[list[Span]]],
        read: Callable[[Span, int], list[torch.Tensor]],
        place: Callable[[Span, int, torch.Tensor], object],
    ) -> None:
        """Send to each rank what `leaving` says, in turns, and take from each what is `arriving`."""
        count = len(self.blocks)
        for apart in range(count):
            to, source = (self.rank + apart) % count, (self.rank - apart) % count
            for out, come in zip_longest(leaving(to), arriving(source), fillvalue=()):
                told_m = torch.cat([each for span in out for each in read(span, to)]) if out else _new(0)
                sizes = [span.stop - span.start for span in come]
                come_m = self._swapped(told_m, to, sum(sizes), source) if apart else told_m
                for span, value_v in zip(come, torch.split(come_m, sizes), strict=True):
                    place(span, source, value_v)

    def _size(self, rank: int) -> int:
        return self.cuts[rank].stop - self.cuts[rank].start if rank < len(self.cuts) else 0

    def _messages(self, holder: int, slicer: int, *, is_up: bool) -> list[list[Span]]:
        """What the blocks of one rank and the slice of another have in common, in messages' worths: on the way up what
        the rank brings."""
        if (holder, slicer, is_up) not in self._known:
            parameters = self.brings[holder] if is_up else range(len(self.shapes))
            self._known[holder, slicer, is_up] = list(self._cut_up(holder, slicer, parameters))
        return self._known[holder, slicer, is_up]

    def _cut_up(self, holder: int, slicer: int, parameters: Sequence[int]) -> Iterator[list[Span]]:
        message: list[Span] = []
        room = MESSAGE_NUMEL
        for span in self._common(holder, slicer, parameters):
            start = span.start
            while start < span.stop:
                stop = min(span.stop, start + room)
                message.append(Span(span.parameter, start, stop))
                room -= stop - start
                start = stop
                if not room:
                    yield message
                    message, room = [], MESSAGE_NUMEL
        if message:
            yield message

    def _common(self, holder: int, slicer: int, parameters: Sequence[int]) -> Iterator[Span]:
        if slicer >= len(self.cuts):
            return
        cut = self.cuts[slicer]
        for index in parameters:
            block, shape, first = self.blocks[holder][index], self.shapes[index], self._firsts[index]
            start, stop = (block.below(max(0, at - first), shape) for at in (cut.start, cut.stop))
            if start < stop:
                yield Span(index, start, stop)

    @cached_property
    def _firsts(self) -> list[int]:
        """Where each parameter begins in the vector."""
        return list(accumulate((torch.Size(shape).numel() for shape in self.shapes), initial=0))

    @cached_property
    def _places(self) -> list[int]:
        """Where each parameter begins in what this rank holds."""
        return list(accumulate((block.numel for block in self.blocks[self.rank]), initial=0))

    def _local(self, local_p: torch.Tensor, span: Span) -> torch.Tensor:
        before = self._places[span.parameter]
        return local_p[before + span.start : before + span.stop]

    def _views(self, x_s: torch.Tensor, slicer: int, holder: int, span: Span) -> Iterator[torch.Tensor]:
        """Where values of a block lie in a slice."""
        shape, first = self.shapes[span.parameter], self._firsts[span.parameter]
        for strip in self.blocks[holder][span.parameter].strips(span.start, span.stop, shape):
            yield strip.of(x_s, self.cuts[slicer].start - first)

    def _swapped(self, told_m: torch.Tensor, to: int, size: int, source: int) -> torch.Tensor:
        """Send a message to one rank, and return that of another, of so many values. Nothing is sent for none."""
        come_m = _new(size)
        works = []
        try:
            if told_m.numel():
                works.append((to, dist.isend(told_m, dist.get_global_rank(self.group, to), self.group)))
            if size:
                works.append((source, dist.irecv(come_m, dist.get_global_rank(self.group, source), self.group)))
        except RuntimeError as error:
            gone(to, error)
        for rank, work in works:
            assert work is not None, "this rank is of the group"
            try:
                work.wait(self.patience)
            except RuntimeError as error:
                gone(rank, error)
        return come_m


def _new(numel: int) -> torch.Tensor:
    """A vector that is not set, whatever the defaults are in the thread that trains."""
    return torch.empty(numel, dtype=torch.float32, device="cpu")


def gone(rank: int, error: RuntimeError) -> NoReturn:
    """Raise TaskError: a rank of this model does not answer."""
    raise TaskError(f"rank {rank} of this model cannot be reached: {str(error).splitlines()[0]}") from None
