"""Pictures, with matplotlib where it is installed (the extra `bench`). Checked before anything is measured."""

import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gossip.core.atomic_file import write_atomic
from node.system.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE_INCHES = (9.0, 5.5)
DOTS_PER_INCH = 150
"""1350 x 825 pixels: sharp on a page, 60 kB."""


def check(path: Path | None) -> None:
    """Raise UsageError where no picture can be drawn: no matplotlib, no such folder, not a .png."""
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {str(path)!r} is no name of a PNG", "let it end in .png")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no folder {path.absolute().parent}", "make it first")
    if path.exists() and not path.is_file():
        raise UsageError(f"--plot: {path} is there, and is no file", "give another name")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed", "run: pip install 'matplotlib>=3.10'")


def write(path: Path, draw: Callable[["Figure"], None]) -> None:
    """Draw and save, whole or not at all. No display is used, whatever the machine has. OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH, format="png")
    write_atomic(path, drawn.getvalue())
