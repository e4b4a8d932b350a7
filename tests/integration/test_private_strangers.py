"""Strangers at the port of a private swarm: none hears a byte of worth, each is counted, and members come and go."""

import os
from contextlib import suppress
from typing import Any

import pytest
import trio
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p_harness import PATIENCE_S, Node, noise, running, stock, until, upgrader_with
from multiaddr import Multiaddr
from private_harness import (
    GREETING,
    NO,
    Roster,
    besieged,
    card_of,
    counted,
    framed,
    member,
    proved,
    wired,
)

from gossip.core.errors import Reason
from gossip.transport.base import MAX_CREDENTIALS, MAX_EXPLANATION, TransportError
from gossip.transport.connection_limits import ConnectionBounds
from gossip.transport.handshake_admission import LINES_OF_HOST
from gossip.transport.libp2p.member_security import MEMBER_ID
from gossip.transport.libp2p.yamux import SteadyYamux

REASONS = {
    Reason.NO_MEMBER: "refused_no_member",
    Reason.EXPIRED: "refused_expired",
    Reason.REVOKED: "refused_revoked",
    Reason.USED_UP: "refused_used_up",
    Reason.WRONG_ROLE: "refused_wrong_role",
    Reason.WRONG_SWARM: "refused_wrong_swarm",
    Reason.FORGED: "refused_forged",
    Reason.MALFORMED: "refused_malformed",
    Reason.OVERSIZE: "refused_oversize",
    Reason.BANNED: "refused_other",
}


@pytest.mark.parametrize("reason", REASONS)
async def test_who_is_refused_hears_nothing_after_noise(reason: Reason) -> None:
    roster = Roster()
    victim, key = member(roster), noise()
    roster.struck = {str(key.local_peer): reason}
    async with besieged(victim, roster), wired(victim.address) as wire:
        session = await proved(wire, victim.address, key)
        await session.write(framed(card_of(key.local_peer)))
        assert await wire.rest() == b""
    await counted(victim, REASONS[reason])
    assert victim.refused == [(f"{key.local_peer} at 127.0.0.1", str(reason))]


@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        (framed(b""), "refused_no_member"),
        (framed(card_of("somebody else")), "refused_forged"),
        (framed(os.urandom(MAX_CREDENTIALS)), "refused_forged"),
        ((MAX_CREDENTIALS + 1).to_bytes(2, "big"), "refused_oversize"),
    ],
    ids=["nothing", "of another", "garbage", "too long"],
)
async def test_what_is_no_membership_of_that_key_opens_nothing(shown: bytes, kind: str) -> None:
    roster = Roster()
    victim = member(roster)
    async with besieged(victim, roster), wired(victim.address) as wire:
        session = await proved(wire, victim.address)
        # It does not wait for an answer, and goes on as a member would.
        await session.write(shown + GREETING + b"\x0d/yamux/1.0.0\n")
        assert await wire.rest() == b""
    await counted(victim, kind)


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(b"", id="nothing", marks=pytest.mark.thorough),
        pytest.param(b"\x00", id="half a length", marks=pytest.mark.thorough),
        pytest.param(framed(card_of("x"))[:7], id="half"),
    ],
)
async def test_one_that_stops_half_way_is_not_waited_for(says: bytes) -> None:
    roster = Roster()
    victim = member(roster, bounds=ConnectionBounds(handshake_s=2.0))
    async with besieged(victim, roster), wired(victim.address) as wire:
        session = await proved(wire, victim.address)
        if says:
            await session.write(says)
        assert await wire.rest() == b""
    await counted(victim, "handshake_timeout")
    assert not [peer for peer, _ in roster.asked if peer == str(session.local_peer)]


@pytest.mark.parametrize(
    "name", [b"/noise", b"/plaintext/2.0.0", b"/tls/1.0.0", b"/secio/1.0.0", b"/p2ptrain/1/session", b"/yamux/1.0.0"]
)
async def test_another_security_is_answered_with_no_and_the_end(name: bytes) -> None:
    roster = Roster()
    victim = member(roster)
    async with besieged(victim, roster), wired(victim.address) as wire:
        await wire.write(GREETING + bytes([len(name) + 1]) + name + b"\n")
        assert await wire.rest() == GREETING + NO
    await counted(victim, "refused_protocol")
    assert victim.refused == [("somebody at 127.0.0.1", "it offers another security than members do")]


@pytest.mark.parametrize(
    "hello",
    [
        b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03" + bytes(range(200)),
        b"GET /metrics HTTP/1.1\r\nHost: 192.0.2.1\r\nUser-Agent: a browser of some length\r\n\r\n",
        b"\x05\xff\xfe\xfd\xfc\n",
        b"\x03hi\n",
    ],
    ids=["TLS", "HTTP", "no text", "no multistream"],
)
async def test_bytes_that_are_no_libp2p_are_told_of_and_get_nothing(hello: bytes) -> None:
    roster = Roster()
    victim = member(roster)
    async with besieged(victim, roster), wired(victim.address) as wire:
        await wire.write(hello)
        assert await wire.rest() == GREETING  # which everybody says who listens
    await counted(victim, "refused_protocol")
    assert victim.refused == [("somebody at 127.0.0.1", "it speaks no multistream-select")]


async def test_a_stock_host_connects_neither_way() -> None:
    roster = Roster()
    victim = member(roster)
    async with besieged(victim, roster), stock() as (host, address):
        with pytest.raises(Exception):  # noqa: B017  # whichever of its dozens it is
            await host.connect(info_from_p2p_addr(Multiaddr(victim.address)))
        with pytest.raises(TransportError, match="does not speak this protocol"):
            await victim.transport.dial(address)
        assert not host.get_connected_peers()
    assert not [peer for peer, _ in roster.asked if peer == str(host.get_id())]
    await counted(victim, "refused_protocol", victim.transport.drops["refused_protocol"] or 1)  # it tries again


async def test_an_open_swarm_and_a_private_one_do_not_meet() -> None:
    roster = Roster()
    victim, public = member(roster), Node()
    async with running(public), besieged(victim, roster):
        for one, other in ((public, victim), (victim, public)):
            for reach in (one.transport.dial, one.transport.probe):
                with pytest.raises(TransportError, match=r"does not speak this protocol|the handshake failed"):
                    await reach(other.address)
        assert not public.transport.peers
    await counted(victim, "refused_protocol", 2)
    assert not any(peer == public.peer_id for peer, _ in roster.asked)


async def test_who_dials_refuses_too_and_tells_why() -> None:
    roster, elsewhere = Roster(), Roster()
    here, there = member(roster), member(elsewhere)
    roster.struck = {there.peer_id: Reason.EXPIRED}
    async with running(here, there):
        for reach in (here.transport.dial, here.transport.probe):
            with pytest.raises(TransportError, match="it was refused: expired"):
                await reach(there.address)
        with pytest.raises(TransportError, match="does not take us for a member"):
            await there.transport.dial(here.address)
        with pytest.raises(TransportError, match="does not take us for a member"):
            await there.transport.probe(here.address)
        await counted(here, "refused_expired", 4)
        assert not here.transport.peers
        assert not there.log


@pytest.mark.parametrize("size", [1, MAX_CREDENTIALS + 1, MAX_EXPLANATION])
async def test_who_is_refused_hears_as_much_as_its_frame_holds(size: int) -> None:
    roster, elsewhere = Roster(), Roster()
    here, there = member(roster), member(elsewhere)
    roster.struck, roster.says = {there.peer_id: Reason.EXPIRED}, b"x" * size
    async with running(here, there):
        for reach in (there.transport.dial, there.transport.probe):
            with pytest.raises(TransportError, match=f"a member: x{{{size}}}$"):
                await reach(here.address)
        assert not here.transport.peers


@pytest.mark.parametrize("size", [1, MAX_EXPLANATION])
async def test_who_listens_hears_why_who_dialled_refuses_it(size: int) -> None:
    roster, elsewhere = Roster(), Roster()
    here, there = member(roster), member(elsewhere)
    roster.struck, roster.says = {there.peer_id: Reason.EXPIRED}, b"x" * size
    async with running(here, there):
        for times, reach in enumerate((here.transport.dial, here.transport.probe), 1):
            with pytest.raises(TransportError, match="it was refused: expired"):
                await reach(there.address)
            assert elsewhere.heard == [(here.peer_id, roster.says)] * times
        assert not here.transport.peers
        assert not there.transport.peers


async def test_credentials_are_shown_to_the_key_that_was_dialled_alone() -> None:
    roster = Roster()
    here, other = member(roster), member(roster)
    missing = member(roster)
    async with running(here, other):
        address = other.address.replace(other.peer_id, missing.peer_id)
        with pytest.raises(TransportError):
            await here.transport.dial(address)
        assert not roster.asked


async def test_a_flood_of_strangers_fills_no_log_and_keeps_no_member_out() -> None:
    roster = Roster()
    victim = member(roster, bounds=ConnectionBounds(handshakes=32))
    count = 60

    async def storm() -> None:
        async with wired(victim.address) as wire:
            session = await proved(wire, victim.address)
            await session.write(framed(b""))
            assert await wire.rest() == b""

    async with besieged(victim, roster), trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(storm)
    await until(lambda: victim.transport.drops["refused_no_member"] == count)
    assert len(victim.refused) == LINES_OF_HOST


async def test_members_show_what_noise_has_proved_and_the_caller_is_asked_first() -> None:
    roster = Roster()
    one, other = member(roster), member(roster)
    async with running(one, other):
        await one.transport.dial(other.address)
        assert await one.echo(other.peer_id) == b"hello"
        await until(lambda: one.peer_id in other.transport.peers)
        assert roster.asked[0] == (one.peer_id, card_of(one.peer_id))
        assert roster.asked[1] == (other.peer_id, card_of(other.peer_id))
        assert not any((*one.transport.drops.values(), *other.transport.drops.values()))


async def test_a_circuit_is_no_way_round_the_door() -> None:
    """Whoever reaches a relay reaches through it as far as over a socket, and no further."""
    roster = Roster()
    relay, far, stranger = member(Roster()), member(roster), member(Roster())
    roster.struck = {stranger.peer_id: Reason.REVOKED}
    errors: list[TransportError] = []

    async def carry(protocol: str, stream: Any) -> None:
        onward = await relay.transport.open_stream(far.peer_id, protocol)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe, stream, onward)
            nursery.start_soon(pipe, onward, stream)

    async def pipe(source: Any, sink: Any) -> None:
        try:
            while data := await source.receive_some(65536):
                await sink.send_all(data)
        except TransportError:
            await sink.reset()

    async def take(protocol: str, stream: Any) -> None:
        try:
            await far.transport._circuits._upgraded(stream, stranger.peer_id, dials=False)
        except TransportError as error:
            errors.append(error)

    relay.handle_stream, far.handle_stream = carry, take  # type: ignore[method-assign]
    async with running(relay, far, stranger):
        await relay.transport.dial(far.address)
        await stranger.transport.dial(relay.address)
        stream = await stranger.transport.open_stream(relay.peer_id, "/p2ptrain/1/pipe")
        with pytest.raises(TransportError, match="does not take us"):
            await stranger.transport._circuits._upgraded(stream, far.peer_id, dials=True)
        await counted(far, "refused_revoked")
        assert [str(error) for error in errors] == ["it was refused: revoked"]
        assert far.refused == [(f"{stranger.peer_id} at another's connection", "revoked")]
        assert far.transport.peers == {relay.peer_id}


async def test_one_admitted_that_dawdles_until_it_is_revoked_never_becomes_a_peer() -> None:
    """`disconnect` finds connections; one whose handshake is not over is none yet, and would come up after it."""
    roster = Roster()
    victim, key = member(roster), noise()
    late = str(key.local_peer)
    async with besieged(victim, roster), wired(victim.address) as wire:
        session = await proved(wire, victim.address, key)
        await session.write(framed(card_of(late)))
        assert await session.read(2 + len(card_of(victim.peer_id))) == framed(card_of(victim.peer_id))
        roster.struck[late] = Reason.REVOKED
        await victim.transport.disconnect(late)
        with trio.fail_after(PATIENCE_S):
            await upgrader_with({MEMBER_ID: key}).upgrade_connection(session, session.get_remote_peer())
            await wire.rest()
    await until(lambda: victim.transport.drops["refused_revoked"] == 1)


async def test_one_revoked_while_its_connection_comes_up_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    roster = Roster()
    victim, guest = member(roster), member(roster)
    started = SteadyYamux.start

    async def revoked_meanwhile(muxed: SteadyYamux) -> None:
        roster.struck[guest.peer_id] = Reason.REVOKED
        await started(muxed)

    async with running(victim, guest):
        monkeypatch.setattr(SteadyYamux, "start", revoked_meanwhile)
        with (
            trio.fail_after(PATIENCE_S),
            suppress(TransportError),
        ):  # it may be cut before or after its dial has returned
            await guest.transport.dial(victim.address)
        await until(lambda: victim.transport.drops["refused_revoked"] == 1)
        await until(lambda: not (victim.transport.peers or guest.transport.peers))
