"""Which relay a node of a spool folder takes for one that serves it."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import trio

from gossip.core.identity import Identity
from gossip.transport.spool.spool_folder import BEAT_S, SpoolFolder, SpoolRelay
from node.config.sections import NetworkConfig
from node.events.event_types import Event, WaitingFor
from node.roles.spool_relay import LOOK_S, with_relay

PEER = Identity(bytes(31) + b"\x07").peer_id


async def test_a_file_that_does_not_change_is_no_relay(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path / "spool")
    folder.prepare(make=True)
    relay = SpoolRelay(peer=PEER, host=socket.gethostname(), pid=os.getpid(), nonce="0" * 16, beat=1)
    folder.announce(relay)
    told: list[Event] = []

    async def come_alive() -> None:
        await trio.sleep(BEAT_S + 2 * LOOK_S)  # longer than it looks before it says that it waits
        folder.announce(replace(relay, beat=2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_alive)
        began = trio.current_time()
        found = await with_relay(NetworkConfig(spool=folder.path), 60.0, told.append)
        assert trio.current_time() >= began + BEAT_S
    assert found.via is not None
    assert PEER in found.via
    assert any(isinstance(event, WaitingFor) for event in told)
