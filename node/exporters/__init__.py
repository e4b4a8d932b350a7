"""Exporters by name: `[monitoring] exporters = ["tensorboard"]`, or `--export tensorboard`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from node.errors import UsageError
from node.events import EventLog
from node.exporters.base import About, Exporter
from node.exporters.otel import OpenTelemetry
from node.exporters.pump import Pump, close_all
from node.exporters.tensorboard import TensorBoard
from node.exporters.wandb import WeightsAndBiases
from p2ptrain.registry import Registry

EXPORTERS: Registry[Exporter] = Registry("exporters")
_BUILT_IN: dict[str, type[TensorBoard | WeightsAndBiases | OpenTelemetry]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "otel": OpenTelemetry,
}
for _name, _member in _BUILT_IN.items():
    EXPORTERS.register(_name)(_member)


def check(names: Sequence[str]) -> None:
    """UsageError for a name that no exporter has, and for one whose package is not installed."""
    for name in names:
        if name not in EXPORTERS.names():
            known = ", ".join(EXPORTERS.names())
            raise UsageError(f"unknown monitoring.exporters {name!r}", f"there are {known}")
        if name in _BUILT_IN and not _is_there(_BUILT_IN[name].needs):
            raise UsageError(f"the exporter {name} is not installed", f"pip install 'p2ptrain[{name}]'")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package above it
        return False


@contextmanager
def exporting(names: Sequence[str], emit: EventLog, node_dir: Path) -> Iterator[None]:
    """Tell the exporters of every event that comes within. A name that is given twice counts once."""
    about = About(folder=node_dir, run=node_dir.absolute().parent.name, node=node_dir.name)
    pumps = [
        Pump(name, partial(EXPORTERS.get, name, about=about), lambda words: _warn(emit, words))
        for name in dict.fromkeys(names)
    ]
    for pump in pumps:
        emit.add_sink(pump)
    try:
        yield
    finally:
        close_all(pumps)


def _warn(emit: EventLog, words: str) -> None:
    emit("warning", message=words)


__all__ = ["EXPORTERS", "About", "Exporter", "check", "exporting"]
