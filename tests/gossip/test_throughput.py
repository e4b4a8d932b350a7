"""How fast links count as: of transfers that ended, were broken off, or go on."""

import pytest
import trio
from gossip_swarm import all_follow, swarm, until

from gossip.core.api import LinkSpeed
from gossip.core.ids import PeerId
from gossip.transport.memory.network import LinkQuality
from gossip.updates.throughput import WINDOW, Throughput

ANN, BOB = PeerId("ann"), PeerId("bob")


def done(speeds: Throughput, bytes_per_s: float, *, at: float, peer: PeerId = ANN, whole: bool = True) -> None:
    transfer = speeds.begin(peer, "sent", 1000, at)
    speeds.end(transfer, at + 1000 / bytes_per_s, whole=whole)


def test_nothing_is_known_before_a_transfer():
    assert Throughput({ANN}).of(ANN, 5.0) == LinkSpeed(sent=None, received=None)


def test_a_slow_transfer_counts_at_once_and_a_recovery_by_the_median():
    speeds, seen = Throughput({ANN}), []
    for number, speed in enumerate([100, 100, 100, 10, 100, 100, 100]):
        done(speeds, speed, at=1000.0 * number)
        seen.append(speeds.of(ANN, 1e6).sent)
    assert seen == pytest.approx([100, 100, 100, 10, 100, 100, 100])
    for number, speed in enumerate([10, 10, 10, 100, 100, 100]):
        done(speeds, speed, at=1e6 + 1000.0 * number)
        seen.append(speeds.of(ANN, 1e9).sent)
    assert seen[-6:] == pytest.approx([10, 10, 10, 10, 10, 100])
    assert WINDOW == 5


def test_directions_and_peers_are_apart_and_who_left_is_forgotten():
    known = {ANN, BOB}
    speeds = Throughput(known)
    done(speeds, 100, at=0.0)
    done(speeds, 50, at=0.0, peer=BOB)
    speeds.end(speeds.begin(ANN, "received", 600, 0.0), 2.0, whole=True)
    assert speeds.of(ANN, 9.0) == LinkSpeed(sent=pytest.approx(100), received=300.0)
    assert speeds.of(BOB, 9.0) == LinkSpeed(sent=pytest.approx(50), received=None)
    known.discard(BOB)
    done(speeds, 100, at=0.0)
    known.add(BOB)
    assert speeds.of(BOB, 9.0).sent is None


def test_one_under_way_counts_as_soon_as_it_is_slower_and_one_broken_off_only_then():
    speeds = Throughput({ANN})
    done(speeds, 100, at=0.0)
    transfer = speeds.begin(ANN, "sent", 1000, 50.0)
    assert speeds.of(ANN, 51.0).sent == pytest.approx(100), "it may still come to that"
    assert speeds.of(ANN, 150.0).sent == 10.0
    speeds.end(transfer, 150.0, whole=False)
    assert speeds.of(ANN, 150.0).sent == 10.0
    quick = speeds.begin(ANN, "sent", 1000, 200.0)
    speeds.end(quick, 200.1, whole=False)
    assert speeds.of(ANN, 201.0).sent == 10.0, "breaking off early makes no link fast"


def test_the_first_transfer_ever_says_something_while_it_goes_on():
    speeds = Throughput({ANN})
    speeds.begin(ANN, "received", 1000, 0.0)
    assert speeds.of(ANN, 100.0).received == 10.0


def test_no_time_at_all_and_no_bytes_at_all():
    speeds = Throughput({ANN})
    speeds.end(speeds.begin(ANN, "sent", 0, 0.0), 5.0, whole=True)
    assert speeds.of(ANN, 6.0).sent is None
    speeds.end(speeds.begin(ANN, "sent", 7, 6.0), 6.0, whole=True)
    assert speeds.of(ANN, 6.0).sent == pytest.approx(7e6)


async def test_both_ends_measure_the_link_between_them(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        it.network.set_link(one.peer, other.peer, LinkQuality(bytes_per_s=2000.0))
        for round_ in range(1, 4):
            await one.publish(round_, payload=bytes(1000))
            await until(lambda: all_follow([one, other]))
        sent = one.service.link_speeds()[other.peer].sent
        received = other.service.link_speeds()[one.peer].received
        for speed in (sent, received):
            assert 0.7 * 2000 < speed <= 2000, "frames and manifests travel as well"
        assert one.service.link_speeds()[other.peer].received is None


async def test_a_transfer_that_never_ends_makes_a_link_slow(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        await one.publish(1, payload=bytes(1000))
        await until(lambda: all_follow([one, other]))
        assert one.service.link_speeds()[other.peer].sent > 1e6
        it.network.set_link(one.peer, other.peer, LinkQuality(bytes_per_s=20.0))
        await one.publish(2, payload=bytes(1000))
        await trio.sleep(20)  # it gives up after ten seconds, again and again
        assert one.service.link_speeds()[other.peer].sent < 1000
