"""What a cell runs, and what runs many of them: two small contracts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

Settings: TypeAlias = Mapping[str, Any]
"""Values by dotted key, such as `sync.strategy`."""
CellRow: TypeAlias = dict[str, Any]
"""What came of a cell, as JSON values."""

PROMISED = ("loss", "metric", "sent_bytes", "published_bytes", "steps", "seconds", "curve")
"""Keys that every row has. `loss`: held-out, None of one that diverged; `sent_bytes`, `published_bytes`: a node's, the
mean over the honest ones, every copy and each update once; `steps`: inner steps; `seconds`: of the run's own clock,
None where it has none; `curve`: [inner steps, bytes sent by a node, held-out loss or None], in order."""


@runtime_checkable
class CellRunner(Protocol):
    """A kind of run. Built without arguments, in each process anew."""

    name: str

    def document(self, settings: Settings, seed: int) -> Mapping[str, Any]:
        """Return what decides the outcome, as JSON: two cells with the same are the same run.

        Raises ValueError or UsageError on settings that cannot be.
        """

    def run(self, settings: Settings, seed: int) -> CellRow:
        """Carry it out; return a row with PROMISED at the least. Raises ValueError on settings that do not go
        together."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of settings with a seed. `id`: by what decides its outcome."""

    id: str
    runner: str
    settings: Settings
    varied: Settings
    """Those of the grid."""
    seed: int

    def words(self) -> str:
        """Return what tells it from the others, for a line."""
        return " ".join([*(f"{key}={value}" for key, value in self.varied.items()), f"seed={self.seed}"])


@dataclass(frozen=True)
class CellFailure:
    """A cell without a result. `refused`: its settings do not go together; else something broke."""

    error: str
    refused: bool = False


Outcome: TypeAlias = CellRow | CellFailure


@runtime_checkable
class CellExecutor(Protocol):
    """Runs cells, some at a time."""

    def run(self, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Outcome]]:
        """Yield each cell with what came of it, as they finish. A cell that fails, or takes its process along, is a
        CellFailure, and the others go on. Nothing of it runs any more once the iterator is closed."""
