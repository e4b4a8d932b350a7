"""What a node counts as sent is what the kernel was given for its connections: nothing that a peer gets is left out."""

import random
import socket
import struct
import sys

import pytest
import trio
from libp2p_harness import until
from members_harness import Member, living

from gossip.core.limits import CHUNK_BYTES

PAYLOAD = random.Random(0).randbytes(2 * CHUNK_BYTES + 17)
PATIENCE_S = 30.0
CLOSE = 0.02
"""The share by which the kernel may differ: it forgets a closed connection (a probe of reachability, a peer that
dialled at the same time), and has not yet had the acknowledgement of the newest bytes."""

TCP_INFO_BYTES = 136
BYTES_ACKED = 120
"""Offset of `tcpi_bytes_acked` in Linux's struct tcp_info."""


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[trio.SocketStream]:
    """All TCP connections of this process from now on, both ends."""
    made: list[trio.SocketStream] = []
    begin = trio.SocketStream.__init__

    def remember(self: trio.SocketStream, of: trio.socket.SocketType) -> None:
        begin(self, of)
        made.append(self)

    monkeypatch.setattr(trio.SocketStream, "__init__", remember)
    return made


def acknowledged(stream: trio.SocketStream) -> int:
    """Return the bytes that the kernel sent over this connection, and the far end's has; 0 once it is closed."""
    if stream.socket.fileno() == -1:
        return 0
    info = stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    (count,) = struct.unpack_from("=Q", info, BYTES_ACKED)
    return int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is read as Linux lays it out")
async def test_bytes_sent_are_the_kernels_with_every_copy_and_all_overhead(sockets: list[trio.SocketStream]) -> None:
    members = [Member(number) for number in (1, 2, 3)]
    async with living(*members):
        for each in members:
            await each.service.begin_epoch(epoch=1, round=0, snapshot=None)
        for each in members[1:]:
            await each.transport.dial(members[0].address)
        await until(lambda: all(len(each.service.neighbours()) == 2 for each in members), PATIENCE_S)
        for each in members:
            await each.service.publish(round=1, codec="none", payload=PAYLOAD, steps=1, tokens=1)
        await until(lambda: all(len([it for it in each.updates if it.round == 1]) == 2 for each in members), PATIENCE_S)

        wires = [each.service.wire for each in members]
        copies = [each.service.stats.payload_bytes_sent for each in members]
        assert sum(copies) == 6 * len(PAYLOAD), "each to both others"
        assert all(wire.sent > count for wire, count in zip(wires, copies, strict=True)), "payload, and overhead"
        assert sum(wire.sent for wire in wires) < 1.05 * sum(copies), "which is little beside so large a payload"
        await until(lambda: sum(it.sent for it in wires) == sum(it.received for it in wires), PATIENCE_S)

        kernel, counted = sum(map(acknowledged, sockets)), sum(wire.sent for wire in wires)
        assert kernel >= sum(copies)
        assert counted == pytest.approx(kernel, rel=CLOSE)
