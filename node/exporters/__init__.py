"""Exporters by name: `[monitoring] exporters = ["tensorboard"]`, or `--export tensorboard`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from node.events.event_types import WaitingFor, WarningEvent
from node.events.log import EventLog
from node.exporters.base import About, Exporter
from node.exporters.otel import OpenTelemetry
from node.exporters.pump import CLOSE_S, FINISHED_S, Pump, close_all
from node.exporters.tensorboard import TensorBoard
from node.exporters.wandb import WeightsAndBiases
from node.system.errors import UsageError
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
    """Raise UsageError for a name that no exporter has, and for one whose package is not installed."""
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


@dataclass
class Ending:
    """How long exporters have to write what is left. A caller notes when there is more time."""

    within_s: float = CLOSE_S

    def finished(self) -> None:
        """Note that the node has done all its rounds, so there is more time."""
        self.within_s = FINISHED_S


@contextmanager
def exporting(names: Sequence[str], emit: EventLog, node_dir: Path) -> Iterator[Ending]:
    """Pass every event of this block to the exporters. A name that is given twice counts once."""
    about = About(folder=node_dir, run=node_dir.absolute().parent.name, node=node_dir.name)
    pumps = [
        Pump(name, partial(EXPORTERS.get, name, about=about), lambda words: _warn(emit, words))
        for name in dict.fromkeys(names)
    ]
    for pump in pumps:
        emit.add_sink(pump)
    ending = Ending()
    try:
        yield ending
    finally:
        close_all(pumps, within_s=ending.within_s, tell=lambda words: _say(emit, f"waiting for the exporter {words}"))


def _say(emit: EventLog, words: str) -> None:
    emit(WaitingFor(message=words))


def _warn(emit: EventLog, words: str) -> None:
    emit(WarningEvent(message=words))


__all__ = ["EXPORTERS", "About", "Ending", "Exporter", "check", "exporting"]
