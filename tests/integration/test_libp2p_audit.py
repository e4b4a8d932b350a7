"""The traps of libp2p 0.8.1 that `test_libp2p_traps.py` does not reproduce: defused, or shown not to apply.

docs/decisions/ has the table of all of them; the last test here holds it to the tests that there are.
"""

import re
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import trio
from libp2p.io.exceptions import IncompleteReadError
from libp2p.io.utils import read_exactly
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.transport.tcp.tcp import TCP
from libp2p_harness import HOLD, PATIENCE_S, Node, receive_exactly, running, stock, until
from multiaddr import Multiaddr
from trio.testing import memory_stream_pair

from gossip.core.errors import LocalError
from gossip.transport.base import TransportError
from gossip.transport.libp2p.libp2p_errors import translated
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig
from gossip.transport.libp2p.multiaddrs import parse_dial
from gossip.transport.libp2p.outbox import DATA_FRAMES, RECORD_BYTES
from gossip.transport.libp2p.pubsub import DEGREE, DEGREE_HIGH, DEGREE_LOW, HEARTBEAT_S
from gossip.transport.libp2p.tcp import BufferedTcpStream
from gossip.transport.libp2p.yamux import SteadyYamux
from gossip.transport.wire_bytes import WireBytes

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "decisions" / "0015-every-trap-of-libp2p-has-a-test.md"


@pytest.mark.parametrize("kind", ["udp/4001/quic-v1", "tcp/4001/ws"])
def test_trap_7_nothing_but_tcp_is_listened_on_or_dialled(kind: str) -> None:
    peer = Node().peer_id
    with pytest.raises(LocalError):
        Libp2pConfig(listen=(f"/ip4/127.0.0.1/{kind}",))
    with pytest.raises(LocalError):
        parse_dial(f"/ip4/127.0.0.1/{kind}/p2p/{peer}")


async def test_traps_8_and_14_the_library_dials_nobody_by_itself() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        swarm, peer = a.transport._swarm, ID.from_string(b.peer_id)
        swarm.peerstore.add_addrs(peer, [Multiaddr(b.address.partition("/p2p/")[0])], 3600)
        await swarm.auto_connector.maybe_connect()
        with pytest.raises(SwarmException):
            await swarm.dial_peer(peer)
        await trio.sleep(0.3)
        assert not a.transport.peers
        assert b.log == []
        assert await a.transport.dial(b.address) == b.peer_id


def test_traps_10_and_14_parts_that_are_not_sound_are_off() -> None:
    swarm = Node().transport._swarm
    assert swarm.psk is None
    assert swarm._resource_manager is None
    assert swarm.metric_send_channel is None
    assert not swarm.connection_config.enable_health_monitoring


class Trickle:
    """A reader of one byte at a time."""

    def __init__(self, size: int) -> None:
        self.left = deque(range(size))

    async def read(self, n: int | None = None) -> bytes:
        return bytes([self.left.popleft() % 256]) if self.left else b""


async def test_trap_11_stock_code_gives_up_on_a_message_in_many_pieces() -> None:
    with pytest.raises(IncompleteReadError):
        await read_exactly(Trickle(200), 200)


async def test_trap_11_ours_reads_it_whole() -> None:
    ours, theirs = memory_stream_pair()
    stream: Any = BufferedTcpStream(ours, WireBytes())  # type: ignore[arg-type]

    async def send() -> None:
        for number in range(300):
            await theirs.send_all(bytes([number % 256]))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert await read_exactly(stream, 300) == bytes(number % 256 for number in range(300))


async def test_trap_13_gossipsub_has_the_specs_heartbeat_and_does_not_throttle_us() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        router = a.transport._pubsub.router
        assert router.heartbeat_interval == HEARTBEAT_S == 1
        assert (router.degree, router.degree_low, router.degree_high) == (DEGREE, DEGREE_LOW, DEGREE_HIGH)
        await a.transport.dial(b.address)
        with trio.fail_after(PATIENCE_S):
            while not b.messages:
                await a.transport.publish(b"warm-up")
                await trio.sleep(0.1)
        wanted = {b"%d" % number for number in range(30)}
        for data in sorted(wanted):  # three times what the library allows in a second; its queue holds 32
            await a.transport.publish(data)
        await until(lambda: wanted <= {data for _, data in b.messages})


async def test_trap_17_a_small_request_does_not_wait_behind_a_bulk_transfer() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        bulk = await a.transport.open_stream(b.peer_id, HOLD)
        b.release.set()
        waits: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bulk.send_all, bytes(48 << 20))
            nursery.start_soon(receive_exactly, bulk, 48 << 20)
            for _ in range(5):
                began = trio.current_time()
                assert await a.echo(b.peer_id) == b"hello"
                waits.append(trio.current_time() - began)
        assert sorted(waits)[2] < 1.0, waits
    assert DATA_FRAMES * RECORD_BYTES <= 1 << 18, "a tenth of a second at 20 Mbit/s, where loopback shows nothing"


@pytest.mark.parametrize(("first", "second"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")])
async def test_trap_15_a_port_is_taken_on_every_address_that_overlaps(first: str, second: str) -> None:
    holder = Node(listen=(f"/ip4/{first}/tcp/0",))
    async with running(holder):
        port = Multiaddr(holder.address).value_for_protocol("tcp")
        other = Node(listen=(f"/ip4/{second}/tcp/{port}",))
        with pytest.raises(LocalError, match=f"port {port} on {second} is in use"):
            await other.transport.run(other)


def test_trap_18_no_relay_is_dialled() -> None:
    relay, peer = Node().peer_id, Node().peer_id
    with pytest.raises(LocalError):
        parse_dial(f"/ip4/127.0.0.1/tcp/4001/p2p/{relay}/p2p-circuit/p2p/{peer}")


async def left_from(port: int, address: str) -> int:
    """The port from which the library's dial for a hole leaves when it is to leave from this one."""
    raw: Any = await TCP().dial_with_source(Multiaddr(address.partition("/p2p/")[0]), ("127.0.0.1", port))
    try:
        return int(raw.stream.stream.socket.getsockname()[1])
    finally:
        await raw.close()


async def test_trap_18_the_library_punches_holes_from_a_shared_port_and_ours_is_not() -> None:
    """From ours it dials all the same, from another port."""
    node, far = Node(), Node()
    async with running(node, far), stock() as (_, address):
        shared, alone = (int(str(Multiaddr(each).value_for_protocol("tcp"))) for each in (address, node.address))
        assert await left_from(shared, far.address) == shared
        assert await left_from(alone, far.address) != alone


async def test_trap_19_both_ends_run_our_yamux_under_the_stock_name() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        await until(lambda: b.transport.peers)
        for node in (a, b):
            (connection,) = node.transport._swarm.get_connections()
            assert type(connection.muxed_conn) is SteadyYamux
            assert str(connection.muxed_conn.negotiated_muxer_protocol) == "/yamux/1.0.0"


def test_trap_20_groups_of_exceptions_become_one_plain_error() -> None:
    group = ExceptionGroup("dial", [ExceptionGroup("inner", [OSError(111, "refused")]), ValueError("x")])
    with pytest.raises(TransportError, match="dialling x: the network refused"), translated("dialling x"):
        raise group


def test_the_table_names_every_trap_and_tests_that_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| .* \| .* \| (.*) \|$", page, re.MULTILINE))
    assert set(map(int, rows)) == set(range(1, 26))
    functions = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    for trap, tests in rows.items():
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, trap
        assert set(named) <= functions, (trap, set(named) - functions)
