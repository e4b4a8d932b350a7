"""Reads what a node takes of what it may take."""

import os
from collections.abc import Callable
from pathlib import Path

from node.config.budget_section import BudgetConfig
from node.system.process_use import held_bytes


class BudgetMeter:
    """`cpu_s` returns the CPU seconds of the node so far, `gpu` the bytes of a GPU that it takes, `clock`
    seconds. `folder` is the node's."""

    def __init__(
        self,
        budget: BudgetConfig,
        folder: Path,
        *,
        cpu_s: Callable[[], float],
        gpu: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._folder, self._cpu_s, self._gpu, self._clock = folder, cpu_s, gpu, clock
        self._budget = budget
        self._before = (clock(), cpu_s())

    def budget(self) -> dict[str, float]:
        """Return what the node may take, by resource: bytes, and cores of `cpu`."""
        named = {name: getattr(self._budget, name) for name in ("memory", "gpu_memory", "disk", "cpu")}
        return {name: float(most) for name, most in named.items() if most is not None}

    def used(self) -> dict[str, float]:
        """Return what it takes of each: cores are the mean since the last call."""
        readers: dict[str, Callable[[], float]] = {
            "memory": held_bytes,
            "gpu_memory": self._gpu,
            "disk": lambda: folder_bytes(self._folder),
            "cpu": self._cores,
        }
        return {name: float(readers[name]()) for name in self.budget()}

    def _cores(self) -> float:
        (then, before), now = self._before, (self._clock(), self._cpu_s())
        self._before = now
        return (now[1] - before) / max(1e-9, now[0] - then)


def folder_bytes(folder: Path) -> int:
    """Return the bytes on disk of all named files in a folder; what goes meanwhile is passed over."""
    total, places = 0, [folder]
    while places:
        try:
            with os.scandir(places.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        places.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
