"""The visitors' ledger of a host that adds noise to what they leave: opened with the node, and never behind a
checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.config.schema import Config
from node.events.event_types import WarningEvent
from node.events.journal import Emit
from node.privacy.chained_log import NOTHING, LedgerMark, check_not_left
from node.system.run_dir import VISITORS_PRIVACY
from node.system.text import plural
from node.training.node import Node
from node.visits.visitor_ledger import VisitorLedger, read_visitor_ledger


@contextmanager
def visitor_ledger(config: Config, node_dir: Path, emit: Emit) -> Iterator[VisitorLedger | None]:
    """Hold the visitors' ledger of a node; None for one that has no visitors, or adds no noise. Raises UsageError
    where it added some before; RunError where the ledger is damaged, or another process has it."""
    path, visits = node_dir / VISITORS_PRIVACY, config.visits
    if not visits.on or visits.noise is None:
        if visits.on:
            check_not_left(path, read_visitor_ledger(path), "visitors'", "visits.noise")
        yield None
        return
    ledger = VisitorLedger(path, noise=visits.noise, delta=visits.delta, epsilon=visits.epsilon)
    try:
        if ledger.contents.torn:
            lines = plural(ledger.contents.torn, "line")
            message = f"{lines} at the end of {path} cannot be read, and will be charged to every visitor"
            emit(WarningEvent(message=message, about="privacy"))
        yield ledger
    finally:
        ledger.close()


def check_visitor_ledger(node: Node, mark: LedgerMark | None) -> None:
    """Raise RunError where the visitors' ledger does not have what the node's checkpoint has seen."""
    if node.visitors is not None and node.visitors.noise is not None:
        node.visitors.noise.ledger.check(NOTHING if mark is None else mark)
