"""The places for circuits at a node: a relay that lies, with as many keys as it likes, leaves some to others."""

from types import SimpleNamespace
from typing import Any

import trio
from gossip_swarm import identity

from gossip.core.ids import PeerId
from gossip.reachability.circuit import (
    CircuitKind,
    CircuitMessage,
    CircuitStatus,
    Reservation,
    delimited,
    encode_stop,
    parse_stop,
)
from gossip.reachability.circuit_ends_task import MAX_RELAYS, CircuitEnds
from gossip.reachability.relay import MAX_CIRCUITS, MAX_CIRCUITS_OF_PEER

LIAR, HONEST, SECOND = (identity(number).peer_id for number in (1, 2, 3))


class Asking:
    """A stream on which a relay asks for a circuit with somebody."""

    def __init__(self, relay: PeerId, number: int) -> None:
        self.remote = relay
        asker = identity(100 + number).peer_id
        self._left = delimited(encode_stop(CircuitMessage(kind=CircuitKind.CONNECT, peer=asker)))
        self.status: int | None = None

    async def receive_some(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        data, self._left = self._left[:most], self._left[most:]
        return data

    async def send_all(self, data: bytes) -> None:
        self.status = parse_stop(data[1:]).status

    async def reset(self) -> None:
        return


class Port:
    """Connections that last until they are closed."""

    def __init__(self) -> None:
        self.open: list[trio.Event] = []

    async def upgraded(self, stream: Any, peer: PeerId, *, dials: bool) -> trio.Event:
        return trio.Event()

    async def add(self, connection: trio.Event) -> None:
        self.open.append(connection)

    async def discard(self, connection: trio.Event) -> None:
        return

    def closed(self, connection: trio.Event) -> trio.Event:
        return connection


def ends_at(port: Port, **bounds: Any) -> CircuitEnds[trio.Event]:
    async def never(peer: PeerId, protocol: str) -> Any:
        raise NotImplementedError

    ends = CircuitEnds(port, lambda kind, error: None, never, **bounds)
    ends._relays = dict.fromkeys((LIAR, HONEST, SECOND), float("inf"))

    async def asked(relay: PeerId, ask: CircuitMessage) -> Any:
        return SimpleNamespace(reset=never), None

    ends._asked = asked  # type: ignore[method-assign]
    return ends


async def brought(nursery: trio.Nursery, ends: CircuitEnds[trio.Event], relay: PeerId, times: int) -> list[int | None]:
    """The answers to a relay that brings so many."""
    streams = [Asking(relay, number) for number in range(times)]
    for stream in streams:
        nursery.start_soon(ends.accept, stream)
    await trio.testing.wait_all_tasks_blocked()
    return [stream.status for stream in streams]


def ok(answers: list[int | None]) -> int:
    return answers.count(CircuitStatus.OK)


async def test_a_relay_with_many_keys_leaves_places_to_others_and_to_our_own_dials() -> None:
    """It brought sixteen, and nobody else was reached or dialled by circuit for as long as it liked."""
    port = Port()
    async with trio.open_nursery() as nursery:
        ends = ends_at(port)
        assert ok(await brought(nursery, ends, LIAR, 3 * MAX_CIRCUITS)) == MAX_CIRCUITS_OF_PEER
        assert ok(await brought(nursery, ends, HONEST, 4)) == 4
        await ends.dial(HONEST, identity(50).peer_id)
        assert len(port.open) == MAX_CIRCUITS_OF_PEER + 5
        left = MAX_CIRCUITS - len(port.open)
        assert ok(await brought(nursery, ends, SECOND, MAX_CIRCUITS)) == left
        nursery.cancel_scope.cancel()


async def test_handshakes_that_do_not_end_count_among_those_that_a_relay_brings() -> None:
    """Or silent ones would take all places, for as long as a handshake may take."""

    class Slow(Port):
        async def upgraded(self, stream: Any, peer: PeerId, *, dials: bool) -> trio.Event:
            await trio.sleep_forever()
            raise AssertionError

    async with trio.open_nursery() as nursery:
        ends = ends_at(Slow())
        assert ok(await brought(nursery, ends, LIAR, 3 * MAX_CIRCUITS)) == MAX_CIRCUITS_OF_PEER
        assert ok(await brought(nursery, ends, HONEST, 4)) == 4
        nursery.cancel_scope.cancel()


async def test_what_has_ended_makes_room_for_the_same_relay() -> None:
    port = Port()
    async with trio.open_nursery() as nursery:
        ends = ends_at(port)
        await brought(nursery, ends, LIAR, MAX_CIRCUITS_OF_PEER)
        assert ok(await brought(nursery, ends, LIAR, 1)) == 0
        port.open[0].set()
        assert ok(await brought(nursery, ends, LIAR, 1)) == 1
        nursery.cancel_scope.cancel()


async def test_the_one_relay_of_a_node_that_has_no_other_brings_all() -> None:
    async with trio.open_nursery() as nursery:
        ends = ends_at(Port(), most=20, of_relay=20)
        assert ok(await brought(nursery, ends, HONEST, 30)) == 20
        nursery.cancel_scope.cancel()


async def test_relays_that_come_and_go_are_remembered_up_to_a_bound(autojump_clock):
    async def none(*_: object) -> Any:
        return SimpleNamespace(close=none)

    ends = CircuitEnds[trio.Event](SimpleNamespace(), lambda kind, error: None, none, unix_time=lambda: 0.0)

    async def asked(relay: PeerId, ask: CircuitMessage) -> Any:
        return SimpleNamespace(close=none), CircuitMessage(kind=ask.kind, reservation=Reservation(expire=3600))

    ends._asked = asked  # type: ignore[method-assign]
    relays = [identity(number).peer_id for number in range(1, MAX_RELAYS + 4)]
    for relay in relays:
        assert await ends.granted_by(relay, identity(99).peer_id) is not None
    assert list(ends._relays) == relays[3:]
