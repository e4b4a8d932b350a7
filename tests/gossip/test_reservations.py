"""Reservations: how long they last at either end, what ends them, and how they are renewed."""

import pytest
import trio
from gossip_swarm import identity, swarm, until
from relay_swarm import RESERVE, asked, carrying, circuit_to, status_of, three, with_room

from gossip.reachability.circuit import CircuitStatus
from gossip.reachability.relay import (
    LEAST_RESERVATION_S,
    MAX_RESERVATIONS,
    RENEW_AGAIN_S,
    RENEW_SHARE,
    RESERVATION_S,
    circuit_address,
    lasting,
)
from gossip.reachability.vouchers import check_voucher
from gossip.transport.base import Grant

ONE, TWO = (identity(number).peer_id for number in (1, 2))


@pytest.mark.parametrize(("ahead", "taken"), [(1800, 1800.0), (-50, LEAST_RESERVATION_S), (10**9, RESERVATION_S)])
def test_a_reservation_is_believed_within_bounds_whatever_the_clocks(ahead, taken):
    assert lasting(1_000_000 + ahead, 1_000_000.0) == taken


def test_a_reservation_ends_with_its_time_its_connection_or_not_at_all():
    circuits = with_room(ONE)
    assert circuits.take(ONE, ONE, 0.0) is CircuitStatus.NO_RESERVATION, "nobody is connected to itself"
    assert circuits.take(TWO, ONE, RESERVATION_S - 1.0) is CircuitStatus.OK
    assert circuits.take(TWO, ONE, RESERVATION_S) is CircuitStatus.NO_RESERVATION
    assert circuits.reserve(ONE, RESERVATION_S) is CircuitStatus.OK
    assert circuits.take(TWO, ONE, 1.9 * RESERVATION_S) is CircuitStatus.OK
    circuits.drop(ONE)
    assert circuits.take(TWO, ONE, 1.9 * RESERVATION_S) is CircuitStatus.NO_RESERVATION


def test_reservations_are_bounded_and_those_that_ended_make_room():
    circuits = with_room(*(identity(number).peer_id for number in range(MAX_RESERVATIONS)))
    newcomer = identity(MAX_RESERVATIONS).peer_id
    assert circuits.reserve(newcomer, 1.0) is CircuitStatus.RESERVATION_REFUSED
    assert circuits.reserve(ONE, 1.0) is CircuitStatus.OK, "who has one may renew it"
    assert circuits.reserve(newcomer, RESERVATION_S) is CircuitStatus.OK


async def test_a_reservation_says_until_when_and_is_signed(autojump_clock):
    async with swarm() as it:
        relay, one, _ = await three(it)
        answer, _ = await asked(one, relay, RESERVE)
        assert answer.status == CircuitStatus.OK
        assert answer.limit is None, "nothing but idleness ends a circuit"
        check_voucher(answer.reservation.voucher, relay.peer, one.peer, answer.reservation.expire)


async def test_a_neighbour_without_a_reservation_is_not_called(autojump_clock):
    async with swarm() as it:
        relay, one, other = await three(it)
        assert await status_of(one, relay, circuit_to(other.peer)) == CircuitStatus.NO_RESERVATION


async def test_a_reservation_of_one_that_is_a_neighbour_no_more_is_worth_nothing(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await carrying(it, monkeypatch)
        monkeypatch.setattr(relay.service._relay, "_serves", lambda peer: peer == one.peer)
        assert await status_of(one, relay, circuit_to(other.peer)) == CircuitStatus.NO_RESERVATION


async def test_a_reservation_ends_with_its_connection(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await carrying(it, monkeypatch)
        await other.transport.disconnect(relay.peer)
        await until(lambda: other.peer in relay.transport.peers and len(relay.service.neighbours()) == 2)
        assert await status_of(one, relay, circuit_to(other.peer)) == CircuitStatus.NO_RESERVATION


class Grants:
    """What a transport's relays grant, and when they were asked."""

    def __init__(self, lasts_s: float = RESERVATION_S) -> None:
        self.lasts_s = lasts_s
        self.asked: list[float] = []
        self.willing = True

    async def relayed_by(self, peer):
        await trio.lowlevel.checkpoint()
        self.asked.append(trio.current_time())
        return Grant(address=circuit_address(peer, TWO), lasts_s=self.lasts_s) if self.willing else None


async def hidden_beside(it, monkeypatch, grants: Grants):
    """A node that nobody can dial, and a neighbour of it that relays."""
    relay = await it.start(1)
    node = it.make(2, peers=(relay.address,))
    it.network.hide(node.peer)
    monkeypatch.setattr(node.transport, "relayed_by", grants.relayed_by)
    await it.launch(node)
    await until(lambda: node.service._context.relayed != {})
    return relay, node


@pytest.mark.slow
async def test_a_reservation_is_renewed_before_it_ends(autojump_clock, monkeypatch):
    grants = Grants()
    async with swarm() as it:
        relay, node = await hidden_beside(it, monkeypatch, grants)
        assert circuit_address(relay.peer, TWO) in node.service._context.addresses()
        await trio.sleep(1.2 * RENEW_SHARE * RESERVATION_S)
        assert len(grants.asked) == 2
        assert 0 <= grants.asked[1] - grants.asked[0] - RENEW_SHARE * RESERVATION_S <= 10


@pytest.mark.slow
async def test_a_relay_that_does_not_renew_is_asked_again_and_left_at_the_end(autojump_clock, monkeypatch):
    grants = Grants(lasts_s=600.0)
    async with swarm() as it:
        relay, node = await hidden_beside(it, monkeypatch, grants)
        grants.willing = False
        await trio.sleep(grants.asked[0] + 600.0 - 2 * RENEW_AGAIN_S - trio.current_time())
        assert relay.peer in node.service._context.relayed
        await trio.sleep(2 * RENEW_AGAIN_S)
        assert node.service._context.relayed == {}
        between = [after - before for before, after in zip(grants.asked[1:], grants.asked[2:], strict=False)]
        assert between[0] >= RENEW_AGAIN_S


async def test_a_relay_that_was_lost_is_asked_anew_as_soon_as_it_is_back(autojump_clock, monkeypatch):
    grants = Grants()
    async with swarm() as it:
        relay, node = await hidden_beside(it, monkeypatch, grants)
        await node.transport.disconnect(relay.peer)
        assert node.service._context.relayed == {}, "its address leads nowhere"
        began = trio.current_time()
        await until(lambda: len(grants.asked) == 2)
        assert trio.current_time() - began < 30
