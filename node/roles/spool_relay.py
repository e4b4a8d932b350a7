"""Which relay serves a spool folder: a node that has nothing else waits for it before it begins."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from gossip.core.ids import PeerId
from gossip.transport.spool.spool_ends import spool_address
from gossip.transport.spool.spool_folder import BEAT_S, SpoolFolder
from node.config.sections import NetworkConfig
from node.events.event_types import WaitingFor
from node.events.journal import Emit
from node.system.errors import RunError
from node.system.spool_check import check_spool, spool_hint

LOOK_S = 0.5
"""Seconds between two looks into the folder."""


async def with_relay(network: NetworkConfig, within_s: float, emit: Emit) -> NetworkConfig:
    """Return the settings with the relay that serves the spool folder, where one is set. Raises UsageError for a folder
    that cannot be used, RunError where no relay comes in time."""
    if network.spool is None:
        return network
    await trio.to_thread.run_sync(partial(check_spool, network.spool, make=False))
    relay = await _found(network.spool, BEAT_S + LOOK_S)
    if relay is None:
        emit(WaitingFor(message=f"waiting for a relay in {network.spool}, {within_s:.0f} s at most"))
        relay = await _found(network.spool, within_s)
    if relay is None:
        raise RunError(f"no relay serves the spool folder {network.spool}", spool_hint(network.spool))
    return replace(network, via=spool_address(relay))


async def _found(folder: Path, within_s: float) -> PeerId | None:
    """Return the relay whose file changes, as a living one's does: a killed one has left it as it was."""
    ends_at = trio.current_time() + within_s
    first = None
    while True:
        relay = await trio.to_thread.run_sync(SpoolFolder(folder).relay)
        if relay is not None and first is not None and relay != first:
            return relay.peer
        first = relay if first is None else first
        if trio.current_time() >= ends_at:
            return None
        await trio.sleep(LOOK_S)
