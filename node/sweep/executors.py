"""What runs the cells, by name."""

from collections.abc import Iterator, Sequence

from node.sweep.attempt import attempt
from node.sweep.base import Cell, CellExecutor, Outcome
from node.sweep.cell_processes import ProcessCells
from node.sweep.ray_cells import RayCells
from p2ptrain.registry import Registry

__all__ = ["EXECUTORS", "CellsHere"]


class CellsHere:
    """This very process, one cell after the other: for debuggers, and for one cell that is run again."""

    def run(self, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Outcome]]:
        """Yield each cell with what came of it, in order."""
        yield from ((cell, attempt(cell)) for cell in cells)


EXECUTORS: Registry[CellExecutor] = Registry("cell_executors")
EXECUTORS.register("processes")(ProcessCells)
EXECUTORS.register("here")(CellsHere)
EXECUTORS.register("ray")(RayCells)
