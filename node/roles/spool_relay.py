"""Which relay serves a spool folder: a node that has nothing else waits for it before it begins."""

from dataclasses import replace
from pathlib import Path

import trio

from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.transport.spool.spool_ends import spool_address
from gossip.transport.spool.spool_folder import SpoolFolder
from node.config.sections import NetworkConfig
from node.events.event_types import WaitingFor
from node.events.log import EventLog
from node.system.errors import RunError, UsageError

LOOK_S = 0.5
"""Seconds between two looks into the folder."""


async def with_relay(network: NetworkConfig, within_s: float, emit: EventLog) -> NetworkConfig:
    """Return the settings with the relay that serves the spool folder, where one is set. Raises UsageError for a folder
    that cannot be used, RunError where no relay comes in time."""
    if network.spool is None:
        return network
    folder = SpoolFolder(network.spool)
    check_spool(network.spool, make=False)
    relay = await _found(folder, 0.0)
    if relay is None:
        emit(WaitingFor(message=f"waiting for a relay in {network.spool}, {within_s:.0f} s at most"))
        relay = await _found(folder, within_s)
    if relay is None:
        raise RunError(f"no relay serves the spool folder {network.spool}", _hint(network.spool))
    return replace(network, via=spool_address(relay))


def check_spool(path: Path, *, make: bool) -> None:
    """Raise UsageError for a spool folder that is not this user's alone; with `make`, make it where it is not there."""
    try:
        SpoolFolder(path).prepare(make=make)
    except LocalError as error:
        raise UsageError(str(error)) from error


async def _found(folder: SpoolFolder, within_s: float) -> PeerId | None:
    ends_at = trio.current_time() + within_s
    while True:
        relay = await trio.to_thread.run_sync(folder.relay)
        if relay is not None or trio.current_time() >= ends_at:
            return None if relay is None else relay.peer
        await trio.sleep(LOOK_S)


def _hint(folder: Path) -> str:
    return f"on the login node: p2ptrain node --role relay --spool {folder} --peer MULTIADDR"
