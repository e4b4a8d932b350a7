"""Which relay serves a spool folder: a node that has nothing else waits for it before it begins."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from gossip.core.ids import PeerId
from gossip.transport.spool.spool_ends import spool_address
from node.config.sections import NetworkConfig
from node.events.event_types import WaitingFor
from node.events.log import EventLog
from node.system.errors import RunError
from node.system.spool_check import check_spool, relay_of, spool_hint

LOOK_S = 0.5
"""Seconds between two looks into the folder."""


async def with_relay(network: NetworkConfig, within_s: float, emit: EventLog) -> NetworkConfig:
    """Return the settings with the relay that serves the spool folder, where one is set. Raises UsageError for a folder
    that cannot be used, RunError where no relay comes in time."""
    if network.spool is None:
        return network
    await trio.to_thread.run_sync(partial(check_spool, network.spool, make=False))
    relay = await _found(network.spool, 0.0)
    if relay is None:
        emit(WaitingFor(message=f"waiting for a relay in {network.spool}, {within_s:.0f} s at most"))
        relay = await _found(network.spool, within_s)
    if relay is None:
        raise RunError(f"no relay serves the spool folder {network.spool}", spool_hint(network.spool))
    return replace(network, via=spool_address(relay))


async def _found(folder: Path, within_s: float) -> PeerId | None:
    ends_at = trio.current_time() + within_s
    while True:
        relay = await trio.to_thread.run_sync(relay_of, folder)
        if relay is not None or trio.current_time() >= ends_at:
            return relay
        await trio.sleep(LOOK_S)
