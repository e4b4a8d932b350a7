"""Every kind of stranger at the doors of a private swarm that is at work: none gets a byte, but for who was invited
once and hears why it is out; each is told of and counted, and the rounds go on as before."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from js_harness import Peer, missing
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p_harness import noise, stock, until
from live_swarm import ADMIN, NOBODY, LiveSwarm, Resident, invited, living_swarm, payload_of, redeemed, swarm_of
from members_harness import Member
from multiaddr import Multiaddr
from private_harness import GREETING, NO, framed, proved, wired

from gossip.core.errors import LocalError, Reason
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.membership import InviteBundle, SwarmClaim, encode_invite_code, parse_invite_code, revoke_peer
from gossip.membership.refusal import Refusal
from gossip.transport.libp2p.member_security import MEMBER_ID
from gossip.transport.pnet import PresharedKey

pytestmark = pytest.mark.alone  # rounds on the real clock

KEY = b"k" * 32
STRUCK = noise()
"""The key of one who was a member."""
SECRET = Identity(b"\x56" * 32)
Shown = Callable[[LiveSwarm, PeerId], bytes]
"""What a stranger shows, whose key this is."""
TEMPO = 3.0
"""How much longer a round may take in a storm of strangers. They compute in the same process: on a busy machine it is
1.5. A round that waits for a stranger takes twelve times as long (`CONFIG`)."""
PAUSE_S = 0.05
"""Between two knocks at one door: each costs both ends 6 ms of computing."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSwarm]:
    with living_swarm(tmp_path_factory.mktemp("live")) as swarm:
        yield swarm


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSwarm]:
    with living_swarm(tmp_path_factory.mktemp("hidden"), KEY) as swarm:
        yield swarm


def nothing(swarm: LiveSwarm, peer: PeerId) -> bytes:
    return b""


def the_name(swarm: LiveSwarm, peer: PeerId) -> bytes:
    return SwarmClaim(swarm=swarm.chain.swarm).raw


def expired(swarm: LiveSwarm, peer: PeerId) -> bytes:
    return redeemed(invited(swarm.chain, SECRET, ends_in_s=-600), SECRET, peer).raw


def revoked(swarm: LiveSwarm, peer: PeerId) -> bytes:
    return redeemed(invited(swarm.chain, SECRET), SECRET, peer).raw


def wrong_swarm(swarm: LiveSwarm, peer: PeerId) -> bytes:
    return redeemed(invited(swarm_of(ADMIN, "another"), SECRET), SECRET, peer).raw


def used_up(swarm: LiveSwarm, peer: PeerId) -> bytes:
    return redeemed(swarm.used_invite, swarm.used, peer).raw


def granted_by_itself(swarm: LiveSwarm, peer: PeerId) -> bytes:
    return redeemed(invited(swarm.chain, SECRET, NOBODY), SECRET, peer).raw


def with_another_signature(swarm: LiveSwarm, peer: PeerId) -> bytes:
    real, forged = (redeemed(invited(swarm.chain, SECRET, admin), SECRET, peer) for admin in (ADMIN, NOBODY))
    return forged.raw.replace(forged.grant.admin, real.grant.admin)


def cut_short(swarm: LiveSwarm, peer: PeerId) -> bytes:
    return redeemed(invited(swarm.chain, SECRET), SECRET, peer).raw[:-1]


def of_a_member(swarm: LiveSwarm, peer: PeerId) -> bytes:
    return swarm.residents[2].admission.credentials()


CARDS: dict[Shown, tuple[str, str]] = {
    nothing: ("no_member", "shows no certificate"),
    the_name: ("no_member", "shows no certificate"),
    expired: ("expired", "the membership has ended"),
    revoked: ("revoked", "left the lab"),
    wrong_swarm: ("wrong_swarm", "a member of another swarm"),
    used_up: ("used_up", "all 1 uses of the invite are taken"),
    granted_by_itself: ("forged", "granted by nobody who is an admin"),
    with_another_signature: ("forged", "the signature does not verify"),
    cut_short: ("malformed", "not msgpack"),
    of_a_member: ("forged", "the certificate of another peer"),
}


INVITED = (expired, revoked, used_up)
"""Those whom an admin has invited once, and who are told why they are not let in."""


async def counted(member: Resident, kind: str, before: int) -> None:
    await until(lambda: member.transport.drops[kind] > before)


async def knock(swarm: LiveSwarm, member: Resident, shown: Shown, host: str) -> None:
    """Prove a key, show something, and go on as a member would without waiting for an answer."""
    reason, why = CARDS[shown]
    key = STRUCK if shown is revoked else noise()
    kind, peer = f"refused_{reason}", PeerId(str(key.local_peer))
    before = member.transport.drops[kind]
    async with wired(member.address, swarm.psk, host) as wire:
        session = await proved(wire, member.address, key)
        if shown in INVITED:
            await session.write(framed(shown(swarm, peer)))
            size = int.from_bytes(await session.read(2), "big") ^ 0x8000
            out = swarm.residents[0].admission.roster.revoked_peer(peer)
            assert await session.read(size) == Refusal(reason=Reason(reason), revocation=out).pack(), "and nothing more"
        else:
            with suppress(Exception):  # it may hang up while we speak
                await session.write(framed(shown(swarm, peer)) + GREETING + b"\x0d/yamux/1.0.0\n")
        assert await wire.rest() == b""
    await counted(member, kind, before)
    assert member.lines(f"refused {peer} at {host}: {reason}: {why}") or host == "127.0.0.1"


@pytest.fixture(scope="module", autouse=True)
def struck(live: LiveSwarm) -> None:
    async def strike() -> None:
        out = revoke_peer(ADMIN, live.chain.swarm, PeerId(str(STRUCK.local_peer)), issued_at=1, reason="left the lab")
        for each in live.residents:
            each.admission.roster.put(out)

    live.play(strike)


@pytest.mark.parametrize("shown", CARDS, ids=lambda shown: shown.__name__)
def test_a_stranger_at_every_door(live: LiveSwarm, shown: Shown) -> None:
    for member in live.residents:
        live.play(knock, live, member, shown, f"127.0.1.{1 + list(CARDS).index(shown)}")
    live.among_themselves()


def test_a_line_that_was_cut_says_so_before_anybody_is_dialled(live: LiveSwarm) -> None:
    line = encode_invite_code(InviteBundle(invite=live.used_invite, secret=live.used, chain=live.chain))
    for length in range(len(line)):
        with pytest.raises(LocalError, match=r"cut short|not an invite"):
            parse_invite_code(line[:length])


@pytest.mark.parametrize(
    ("says", "hears"),
    [
        (GREETING + b"\x11/plaintext/2.0.0\n", GREETING + NO),
        (GREETING + b"\x07/noise\n", GREETING + NO),
        (GREETING + b"\x0b/tls/1.0.0\n", GREETING + NO),
        (GREETING + b"\x03ls\n", GREETING + NO),
        (b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03" + bytes(200), GREETING),
    ],
    ids=["plaintext", "noise", "libp2p's TLS", "asks what there is", "TLS"],
)
def test_another_security(live: LiveSwarm, says: bytes, hears: bytes) -> None:
    async def dial(member: Resident) -> None:
        before = member.transport.drops["refused_protocol"]
        async with wired(member.address, None, "127.0.2.1") as wire:
            await wire.stream.write(says)
            assert await wire.rest() == hears
        await counted(member, "refused_protocol", before)
        assert member.lines("refused somebody at 127.0.2.1: it ")

    for member in live.residents:
        live.play(dial, member)
    live.among_themselves()


def test_stock_libp2p(live: LiveSwarm) -> None:
    async def connect() -> None:
        async with stock() as (host, _):
            for member in live.residents:
                before = member.transport.drops["refused_protocol"]
                with pytest.raises(Exception):  # noqa: B017  # whichever of its dozens it is
                    await host.connect(info_from_p2p_addr(Multiaddr(member.address)))
                await counted(member, "refused_protocol", before)
            assert not host.get_connected_peers()

    live.play(connect)
    live.among_themselves()


def test_one_with_the_pre_shared_key_and_no_membership(hidden: LiveSwarm) -> None:
    for member in hidden.residents:
        for at, shown in enumerate((nothing, the_name, used_up, granted_by_itself, of_a_member)):
            hidden.play(knock, hidden, member, shown, f"127.0.1.{at + 1}")
    hidden.among_themselves()


@pytest.mark.parametrize("key", [None, PresharedKey(b"K" * 32)], ids=["none", "another"])
def test_one_without_the_pre_shared_key_hears_a_nonce_at_most(hidden: LiveSwarm, key: PresharedKey | None) -> None:
    """What it hears has no meaning to it, whatever membership it holds."""

    async def dial(member: Resident) -> None:
        before = member.transport.drops["refused_psk"]
        async with wired(member.address, key, "127.0.2.2") as wire:
            await wire.write(GREETING + b"\x18" + MEMBER_ID.encode() + b"\n" + bytes(64))
            heard = await wire.rest()
            assert len(heard) <= 24
            assert b"multistream" not in heard
        await counted(member, "refused_psk", before)
        assert member.lines("refused somebody at 127.0.2.2: it has not our pre-shared key")

    for member in hidden.residents:
        hidden.play(dial, member)
    hidden.among_themselves()


def test_a_whole_node_without_a_membership_that_dials_for_a_while(live: LiveSwarm) -> None:
    async def live_among_them() -> None:
        stranger = Member(77, peers=tuple(each.address for each in live.residents))
        before = [each.transport.drops["refused_protocol"] for each in live.residents]
        async with trio.open_nursery() as nursery:
            await nursery.start(stranger.service.run)
            for each, at in zip(live.residents, before, strict=True):
                await counted(each, "refused_protocol", at)
            nursery.cancel_scope.cancel()
        stats = stranger.service.stats
        assert not stranger.transport.peers
        assert len(stranger.service.neighbours()) == stranger.service.peers_known == 0
        assert stats.payload_bytes_received == stats.snapshot_bytes_received == stats.updates_accepted == 0

    live.play(live_among_them)
    live.among_themselves()


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize(
    ("key", "of_hidden", "kind"),
    [(None, False, "refused_protocol"), (KEY, True, "refused_protocol"), (None, True, "refused_psk")],
    ids=["Noise", "the right pre-shared key", "no pre-shared key"],
)
def test_stock_js_libp2p(
    live: LiveSwarm, hidden: LiveSwarm, tmp_path: Path, key: bytes | None, of_hidden: bool, kind: str
) -> None:
    swarm, path = hidden if of_hidden else live, tmp_path / "swarm.key"
    if key is not None:
        PresharedKey(key).write(path)
    member = swarm.residents[0]
    before = member.transport.drops[kind]
    with Peer("private_peer.mjs", "-" if key is None else str(path), "dial", member.address) as peer:
        peer.hear("failed")
        assert [line["event"] for line in peer.lines] == ["failed"]
    swarm.play(counted, member, kind, before)
    swarm.among_themselves()


@pytest.mark.thorough
def test_rounds_take_as_long_in_a_storm_of_strangers(live: LiveSwarm) -> None:
    before = live.round_s(6)

    async def storm() -> float:
        async with trio.open_nursery() as nursery:
            for member in live.residents:
                nursery.start_soon(besiege, member)
            during = await live._round_s(6)
            nursery.cancel_scope.cancel()
        return during

    async def besiege(member: Resident) -> None:
        while True:
            for shown in CARDS:
                await knock(live, member, shown, "127.0.0.1")
                await trio.sleep(PAUSE_S)

    knocked = sum(sum(each.transport.drops.values()) for each in live.residents)
    during = live.play(storm)
    assert sum(sum(each.transport.drops.values()) for each in live.residents) - knocked > len(CARDS)
    assert during < TEMPO * before
    live.among_themselves()


def test_all_that_members_sent_members_received(live: LiveSwarm) -> None:
    live.finish()
    for member in live.residents:
        deltas = [update for update in member.updates if update.kind == "delta"]
        assert {update.peer for update in deltas} == live.peers - {member.peer}
        assert all(update.payload == payload_of(update.peer, update.round) for update in deltas)
    live.among_themselves()
