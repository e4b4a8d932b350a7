"""Cells on the cores there are: one process a job, which takes a cell after the other.

A process that dies (out of memory, a crash in a library) takes its one cell along and no other; a new one comes in its
place. Processes end with the one that started them, however it ends.
"""

import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from node.sweep.attempt import attempt
from node.sweep.base import Cell, CellFailure, Outcome
from node.system.errors import describe_code

ENDING_S = 5.0
"""Seconds that a process has to end by itself before it is killed."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None

    def give(self, cell: Cell) -> None:
        self.cell = cell
        self.pipe.send(cell)

    def end(self) -> None:
        self.process.terminate()
        self.process.join(ENDING_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


class ProcessCells:
    """Processes of this machine."""

    def run(self, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Outcome]]:
        """Yield each cell with what came of it, as they finish."""
        todo = deque(cells)
        # What a process that is ended leaves of a cell is in there, and goes with it.
        with tempfile.TemporaryDirectory(prefix="p2ptrain-cells-") as folder:
            yield from self._run(todo, min(max(1, jobs), len(cells)), folder)

    def _run(self, todo: deque[Cell], jobs: int, folder: str) -> Iterator[tuple[Cell, Outcome]]:
        workers = [_started(folder) for _ in range(jobs)]
        try:
            for at, worker in enumerate(workers):
                workers[at] = _given(worker, todo.popleft(), folder)
            while busy := [worker for worker in workers if worker.cell is not None]:
                wait([each for worker in busy for each in (worker.pipe, worker.process.sentinel)])
                for worker in busy:
                    outcome = _heard(worker)
                    if outcome is None:
                        continue
                    assert worker.cell is not None, "only busy ones are asked"
                    yield worker.cell, outcome
                    worker.cell = None
                    if todo:
                        workers[workers.index(worker)] = _given(worker, todo.popleft(), folder)
        finally:
            for worker in workers:
                worker.end()


def _given(worker: _Worker, cell: Cell, folder: str) -> _Worker:
    """Return the worker that has the cell: a new one where this one has died with the cell before, or after it."""
    if worker.process.is_alive():
        try:
            worker.give(cell)
        except OSError:  # at this moment
            pass
        else:
            return worker
    worker.end()
    new = _started(folder)
    new.give(cell)
    return new


def _heard(worker: _Worker) -> Outcome | None:
    """What came of the worker's cell; None while it is at it."""
    try:
        if worker.pipe.poll():
            outcome: Outcome = worker.pipe.recv()
            return outcome
    except (EOFError, OSError):
        pass
    if worker.process.is_alive():
        return None
    worker.process.join()
    return CellFailure(f"its process died: {describe_code(worker.process.exitcode)}")


def _started(folder: str) -> _Worker:
    # Spawned, not forked: a fork of a process that has used torch may hang in its thread pool.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, folder), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _work(pipe: Connection, folder: str) -> None:
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends its processes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            cell = pipe.recv()
        except EOFError:
            return
        pipe.send(attempt(cell))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in a child"
    parent.join()
    os._exit(1)
