"""One cell carried out, in whatever process: its row, or its failure in a line."""

import gc

from node.sweep.base import Cell, CellFailure, Outcome
from node.system.errors import UsageError


def attempt(cell: Cell) -> Outcome:
    """Carry out a cell. Never raises but what ends the process (KeyboardInterrupt, SystemExit)."""
    from node.sweep.runners import RUNNERS

    try:
        return RUNNERS.get(cell.runner).run(cell.settings, cell.seed)
    except UsageError as error:
        return CellFailure(error.line(), refused=True)
    except ValueError as error:
        return CellFailure(" ".join(str(error).split()), refused=True)
    except Exception as error:  # one broken cell is no reason to lose the others
        return CellFailure(f"{type(error).__name__}: {' '.join(str(error).split())}")
    finally:
        gc.collect()  # a run's nodes refer to each other: many runs' models would wait for the collector
