"""Who is told of at the door of a private swarm, and private swarms on the virtual clock."""

import random

import pytest
import trio
import trio.testing

from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.transport.base import MAX_CREDENTIALS, TransportError
from gossip.transport.drop_reasons import DROPS
from gossip.transport.handshake_admission import LINES, LINES_OF_HOST, AdmissionDeniedError, HandshakeAdmission
from gossip.transport.memory.network import MemoryNetwork


class Club:
    """An `Admission`: whoever has the word, unless its name is struck out."""

    def __init__(self, word: bytes = b"word") -> None:
        self.word = word
        self.struck: dict[PeerId, Reason] = {}

    def credentials(self) -> bytes:
        return self.word

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        if credentials != self.word:
            raise RemoteError(Reason.NO_MEMBER)
        if peer in self.struck:
            raise RemoteError(self.struck[peer], "struck out")

    def explain(self, peer: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        return b"struck out" if peer in self.struck else b""

    def heard(self, peer: PeerId, said: bytes) -> str:
        return f"it does not take us for a member: {said.decode()}"


class Guest:
    """Handlers that remember."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.up: list[PeerId] = []
        self.streams: list[str] = []

    async def handle_stream(self, protocol, stream):
        self.streams.append(protocol)

    def handle_message(self, forwarder, data):
        return True

    def peer_connected(self, peer):
        self.up.append(peer)

    def peer_lost(self, peer):
        self.up.remove(peer)

    def uninterested(self, data):
        return frozenset()

    def keeps(self, peer):
        return True

    def offended(self, peer, error):
        raise AssertionError(f"{peer} did nothing: {error}")

    def caller_refused(self, caller, why):
        self.told.append((caller, why))


def refused(door: HandshakeAdmission, peer: str, host: str, now: float) -> AdmissionDeniedError:
    with pytest.raises(AdmissionDeniedError) as caught:
        door.admit(PeerId(peer), b"", host, now)
    return caught.value


def door_with() -> tuple[HandshakeAdmission, list[str], list[tuple[str, str]]]:
    kinds: list[str] = []
    told: list[tuple[str, str]] = []
    door = HandshakeAdmission(Club(), kinds.append)
    door.tell = lambda caller, why: told.append((caller, why))
    return door, kinds, told


def test_every_refusal_counts_and_a_peer_is_told_of_once_a_minute():
    door, kinds, told = door_with()
    for second in range(59):
        assert refused(door, "peer", "192.0.2.1", second).kind == "refused_no_member"
    assert kinds == ["refused_no_member"] * 59
    assert told == [("peer at 192.0.2.1", "no_member")]
    refused(door, "peer", "192.0.2.1", 61)
    assert len(told) == 2


def test_a_flood_of_keys_fills_no_log_and_another_host_is_still_told_of():
    door, kinds, told = door_with()
    for number in range(1000):
        refused(door, f"key{number}", "192.0.2.1", number / 1000)
    assert len(kinds) == 1000
    assert len(told) == LINES_OF_HOST
    refused(door, "peer", "192.0.2.2", 1)
    assert told[-1][0] == "peer at 192.0.2.2"
    for number in range(1000):
        refused(door, f"more{number}", f"host{number}", 1)
    assert len(told) == LINES


def test_a_reason_without_a_kind_of_its_own_is_counted_as_other():
    club, kinds = Club(), []
    door = HandshakeAdmission(club, kinds.append)
    for reason in Reason:
        club.struck[PeerId("peer")] = reason
        with pytest.raises(AdmissionDeniedError):
            door.admit(PeerId("peer"), b"word", None, 0)
    assert set(kinds) <= DROPS.keys()
    assert {"refused_expired", "refused_revoked", "refused_used_up", "refused_wrong_role", "refused_other"} <= set(
        kinds
    )


def test_credentials_that_nobody_would_read_are_our_mistake():
    door = HandshakeAdmission(Club(bytes(MAX_CREDENTIALS + 1)), lambda kind: None)
    with pytest.raises(LocalError, match=str(MAX_CREDENTIALS)):
        door.credentials()


# -- private swarms in memory, on the virtual clock

ONE, OTHER = PeerId("one"), PeerId("other")


async def met(listener, dialler, dials="dial"):
    """What a dial from one to the other comes to; the listener, the dialler, and what they were told."""
    network = MemoryNetwork(random.Random(1))
    there, here = network.attach(ONE, listener), network.attach(OTHER, dialler)
    at_listener, at_dialler = Guest(), Guest()
    async with trio.open_nursery() as nursery:
        await nursery.start(there.run, at_listener)
        await nursery.start(here.run, at_dialler)
        try:
            await getattr(here, dials)(there.addresses[0])
            outcome = None
        except TransportError as error:
            outcome = error
        assert there.peers == ({OTHER} if outcome is None and dials == "dial" else set())
        nursery.cancel_scope.cancel()
    return outcome, there, here, at_listener, at_dialler


@pytest.mark.parametrize("dials", ["dial", "probe"])
async def test_members_meet_and_strangers_do_not(autojump_clock, dials):
    assert (await met(Club(), Club(), dials))[0] is None
    outcome, there, here, at_listener, at_dialler = await met(Club(), Club(b"guess"), dials)
    assert "does not take us" in str(outcome)
    assert there.drops["refused_no_member"] == 1
    assert not any(here.drops.values())
    assert at_listener.told == [("other at another's connection", "no_member")]
    assert at_listener.up == at_dialler.up == at_dialler.told == []


async def test_the_dialler_refuses_too(autojump_clock):
    dialler = Club()
    dialler.struck[ONE] = Reason.REVOKED
    outcome, there, here, *_ = await met(Club(), dialler)
    assert isinstance(outcome, AdmissionDeniedError)
    assert here.drops["refused_revoked"] == 1
    assert not any(there.drops.values())


async def test_an_open_node_and_a_private_one_do_not_meet(autojump_clock):
    outcome, there, *_ = await met(Club(), None)
    assert isinstance(outcome, TransportError)
    assert there.drops["refused_protocol"] == 1
    outcome, there, here, *_ = await met(None, Club())
    assert isinstance(outcome, TransportError)
    assert not any((*there.drops.values(), *here.drops.values()))


async def test_who_is_struck_out_is_cut_and_stays_out(autojump_clock):
    network, club = MemoryNetwork(random.Random(1)), Club()
    there, here = network.attach(ONE, club), network.attach(OTHER, Club())
    guest = Guest()
    async with trio.open_nursery() as nursery:
        await nursery.start(there.run, guest)
        await nursery.start(here.run, Guest())
        await here.dial(there.addresses[0])
        assert guest.up == [OTHER]
        club.struck[OTHER] = Reason.REVOKED
        await there.disconnect(OTHER)
        assert guest.up == []
        with pytest.raises(TransportError):
            await here.open_stream(ONE, "/p2ptrain/1/session")
        with pytest.raises(TransportError):
            await here.dial(there.addresses[0])
        assert guest.up == guest.streams == []
        assert guest.told == [("other at another's connection", "revoked: struck out")]
        nursery.cancel_scope.cancel()
