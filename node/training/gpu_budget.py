"""Holds what a node takes of a GPU's memory to a budget, with what the driver keeps for its process.

torch bounds what its own allocator takes. Beside that lie the CUDA context and the kernels, which are loaded when they
are first used: some hundred MB, and more in the first rounds. So the allocator's bound is what the budget leaves beside
them, and follows them.
"""

from collections.abc import Callable
from typing import Final

import torch
import trio

from node.participation.device_reader import NvmlReader
from node.system import text
from node.system.errors import UsageError

LOOK_S: Final = 0.5
"""Seconds between two looks at what the driver keeps. Chosen."""


class GpuBudget:
    """`most` bytes of the GPU. `reserved` returns the bytes that torch's allocator holds, `taken` those that the driver
    counts for the process, None where it does not tell; `bound` lets the allocator take no more than so many."""

    def __init__(
        self,
        most: int,
        *,
        reserved: Callable[[], int],
        taken: Callable[[], int | None],
        bound: Callable[[int], None],
    ) -> None:
        self.most, self._reserved, self._taken, self._bound = most, reserved, taken, bound
        self._bounded_beside = -1
        """Bytes beside the allocator at the newest bound."""

    @property
    def counts_driver(self) -> bool:
        """Return whether the driver tells what it keeps."""
        return self._taken() is not None

    def used(self) -> int:
        """Return the bytes that the node takes: the allocator's alone, where the driver does not tell."""
        taken = self._taken()
        return self._reserved() if taken is None else taken

    def hold(self) -> None:
        """Bound the allocator by what is left beside what the driver keeps. Raises UsageError where nothing is."""
        if self._beside_allocator() >= self.most:
            raise UsageError(
                f"budget.gpu_memory is {text.size(self.most)}, and the driver alone keeps "
                f"{text.size(self._beside_allocator())} for this process",
                "give more with --gpu-memory, or train with --device cpu",
            )
        self.look()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Bound the allocator anew where the driver keeps more than before. Where it keeps all, the bound stays: the
        node trains on, and what it takes is seen in `top`."""
        beside = self._beside_allocator()
        if self._bounded_beside < beside < self.most:
            self._bounded_beside = beside
            self._bound(self.most - beside)

    def _beside_allocator(self) -> int:
        return max(0, self.used() - self._reserved())


def gpu_budget(most: int, device: torch.device, reader: NvmlReader | None) -> GpuBudget:
    """Return the budget of the device's memory. `reader`: what its driver tells; None where that cannot be asked.
    Raises UsageError where the device is no GPU."""
    if device.type != "cuda":
        raise UsageError(f"budget.gpu_memory is set, and the node trains on {device}", "leave out --gpu-memory")
    total = torch.cuda.get_device_properties(device).total_memory
    return GpuBudget(
        most,
        reserved=lambda: torch.cuda.memory_reserved(device),
        taken=lambda: None if reader is None else reader.own_memory(),
        bound=lambda left: torch.cuda.set_per_process_memory_fraction(min(1.0, left / total), device),
    )
