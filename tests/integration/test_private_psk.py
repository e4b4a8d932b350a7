"""Private networks behind a pre-shared key: nothing shows on the wire, and who has not the key hears nothing."""

import os

import pytest
import trio
from libp2p_harness import ECHO, Node, delivered, receive_exactly, running, until
from private_harness import (
    GREETING,
    Roster,
    besieged,
    counted,
    framed,
    member,
    proved,
    tapped,
    wired,
)

from gossip.transport.base import TransportError
from gossip.transport.connection_limits import ConnectionBounds
from gossip.transport.libp2p.data_link import MAGIC, TAG_BYTES, DataLink, DataStream, RecordKind, masks_of
from gossip.transport.pnet import NONCE_BYTES, PresharedKey
from gossip.transport.wire_bytes import WireBytes

KEY, OTHER = PresharedKey(b"k" * 32), PresharedKey(b"K" * 32)
PROMPT_S = 8.0
"""Sooner than a dial is given up: 15 s."""


async def bulk(one: Node, other: Node, size: int) -> None:
    stream = await one.transport.open_stream(other.peer_id, ECHO, bulk=True)
    assert isinstance(stream, DataStream)
    data = os.urandom(size)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        assert await receive_exactly(stream, size) == data
    await stream.close()


@pytest.mark.parametrize("turned", [False, True], ids=["dialler", "listener"])
async def test_members_exchange_and_nothing_of_it_shows(turned: bool) -> None:
    roster = Roster()
    one, other = member(roster, KEY), member(roster, KEY)
    async with running(one, other), tapped(other.address) as (address, heard):
        await one.transport.dial(address)
        await until(lambda: one.peer_id in other.transport.peers)
        here, there = (other, one) if turned else (one, other)
        assert await here.echo(there.peer_id, b"in words" * 1000) == b"in words" * 1000
        await bulk(here, there, 3_000_000)
        await delivered(here, there, b"to all")
        assert len(heard) > 6_000_000, "bulk went another way"
        for plain in (b"multistream", b"/yamux", b"/p2ptrain", b"/noise", MAGIC, one.peer_id.encode(), bytes(8)):
            assert plain not in heard
        assert not any((*one.transport.drops.values(), *other.transport.drops.values()))


async def test_a_record_shows_neither_its_kind_nor_its_length() -> None:
    sender, receiver = (trio.SocketStream(end) for end in trio.socket.socketpair())
    secret, key = bytes(32), bytes(32)
    (out, _), (back, _) = (masks_of(KEY, secret, "one", "other") for _ in range(2))
    link = DataLink(sender, b"", send_key=key, receive_key=key, wire=WireBytes(), masks=(out, out))
    for kind, head in ((RecordKind.HELLO, bytes(4)), (RecordKind.END, b"\x03\x00\x00\x00")):
        await link.send(kind)
        sent = await receiver.receive_some(100)
        assert len(sent) == 4 + TAG_BYTES
        assert sent[:4] != head
        assert back.xor(sent[:4]) == head
    link.abandon()
    await receiver.aclose()


@pytest.mark.parametrize("psk", [OTHER, None], ids=["another key", "none"])
async def test_a_node_with_another_key_connects_neither_way(psk: PresharedKey | None) -> None:
    roster = Roster()
    victim, stranger = member(roster, KEY), member(roster, psk)
    async with besieged(victim, roster, KEY), running(stranger):
        for reach in (stranger.transport.dial, stranger.transport.probe):
            with trio.fail_after(PROMPT_S), pytest.raises(TransportError):
                await reach(victim.address)
        words = "no pre-shared key" if psk is None else "may have another pre-shared key"
        with trio.fail_after(PROMPT_S), pytest.raises(TransportError, match=words):
            await victim.transport.dial(stranger.address)
        assert not stranger.log
    assert victim.refused[0] == ("somebody at 127.0.0.1", "it has not our pre-shared key")
    assert not [peer for peer, _ in roster.asked if peer == stranger.peer_id]
    await counted(victim, "refused_psk", 2)


@pytest.mark.parametrize(
    ("says", "waited_for"),
    [
        (os.urandom(NONCE_BYTES + 40), False),
        (GREETING + b"\x07/noise\n", False),
        (GREETING, False),  # which waits to be answered, with four bytes of a nonce missing
        pytest.param(MAGIC + bytes(60), False, marks=pytest.mark.thorough),
        (b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03" + bytes(60), False),
        pytest.param(b"", True, marks=pytest.mark.thorough),
        (os.urandom(NONCE_BYTES), True),
        pytest.param(os.urandom(5), True, marks=pytest.mark.thorough),
    ],
    ids=["noise", "bare", "bare and patient", "bare data", "TLS", "nothing", "a nonce alone", "less"],
)
async def test_a_stranger_hears_at_most_a_nonce(says: bytes, waited_for: bool) -> None:
    """24 random bytes, and those only who has said as many and waits: js and rust callers do."""
    roster = Roster()
    victim = member(roster, KEY, bounds=ConnectionBounds(handshake_s=2.0 if waited_for else 10.0))
    async with besieged(victim, roster, KEY), wired(victim.address) as wire:
        await wire.write(says)
        assert len(await wire.rest()) == (NONCE_BYTES if len(says) == NONCE_BYTES else 0)
    await counted(victim, "handshake_timeout" if waited_for else "refused_psk")


async def test_the_key_alone_makes_no_member() -> None:
    roster = Roster()
    victim = member(roster, KEY)
    async with besieged(victim, roster, KEY):
        async with wired(victim.address, KEY) as wire:
            session = await proved(wire, victim.address)
            await session.write(framed(b""))
            assert await wire.rest() == b""
        async with wired(victim.address, KEY) as wire:
            await wire.write(GREETING + b"\x07/noise\n")
            assert await wire.rest() == GREETING + b"\x03na\n"
        drops = victim.transport.drops
        await until(lambda: drops["refused_no_member"] == drops["refused_protocol"] == 1)


async def test_whoever_has_the_key_may_join_an_open_swarm_behind_it() -> None:
    one, other, stranger = Node(psk=KEY), Node(psk=KEY), Node(psk=OTHER)
    async with running(one, other, stranger):
        await one.transport.dial(other.address)
        assert await one.echo(other.peer_id) == b"hello"
        with pytest.raises(TransportError):
            await stranger.transport.dial(other.address)
        await counted(other, "refused_psk")


async def test_callers_without_the_key_take_no_turn_of_a_member() -> None:
    """Handshakes are paced; a flood of strangers must not use up the pace, which is here three in a minute."""
    roster = Roster()
    victim = member(roster, KEY, bounds=ConnectionBounds(handshakes_per_s=0.75))
    async with besieged(victim, roster, KEY):
        for _ in range(20):
            async with wired(victim.address, OTHER) as wire:
                await wire.write(GREETING)
                assert await wire.rest() == b""
    await counted(victim, "refused_psk", 20)
    assert len(victim.refused) < 20
