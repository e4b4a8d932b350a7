"""What waits unread is bounded over all connections, and never at a neighbour's cost."""

from dataclasses import dataclass
from typing import Any

import pytest
import trio
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.stream_muxer.exceptions import MuxedConnError, MuxedStreamError
from libp2p_harness import HOLD, Attacker, Choosy, Node, assert_serves, attacking, running, until

from gossip.transport.libp2p import unread_bytes
from gossip.transport.libp2p.fault_guard import Faults
from gossip.transport.libp2p.unread_bytes import too_much, unread, watch_unread

STRANGERS = 5
STREAMS = 4
WINDOW = 256 << 10
MOST = 2 << 20
"""Five strangers pin 5 MiB, each within its own bounds."""


@dataclass(eq=False)
class Waiting:
    """A connection of which so many bytes wait."""

    stream_buffers: dict[int, bytes]


def held_by(*sizes: int) -> list[Waiting]:
    return [Waiting({1: bytes(size // 2), 3: bytes(size - size // 2)}) for size in sizes]


def test_those_with_most_go_and_no_more_of_them_than_needed() -> None:
    connections = held_by(10, 500, 30, 400, 0)
    assert [unread(it) for it in too_much(connections, 100)] == [500, 400]
    assert [unread(it) for it in too_much(connections, 450)] == [500]
    assert too_much(connections, 940) == []
    assert too_much([], 0) == []


class Stubborn(Waiting):
    """A connection whose end raises."""

    @property
    def secured_conn(self) -> "Stubborn":
        return self

    async def close(self) -> None:
        raise IOException("it cannot be closed")


async def test_one_that_cannot_be_closed_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_bytes, "MAX_UNREAD_BYTES", 1)
    monkeypatch.setattr(unread_bytes, "LOOK_UNREAD_S", 0.001)
    faults = Faults()
    with trio.move_on_after(0.1):
        await watch_unread(lambda: [Stubborn({1: bytes(10)})], faults)
    assert faults.counts["unread"] > 1


async def pin(attacker: Attacker, size: int) -> None:
    """Send what a window allows over streams that nobody reads, until the connection is closed for it."""
    for _ in range(STREAMS):
        try:
            stream = await attacker.stream(HOLD)
            with trio.move_on_after(0.3):
                await stream.write(bytes(size))
        except (MuxedStreamError, MuxedConnError, RawConnError, IOException):
            return


async def test_strangers_pin_no_more_together_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_bytes, "MAX_UNREAD_BYTES", MOST)
    victim, neighbour = Choosy(), Node()
    async with running(victim, neighbour):
        victim.kept = frozenset({neighbour.peer_id})
        await neighbour.transport.dial(victim.address)
        for _ in range(STREAMS):
            stream = await neighbour.transport.open_stream(victim.peer_id, HOLD)
            with trio.move_on_after(0.3):
                await stream.send_all(bytes(WINDOW))
        async with trio.open_nursery() as nursery:

            async def attack() -> None:
                async with attacking(victim.address) as attacker:
                    await pin(attacker, WINDOW - 100)
                    await trio.sleep_forever()

            for _ in range(STRANGERS):
                nursery.start_soon(attack)
            await until(lambda: victim.transport.faults.get("unread"))
            swarm: Any = victim.transport._swarm
            await until(lambda: sum(map(unread, swarm.loose())) <= MOST)
            assert neighbour.peer_id in victim.transport.peers, "it has pinned as much as each of them"
            nursery.cancel_scope.cancel()
        await assert_serves(victim, topic_too=False)
