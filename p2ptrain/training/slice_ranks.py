"""The slices of a strategy's vectors in the ranks of a model, called from the one that leads.

    leader      each("encode", round) -> a message to each rank -> its own slice -> what each rank says
    the others  a thread, which does to the rank's `ModelSlice` what comes, and answers

The thread works while the rank's own training goes on, over a group of gloo of its own: nothing that the ranks say to
each other between steps is in the way. A message is its length (int64) and a pickle, as torch.distributed sends objects
within a group: its ranks are one user's program.
"""

import pickle
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from p2ptrain.sync.model_slice import ModelSlice
from p2ptrain.sync.sliced_vectors import LostSliceError

ENDLESS: Final = timedelta(days=365)
"""For what the leader wants next. Its end is noticed at once, as its connections end with it."""

END: Final = None
"""In place of a method's name: nothing more is wanted."""


class SliceRanks:
    """`SliceHolders` of the ranks of `group`, of which this one leads and holds the slice `own`."""

    def __init__(self, group: dist.ProcessGroup, cuts: Sequence[slice], own: ModelSlice, patience: timedelta) -> None:
        self.cuts = cuts
        self._own, self._group, self._patience = own, group, patience
        self._calling = threading.Lock()
        self._lost = ""
        """Why no rank is asked any more: a message may be on its way."""

    def each(self, name: str, *common: Any, own: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """Call a method of every slice, in all ranks at once, with its `own` arguments and then the common ones."""
        arguments = own or [()] * len(self.cuts)
        with self._calling:
            return self._call(name, {rank: (*mine, *common) for rank, mine in enumerate(arguments)})

    def one(self, index: int, name: str, *arguments: Any) -> Any:
        """Call a method of one slice."""
        with self._calling:
            return self._call(name, {index: arguments})[0]

    def end(self) -> None:
        """Tell the other ranks that nothing more is wanted, as far as they are there."""
        with self._calling:
            for rank in range(1, len(self.cuts)):
                with suppress(LostSliceError):
                    self._check()
                    self._send(rank, END, ())
            self._lost = self._lost or "the swarm was left"

    def _call(self, name: str, arguments: dict[int, tuple[Any, ...]]) -> list[Any]:
        self._check()
        others = [rank for rank in arguments if rank]
        try:
            for rank in others:
                self._send(rank, name, arguments[rank])
            answers = {0: answer_of(self._own, name, arguments[0])} if 0 in arguments else {}
            answers |= {rank: self._received(rank) for rank in others}
        except BaseException as error:
            self._lost = self._lost or str(error) or type(error).__name__
            raise
        for rank in arguments:
            self._note_failed(rank, answers[rank])
        return [_result(answers[rank]) for rank in arguments]

    def _check(self) -> None:
        if self._lost:
            raise LostSliceError(f"the vectors of this model are no longer whole: {self._lost}")

    def _note_failed(self, rank: int, answer: tuple[str, Any]) -> None:
        """Raise LostSliceError for a slice that has failed: it may be of another round than the others from now on, so
        that none is read any more."""
        how, found = answer
        if how == "failed":
            self._lost = f"rank {rank} of this model has failed with its slice: {found}"
            raise LostSliceError(self._lost)

    def _send(self, rank: int, name: str | None, arguments: tuple[Any, ...]) -> None:
        try:
            send(self._group, rank, (name, arguments), self._patience)
        except RuntimeError as error:
            self._gone(rank, error)

    def _received(self, rank: int) -> tuple[str, Any]:
        try:
            return receive(self._group, rank, self._patience)  # type: ignore[no-any-return]
        except RuntimeError as error:
            self._gone(rank, error)
            raise

    def _gone(self, rank: int, error: RuntimeError) -> None:
        said = str(error).splitlines()[0]
        raise LostSliceError(f"rank {rank} of this model, which holds a slice, cannot be reached: {said}") from None


class SliceThread:
    """Another rank's thread, which does what the leader wants to `own` until it ends."""

    def __init__(self, group: dist.ProcessGroup, own: ModelSlice, patience: timedelta) -> None:
        self._own, self._group, self._patience = own, group, patience
        self._thread = threading.Thread(target=self._run, name="p2ptrain-slice", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the leader wants nothing more."""
        self._thread.join(self._patience.total_seconds())

    def _run(self) -> None:
        with suppress(RuntimeError):  # the leader has ended, which the thread that trains finds, too
            while True:
                name, arguments = receive(self._group, 0, ENDLESS)
                if name is END:
                    return
                send(self._group, 0, answer_of(self._own, name, arguments), self._patience)


def answer_of(own: ModelSlice, name: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Return what a method returns, or has raised."""
    try:
        return "done", getattr(own, name)(*arguments)
    except ValueError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"


def _result(answer: tuple[str, Any]) -> Any:
    how, found = answer
    if how == "refused":
        raise ValueError(found)
    return found


def send(group: dist.ProcessGroup, rank: int, found: Any, patience: timedelta) -> None:
    """Send an object to a rank of a group. RuntimeError where it cannot be reached."""
    data = np.frombuffer(pickle.dumps(found, pickle.HIGHEST_PROTOCOL), dtype=np.uint8).copy()
    to = dist.get_global_rank(group, rank)
    for each in (torch.tensor([data.size], device="cpu"), torch.from_numpy(data)):
        leaving = dist.isend(each, to, group)
        assert leaving is not None, "this rank is of the group"
        leaving.wait(patience)


def receive(group: dist.ProcessGroup, rank: int, patience: timedelta) -> Any:
    """Return the next object from a rank of a group. RuntimeError where it cannot be reached."""
    source = dist.get_global_rank(group, rank)
    size = torch.zeros(1, dtype=torch.int64, device="cpu")
    _wait(dist.irecv(size, source, group), patience)
    data = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    _wait(dist.irecv(data, source, group), patience)
    return pickle.loads(data.numpy().data)


def _wait(work: dist.Work | None, patience: timedelta) -> None:
    assert work is not None, "this rank is of the group"
    work.wait(patience)
