"""A spool folder as an operator gives it (`network.spool`): whether it can be used, and who serves it."""

from pathlib import Path

from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.transport.spool.spool_folder import SpoolFolder
from node.system.errors import UsageError


def check_spool(path: Path, *, make: bool) -> None:
    """Raise UsageError for a spool folder that is not this user's alone; with `make`, make it where it is not there."""
    try:
        SpoolFolder(path).prepare(make=make)
    except LocalError as error:
        raise UsageError(str(error)) from error


def relay_of(path: Path) -> PeerId | None:
    """Return the relay that serves a spool folder; None where none does."""
    found = SpoolFolder(path).relay()
    return None if found is None else found.peer


def spool_hint(path: Path) -> str:
    """Return what to do where no relay serves a folder."""
    return f"on the login node: p2ptrain node --role relay --spool {path} --peer MULTIADDR"
