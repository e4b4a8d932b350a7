"""Nodes of one run folder that protect the same examples: what they spend adds up, and no ledger knows."""

from pathlib import Path
from typing import Final

from node.config.schema import Config, load
from node.events.event_types import LearnerStarted, WarningEvent
from node.events.journal import Emit
from node.events.log import read_events
from node.roles.assembly import own_data
from node.system.errors import UsageError
from node.system.run_dir import CONFIG, EVENTS
from p2ptrain.tasks import Shard

NAMED: Final = 3
"""Most other nodes that a warning names."""


def warn_of_shared_examples(config: Config, peer_id: str, node_dir: Path, emit: Emit) -> None:
    """Warn of other nodes in the same run folder that protect the same shard: what each spends adds up, and no ledger
    knows. Nodes elsewhere are not known."""
    own, _ = own_data(config, peer_id)
    try:
        beside = sorted(each for each in node_dir.parent.iterdir() if each.resolve() != node_dir.resolve())
    except OSError:  # another user's: nothing of it is known
        return
    sharing = [folder.name for folder in beside if _protected_shard(folder, config) == own]
    if sharing:
        with_whom = ", ".join(sharing[:NAMED]) + (f" and {len(sharing) - NAMED} more" if len(sharing) > NAMED else "")
        message = (
            f"it protects the same examples as {with_whom} (shard {own.index} of {own.count}): what all of them spend "
            "adds up, and each counts its own alone; give each node.shard_index of its own"
        )
        emit(WarningEvent(message=message, about="privacy"))


def _protected_shard(folder: Path, config: Config) -> Shard | None:
    """Return the shard that the node in this folder protects; None where it is none, has other data, or is not
    known."""
    try:
        other = load([folder / CONFIG]) if (folder / CONFIG).is_file() else None
        if other is None or not other.privacy.on or other.node.role != "trainer" or other.task != config.task:
            return None
        started = (event for event in read_events(folder / EVENTS) if isinstance(event, LearnerStarted))
        first = next(started, None)
    except (UsageError, OSError):
        return None
    if first is None and other.node.shard_index is None and other.node.shard_count > 1:
        return None
    return own_data(other, "" if first is None else first.peer_id)[0]
