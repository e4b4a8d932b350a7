"""Copies between a model on a device and vectors on the host: through page-locked buffers, on a queue of their own.

A GPU copies from and to page-locked memory by itself, at the speed of its bus, and computes meanwhile. Vectors as large
as a model are not locked. Two buffers of STAGED_BYTES are, and all that travels goes through them, a load at a time:

    gather     device -> buffer (the copying queue) -> vector (who waits for it), while the model is only read
    deliver    vector -> buffer (the caller) -> device (the copying queue) -> `take` (the computing queue), in turn

Who gathers may compute on at once, and calls `settle` before anything writes to what is gathered. No buffer is used
again before its copy has ended. On a CPU there is nothing to stage: both work on the tensors as they are.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, Protocol

import torch

from p2ptrain import faults

STAGED_BYTES: Final = 8 << 20
"""Of one buffer. Chosen, not measured (`p2ptrain bench gpu` does): buses reach their speed with a MiB or less, and two
buffers must stay small beside any model."""

BUFFERS: Final = 2
"""One is filled while the other one travels."""

_ALIGNED: Final = 16
"""Bytes: the largest element of any type."""


class Mark(Protocol):
    """A place in a queue: all that was queued before it."""

    def wait(self) -> None:
        """Wait, in the calling thread, until that is done."""


class Queue(Protocol):
    """Work on a device, done one after another in the order in which it was queued."""

    def run(self, work: Callable[[], object]) -> None:
        """Queue what `work` does on the device."""

    def mark(self) -> Mark:
        """Return a mark behind all that is queued now."""

    def after(self, mark: Mark) -> None:
        """Have all that is queued from now on wait for `mark`, of this queue or another."""


@dataclass(frozen=True)
class Queues:
    """What a device works through, and the memory for what travels."""

    computing: Queue
    """What the calling thread computes on the device."""
    copying: Queue
    """Beside it."""
    locked: Callable[[int], torch.Tensor]
    """Returns a buffer of so many bytes on the host, page-locked where that can be."""
    scratch: Callable[[int], torch.Tensor]
    """Returns a buffer of so many bytes on the device."""


Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Each a tensor on the device, and the host's of the same shape."""

Take = Callable[[int, torch.Tensor, tuple[torch.Tensor, ...]], None]
"""Is given the number of a delivery, some of its values on the device, and the targets' places for these."""


class Gathering(Protocol):
    """A gathering under way."""

    @property
    def ended(self) -> bool:
        """Whether all values are on the host."""

    def finish(self) -> None:
        """Wait until all values are on the host. Any thread may call it, and again."""


class Copies(Protocol):
    """Copies between one device and the host. One thread gathers and delivers; `Gathering.finish` is any thread's."""

    def gather(self, pairs: Pairs, *, added: Pairs = ()) -> Gathering:
        """Begin to write the values of the first tensors as they are now into the second ones, and then to add those of
        `added`. Nothing may write to the first ones before `settle`, nor read the second ones before `finish`."""

    def deliver(self, sources: Sequence[torch.Tensor], targets: Sequence[tuple[torch.Tensor, ...]], take: Take) -> None:
        """Hand the values of each source, on the host, to `take` beside its targets, all of one shape, on the device.
        The sources may be written to when this returns."""

    def settle(self) -> None:
        """Return once nothing is gathered any more: from then on the tensors on the device may be written to."""


class _Gathered:
    """A gathering that has ended."""

    ended: Final = True

    def finish(self) -> None:
        """Return at once."""


GATHERED: Final = _Gathered()


class HostCopies:
    """Copies where the device is the host: plain ones, there and then."""

    def gather(self, pairs: Pairs, *, added: Pairs = ()) -> Gathering:
        """Write and add the values."""
        with torch.no_grad():
            for source, target in pairs:
                target.copy_(source)
            for source, target in added:
                target.add_(source)
        return GATHERED

    def deliver(self, sources: Sequence[torch.Tensor], targets: Sequence[tuple[torch.Tensor, ...]], take: Take) -> None:
        """Hand the values over."""
        with torch.no_grad():
            for index, (source, places) in enumerate(zip(sources, targets, strict=True)):
                take(index, source, places)

    def settle(self) -> None:
        """Return at once."""


@dataclass
class _Buffer:
    """One place for a load: on the host, and on the device once anything is delivered."""

    host: torch.Tensor
    device: torch.Tensor | None = None
    travelled: Mark | None = None
    """After the newest copy from the host's place to the device's."""
    taken: Mark | None = None
    """After the newest reading of the device's place."""

    def free(self) -> torch.Tensor:
        """Return the host's place once nothing is copied from it any more."""
        mark, self.travelled = self.travelled, None
        if mark is not None:
            mark.wait()
        return self.host


@dataclass
class _StagedLoad:
    """Pieces in a buffer, on their way to the host."""

    buffer: _Buffer
    pieces: list["_Part"]
    arrived: Mark


@dataclass(frozen=True)
class _Part:
    """A part of a tensor, beside the same part of others, and where it lies in a buffer."""

    index: int
    source: torch.Tensor
    targets: tuple[torch.Tensor, ...]
    at: int
    adds: bool = False

    def in_buffer(self, memory: torch.Tensor) -> torch.Tensor:
        """Return its place in a buffer."""
        end = self.at + self.source.numel() * self.source.element_size()
        return memory[self.at : end].view(self.source.dtype).view(self.source.shape)


class StagedCopies:
    """Copies through buffers of `staged` bytes."""

    def __init__(self, queues: Queues, *, staged: int) -> None:
        self._queues, self._staged = queues, staged
        self._buffers: list[_Buffer] = []
        self._gathering: _StagedGathering | None = None

    def gather(self, pairs: Pairs, *, added: Pairs = ()) -> Gathering:
        """Begin to gather, behind all that the calling thread has queued to be computed."""
        self.settle()
        loads = _loads(
            [source.detach() for source, _ in (*pairs, *added)],
            [(target,) for _, target in (*pairs, *added)],
            self._staged,
            adds_from=len(pairs),
        )
        self._queues.copying.after(self._queues.computing.mark())
        self._gathering = _StagedGathering(self._queues.copying, self._ready(), loads)
        return self._gathering

    def deliver(self, sources: Sequence[torch.Tensor], targets: Sequence[tuple[torch.Tensor, ...]], take: Take) -> None:
        """Hand the values over, load by load: the calling thread fills a buffer while the one before it travels."""
        self.settle()
        computing, copying = self._queues.computing, self._queues.copying
        buffers = self._ready()
        with torch.no_grad():
            for number, pieces in zip(count(), _loads(sources, targets, self._staged)):
                buffer = buffers[number % len(buffers)]
                host, there = buffer.free(), self._device_place(buffer)
                for piece in pieces:
                    piece.in_buffer(host).copy_(piece.source)
                if buffer.taken is not None:
                    copying.after(buffer.taken)
                copying.run(partial(_travel, pieces, host, there))
                buffer.travelled = copying.mark()
                computing.after(buffer.travelled)
                computing.run(partial(_take_all, pieces, there, take))
                buffer.taken = computing.mark()

    def settle(self) -> None:
        """Wait for what is gathered."""
        gathering, self._gathering = self._gathering, None
        if gathering is not None:
            gathering.finish()

    def _ready(self) -> list[_Buffer]:
        if not self._buffers:
            self._buffers = [_Buffer(self._queues.locked(self._staged)) for _ in range(BUFFERS)]
        return self._buffers

    def _device_place(self, buffer: _Buffer) -> torch.Tensor:
        if buffer.device is None:
            buffer.device = self._queues.scratch(self._staged)
            # The memory may be that of a tensor let go of, with which something queued before is still computed.
            buffer.taken = self._queues.computing.mark()
        return buffer.device


class _StagedGathering:
    """Loads on their way to the host. Who needs the values first moves them on: no thread is started for it."""

    def __init__(self, copying: Queue, buffers: Sequence[_Buffer], loads: Iterator[list[_Part]]) -> None:
        self._copying, self._loads = copying, loads
        self._lock = threading.Lock()
        self._under_way: deque[_StagedLoad] = deque()
        for buffer in buffers:
            self._begin(buffer)

    @property
    def ended(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    def finish(self) -> None:
        """Move the values on, load by load, until all are where they belong."""
        with self._lock:
            while self._under_way:
                load = self._under_way[0]
                load.arrived.wait()
                for piece in load.pieces:
                    (target,) = piece.targets
                    (target.add_ if piece.adds else target.copy_)(piece.in_buffer(load.buffer.host))
                self._begin(load.buffer)
                self._under_way.popleft()  # not before: `ended` may be asked meanwhile

    def _begin(self, buffer: _Buffer) -> None:
        pieces = next(self._loads, None)
        if pieces is not None:
            # What was last copied from it is in the same queue, before this.
            self._copying.run(partial(_arrive, pieces, buffer.host))
            self._under_way.append(_StagedLoad(buffer, pieces, self._copying.mark()))


def _arrive(pieces: list[_Part], host: torch.Tensor) -> None:
    with torch.no_grad():
        for piece in pieces:
            piece.in_buffer(host).copy_(piece.source, non_blocking=True)


def _travel(pieces: list[_Part], host: torch.Tensor, there: torch.Tensor) -> None:
    end = pieces[-1].at + pieces[-1].source.numel() * pieces[-1].source.element_size()
    there[:end].copy_(host[:end], non_blocking=True)


def _take_all(pieces: list[_Part], there: torch.Tensor, take: Take) -> None:
    with torch.no_grad():
        for piece in pieces:
            take(piece.index, piece.in_buffer(there), piece.targets)


def _loads(
    sources: Sequence[torch.Tensor],
    targets: Sequence[tuple[torch.Tensor, ...]],
    staged: int,
    *,
    adds_from: int | None = None,
) -> Iterator[list[_Part]]:
    """Yield the tensors in pieces, as many at a time as fit into a buffer of `staged` bytes, in order."""
    load: list[_Part] = []
    end = 0
    for index, (source, places) in enumerate(zip(sources, targets, strict=True)):
        adds = adds_from is not None and index >= adds_from
        for part, *others in _cut((source, *places), max(1, staged // source.element_size())):
            size = part.numel() * part.element_size()
            if load and end + size > staged:
                yield load
                load, end = [], 0
            load.append(_Part(index, part, tuple(others), end, adds))
            end = -(-(end + size) // _ALIGNED) * _ALIGNED
    if load:
        yield load


def _cut(tensors: tuple[torch.Tensor, ...], most: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield views of the tensors, all of one shape, that together are all of them: of `most` values or fewer each. No
    tensor is copied, however its dimensions lie in memory."""
    first = tensors[0]
    if not first.numel():
        return
    if first.numel() <= most:
        yield tensors
    elif all(each.is_contiguous() for each in tensors):
        yield from zip(*(torch.split(each.view(-1), most) for each in tensors), strict=True)
    else:
        rows = max(1, most // (first.numel() // len(first)))
        for start in range(0, len(first), rows):
            parts = tuple(each[start : start + rows] for each in tensors)
            yield from _cut(tuple(part[0] for part in parts) if rows == 1 else parts, most)


class _Done:
    """A mark that is reached."""

    def wait(self) -> None:
        """Return at once."""


class _AtOnce:
    """A queue whose work is done when it is queued: of devices without queues of their own."""

    def run(self, work: Callable[[], object]) -> None:
        """Do it."""
        work()

    def mark(self) -> Mark:
        """Return a mark that is reached."""
        return _Done()

    def after(self, mark: Mark) -> None:
        """Do nothing: it is reached."""


def at_once(device: torch.device) -> Queues:
    """Return queues whose work is done at once, with buffers that are not locked."""
    return Queues(
        computing=_AtOnce(),
        copying=_AtOnce(),
        locked=lambda size: torch.empty(size, dtype=torch.uint8, device="cpu"),
        scratch=lambda size: torch.empty(size, dtype=torch.uint8, device=device),
    )


@dataclass(frozen=True)
class _CudaMark:
    event: torch.cuda.Event

    def wait(self) -> None:
        """Sleep until it is reached."""
        self.event.synchronize()


@dataclass(frozen=True)
class _CudaQueue:
    """A stream of `device`: of this queue's own, or (None) the one that the calling thread computes on."""

    device: torch.device
    own: torch.cuda.Stream | None = None

    @property
    def stream(self) -> torch.cuda.Stream:
        """Return the stream."""
        return torch.cuda.current_stream(self.device) if self.own is None else self.own

    def run(self, work: Callable[[], object]) -> None:
        """Queue the kernels and copies of `work`."""
        with torch.cuda.stream(self.stream):
            work()

    def mark(self) -> Mark:
        """Record an event. Who waits for it sleeps: the cores are for training."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return _CudaMark(event)

    def after(self, mark: Mark) -> None:
        """Have the stream wait for the event."""
        assert isinstance(mark, _CudaMark), "marks of one device"
        self.stream.wait_event(mark.event)


def on_cuda(device: torch.device) -> Queues:
    """Return the queues of a CUDA device, with page-locked buffers; where the system locks no more memory, with plain
    ones, from which a copy is as right and slower."""
    copying = _CudaQueue(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]

    def locked(size: int) -> torch.Tensor:
        with torch.cuda.device(device):  # else a context would be made on the first GPU, too
            try:
                return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
            except RuntimeError as error:
                if faults.is_device_lost(error):
                    raise
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def scratch(size: int) -> torch.Tensor:
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        with suppress(RuntimeError, NotImplementedError):  # allocators that know no streams wait before they free
            memory.record_stream(copying.stream)
        return memory

    return Queues(computing=_CudaQueue(device), copying=copying, locked=locked, scratch=scratch)


def overwrite(index: int, values: torch.Tensor, places: tuple[torch.Tensor, ...]) -> None:
    """Write the values over what is in their place (a `Take`)."""
    places[0].copy_(values)


def add(index: int, values: torch.Tensor, places: tuple[torch.Tensor, ...]) -> None:
    """Add the values to what is in their place (a `Take`)."""
    places[0].add_(values)


def on_host(copies: Copies, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host, of the same shape and type."""
    found = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    copies.gather([(tensor, found)]).finish()
    return found


def queues_for(device: torch.device) -> Queues:
    """Return the queues of `device`."""
    return on_cuda(device) if device.type == "cuda" and torch.cuda.is_available() else at_once(device)


def copies_for(device: torch.device) -> Copies:
    """Return the copies between `device` and the host."""
    return HostCopies() if device.type == "cpu" else StagedCopies(queues_for(device), staged=STAGED_BYTES)
