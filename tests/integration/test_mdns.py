"""Members that are told no address find each other on a real network: loopback, by multicast."""

import secrets
import socket
from collections.abc import Callable

import pytest
import trio

from gossip.core.digests import swarm_id_of
from gossip.core.envelope import Scope
from gossip.core.identity import Identity
from gossip.core.ids import RunId
from gossip.discovery.mdns_task import LOOK_S, Mdns

GROUP, LOOPBACK = "224.0.0.251", "127.0.0.1"
PATIENCE_S = 20.0


def _multicast_complaint() -> str:
    """Why a packet to the group does not come back over loopback; empty when it does."""
    try:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mouth,
        ):
            ear.bind(("", 0))
            ear.settimeout(1.0)
            here = socket.inet_aton(LOOPBACK)
            ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + here)
            mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
            mouth.sendto(b"hello", (GROUP, ear.getsockname()[1]))
            ear.recv(16)
    except OSError as error:
        return str(error)
    return ""


COMPLAINT = _multicast_complaint()
pytestmark = pytest.mark.skipif(bool(COMPLAINT), reason=f"multicast does not work on loopback here: {COMPLAINT}")


class Member:
    """What one member says on the LAN, and hears there."""

    def __init__(self, scope: Scope, port: int) -> None:
        self.peer = Identity.generate().peer_id
        self.addresses = [f"/ip4/{LOOPBACK}/tcp/{port}/p2p/{self.peer}"]
        self.hints: list[str] = []
        self.warnings: list[str] = []
        self.mdns = Mdns(
            scope=scope,
            me=self.peer,
            addresses=lambda: self.addresses,
            hint=self.hints.append,
            warn=self.warnings.append,
            interfaces=(LOOPBACK,),
        )


def fresh_scope() -> Scope:
    """Of a run that no other test on this machine has."""
    return Scope(swarm=swarm_id_of("p2ptrain"), run=RunId(secrets.token_bytes(16)))


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # another thread's doing
            await trio.sleep(0.05)


async def test_members_of_a_run_hear_of_each_other_and_of_nobody_else() -> None:
    scope = fresh_scope()
    one, other, stranger = Member(scope, 4001), Member(scope, 4002), Member(fresh_scope(), 4003)
    async with trio.open_nursery() as nursery:
        for member in (one, other, stranger):
            nursery.start_soon(member.mdns.run)
        await until(lambda: bool(one.hints and other.hints))
        assert (set(one.hints), set(other.hints)) == (set(other.addresses), set(one.addresses))
        late = Member(scope, 4004)
        nursery.start_soon(late.mdns.run)
        await until(lambda: {*one.addresses, *other.addresses} <= set(late.hints))
        await trio.sleep(LOOK_S)
        assert stranger.hints == []
        nursery.cancel_scope.cancel()
    assert [member.warnings for member in (one, other, stranger, late)] == [[]] * 4
