"""Cells on a Ray cluster (the extra `ray`): each a task of one CPU, wherever the cluster has one.

`RAY_ADDRESS` names the cluster, as for every program of Ray's; without it Ray is started on this machine. The cluster's
machines need p2ptrain, and the files that the plan names, at the same paths.
"""

import importlib.util
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from node.sweep.attempt import attempt
from node.sweep.base import Cell, CellFailure, Outcome
from node.system.errors import RunError, UsageError


class RayCells:
    """A Ray cluster."""

    def __init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError("--executor ray needs Ray, which is not installed", "run: pip install 'ray>=2.50'")

    def run(self, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Outcome]]:
        """Yield each cell with what came of it, as they finish; `jobs` at a time. RunError without a cluster."""
        import ray

        if not cells:
            return
        own = not ray.is_initialized()
        try:
            ray.init(log_to_driver=False, include_dashboard=False, ignore_reinit_error=True)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RunError(f"no Ray cluster: {error}", "look at RAY_ADDRESS, or take --executor processes") from error
        task = ray.remote(num_cpus=1, max_retries=0)(attempt)  # again is --retry: what killed a process may again
        todo, running = deque(cells), dict[Any, Cell]()
        try:
            while todo or running:
                while todo and len(running) < max(1, jobs):
                    cell = todo.popleft()
                    running[task.remote(cell)] = cell
                (done,), _ = ray.wait(list(running), num_returns=1)
                yield running.pop(done), _come(ray, done)
        finally:
            for each in running:
                ray.cancel(each, force=True)
            if own:
                ray.shutdown()


def _come(ray: Any, done: Any) -> Outcome:
    try:
        outcome: Outcome = ray.get(done)
    except ray.exceptions.RayError as error:
        return CellFailure(f"its process died: {' '.join(str(error).split())[:200]}")
    return outcome
