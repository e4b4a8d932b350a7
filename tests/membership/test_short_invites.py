"""Short invites: what they hold, who is told the rest of it, and that a newcomer takes the admins' manifests or none,
whoever it asks."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from swarms import (
    ADMIN,
    ADMINS,
    CHAIN,
    NOW,
    PSK,
    SWARM,
    Door,
    after,
    bootstrap,
    certificate,
    chain_of,
    invite,
    line_parts,
    peer,
    secret,
)

from gossip.core.digests import digest_of
from gossip.core.errors import AnsweredError, LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.membership_limits import (
    MAX_LINE_ADDRESSES,
    MAX_LINE_BYTES,
    MAX_PIECE_BYTES,
    MAX_PIECES,
    MAX_USES,
    NAMED_BYTES,
)
from gossip.core.wire import pack
from gossip.membership import (
    Authority,
    InviteBundle,
    ManifestChain,
    Policy,
    Role,
    ShortInvite,
    encode_invite_code,
    encode_short,
    make_invite,
    next_version,
    pack_item,
    pack_manifests,
    parse_any,
    parse_invite_code,
    psk_fingerprint,
    revoke_grant,
    shorten,
)
from gossip.membership import invite_code as lines
from gossip.membership.admission import PIECES_BURST
from gossip.membership.refusal import TOLD, Refusal, invite_words, parse_refusal
from gossip.membership.visit import Visitor, make_visit, parse_visit
from gossip.membership.visit_task import EACH_S, KNOCK_S, FetchError, fetch
from gossip.transport.base import MAX_CREDENTIALS, Admission
from gossip.transport.client_handlers import ClientHandlers
from gossip.transport.memory.link_quality import LinkQuality
from gossip.transport.memory.network import MemoryNetwork, MemoryTransport

ASKER = peer(77)
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=64)
PLACES = st.one_of(
    st.builds("/ip4/{}/tcp/{}".format, st.ip_addresses(v=4), st.integers(0, 65535)),
    st.builds("/ip6/{}/tcp/{}".format, st.ip_addresses(v=6), st.integers(0, 65535)),
    st.sampled_from(
        (
            "/dns/gpu.example.org/tcp/4001",
            "/memory/3",
            "/ip4/1.2.3.4/tcp/04001",
            "/ip6/::0001/tcp/1",
            "/ip6/1.2.3.4/tcp/1",
            "/ip4/1.2.3.4/udp/1",
            "/ip4/1.2.3.4/tcp/70000",
        )
    ),
)


def short_of(chain: ManifestChain = CHAIN, psk: bytes | None = None) -> ShortInvite:
    made = shorten(line_parts(chain, psk))
    assert made is not None
    return made


def same(one: ShortInvite, other: ShortInvite) -> bool:
    return one.secret.seed == other.secret.seed and replace(one, secret=other.secret) == other


# -- what the line holds


@given(
    st.sampled_from(Role),
    ASCII,
    st.integers(0, 2**50),
    st.none() | st.integers(1, 2**50),
    st.none() | st.integers(1, MAX_USES),
    st.none() | st.binary(min_size=32, max_size=32),
    st.binary(min_size=NAMED_BYTES, max_size=NAMED_BYTES),
    st.lists(PLACES, min_size=1, max_size=MAX_LINE_ADDRESSES),
    st.sampled_from(["", "east", "eu-west_2"]),
)
def test_all_of_a_short_line_comes_back(role, name, issued_at, lasts, uses, psk, named, places, region):
    expires = None if lasts is None else issued_at + lasts
    how = {"role": role, "name": name, "issued_at": issued_at, "expires": expires, "uses": uses, "region": region}
    granted = make_invite(ADMIN, SWARM, secret(), **how)
    addresses = tuple(f"{place}/p2p/{peer(at).peer_id}" for at, place in enumerate(places))
    short = ShortInvite(invite=granted, secret=secret(), named=named, addresses=addresses, psk=psk)
    read = parse_any(encode_short(short))
    assert isinstance(read, ShortInvite)
    assert same(read, short)
    assert read.invite.raw == granted.raw


def test_a_short_line_has_less_than_half_the_letters():
    """Of one admin, two bootstrap nodes and the settings of an ordinary run. It does not grow with the manifests."""
    line = encode_short(short_of())
    assert len(line) == 371
    assert len(encode_invite_code(line_parts())) > 2 * len(line)
    chain = chain_of()
    chain.accept(after(chain, ADMIN))
    assert len(encode_short(short_of(chain))) == len(line)


def test_the_addresses_are_few_and_of_different_peers_and_no_circuits():
    one, two = bootstrap(1, 2)
    again = [f"/ip4/203.0.113.{at}/tcp/4001/p2p/{peer(1).peer_id}" for at in range(6)]
    circuit = f"{one}/p2p-circuit/p2p/{peer(3).peer_id}"
    short = short_of(chain_of(bootstrap=(circuit, one, *again, two)))
    assert short.addresses == (one, two, *again[:2])
    assert shorten(line_parts(chain_of(bootstrap=(circuit,)))) is None
    assert shorten(line_parts(chain_of(bootstrap=()))) is None, "there is nobody to ask: the line has to be a full one"


def test_whatever_happens_to_a_short_line_is_said():
    line = encode_short(short_of())
    for size in range(4, len(line)):
        with pytest.raises(LocalError, match="cut short"):
            parse_any(line[:size])
    for at in range(len(line)):
        with pytest.raises(LocalError):
            parse_any(line[:at] + ("A" if line[at] != "A" else "B") + line[at + 1 :])
    wrapped = "> " + "\n> ".join(line[at : at + 70] for at in range(0, len(line), 70))
    read = parse_any(f"Hello,\n\n{wrapped}\n\nCarol")
    assert isinstance(read, ShortInvite)
    assert same(read, short_of())
    with pytest.raises(LocalError, match="more than one invite"):
        parse_any(f"{line}\n{encode_invite_code(line_parts())}")
    with pytest.raises(LocalError, match="a short one"):
        parse_invite_code(line)


def test_a_full_line_is_read_as_ever():
    read = parse_any(encode_invite_code(line_parts()))
    assert isinstance(read, InviteBundle)
    assert read.chain.newest == CHAIN.newest


@pytest.mark.parametrize(
    "wrong",
    [
        {"named": b"n" * 15},
        {"addresses": ()},
        {"addresses": bootstrap(1, 2, 3, 4, 5)},
        {"psk": b"k" * 31},
        {"secret": secret(1)},
        {"invite": invite(chain=chain_of(nonce=b"m" * 16), admin=ADMINS[1]), "secret": secret(1)},
    ],
    ids=range(6),
)
def test_parts_that_are_none_are_no_line(wrong):
    with pytest.raises((LocalError, RemoteError)):
        encode_short(replace(short_of(), **wrong))


def test_a_signature_by_another_key_is_no_line():
    fields = [short_of().secret.seed + SWARM + ADMINS[1].public_key + invite().raw[-64:] + bytes(16), 0, "a guest"]
    body = pack((*fields, NOW - 60, NOW + 3600, 1, b"", [b"k" * 32 + b"\x04" + bytes(6)]))
    with pytest.raises(LocalError, match="contradicts"):
        parse_any(lines._framed(lines.SHORT, body))


def test_the_secrets_do_not_show():
    shown = repr(parse_any(encode_short(short_of(chain_of(psk_fingerprint=psk_fingerprint(PSK)), PSK))))
    assert secret().seed.hex() not in shown
    assert repr(secret().seed) not in shown
    assert repr(PSK) not in shown


# -- what completes it


def moved_on() -> tuple[ManifestChain, ManifestChain]:
    """A chain, and the same after two more versions that change no admin."""
    then, now = chain_of(), chain_of()
    for chain in (then, now):
        chain.accept(after(chain, ADMIN, max_members=5))
    for most in (6, 7):
        now.accept(after(now, ADMIN, max_members=most))
    return then, now


def test_what_is_newer_by_the_chain_s_own_rules_is_taken():
    then, now = moved_on()
    short = short_of(then)
    served = ManifestChain(next(iter(now)))
    for each in now.spine(short.named)[1:]:
        served.accept(each)
    assert [each.version for each in served] == [1, 2, 4]
    assert short.complete(served).chain.newest == now.newest


def test_what_is_older_or_goes_round_the_manifest_that_is_named_is_not():
    then, now = moved_on()
    short = short_of(then)
    around = ManifestChain(next(iter(now)))
    around.accept(now.newest)
    for chain in (chain_of(), around):
        with pytest.raises(RemoteError) as caught:
            short.complete(chain)
        assert caught.value.reason is Reason.DIGEST_MISMATCH
    with pytest.raises(RemoteError) as caught:
        short.complete(chain_of(nonce=b"m" * 16))
    assert caught.value.reason is Reason.WRONG_SWARM


def test_the_rest_must_go_with_it():
    keyed = chain_of(psk_fingerprint=psk_fingerprint(PSK))
    for wrong in (replace(short_of(keyed, PSK), psk=None), replace(short_of(keyed, PSK), psk=b"k" * 32)):
        with pytest.raises(RemoteError, match="pre-shared key"):
            wrong.complete(keyed)
    out = chain_of()
    out.accept(after(out, ADMIN, admins=ADMINS[1:2]))
    with pytest.raises(RemoteError, match="nobody who is an admin now"):
        short_of(chain_of()).complete(out)


# -- who is told


def visit(short: ShortInvite | None = None, who: Identity = ASKER, *, by: Identity | None = None, at: int = 0) -> bytes:
    asked = short or short_of()
    return make_visit(asked.invite, by or asked.secret, who.peer_id, asked.named, at)


def told(door: Door, shown: bytes, who: Identity = ASKER) -> bytes | Reason:
    """The answer, or why there is none."""
    try:
        door.admission.admit(who.peer_id, shown)
    except AnsweredError as asked:
        return asked.answer
    except RemoteError as error:
        return error.reason
    raise AssertionError("let in")


def test_who_holds_an_invite_is_told_and_not_let_in():
    door = Door()
    answer = told(door, visit())
    assert isinstance(answer, bytes)
    assert len(answer) <= MAX_CREDENTIALS
    assert pack_manifests(CHAIN.spine()) in answer
    assert door.admission.role_of(ASKER.peer_id) is None
    assert not door.learned
    assert not door.roster.taken(short_of().invite.id), "and takes no use"
    assert door.refusal(peer(5).peer_id, certificate(peer(5), short_of().invite)) is None


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (visit(by=secret(1)), Reason.FORGED),
        (visit(who=peer(5)), Reason.FORGED),
        (visit(replace(short_of(), invite=invite(admin=ADMINS[1]))), Reason.FORGED),
        (visit(replace(short_of(), invite=invite(chain=chain_of(nonce=b"m" * 16)))), Reason.WRONG_SWARM),
        (visit()[:-1], Reason.MALFORMED),
        (visit() + b"\x00", Reason.MALFORMED),
        (b"\x93\x03" + bytes(90), Reason.MALFORMED),
        (visit(at=MAX_LINE_BYTES), Reason.PROTOCOL),
    ],
    ids=["no secret", "another's, replayed", "no admin's", "another swarm's", "cut", "longer", "noise", "beyond"],
)
def test_strangers_hear_nothing(shown, reason):
    door = Door()
    assert told(door, shown) is reason
    assert door.admission.explain(ASKER.peer_id, shown, RemoteError(reason)) == b""


def out(reason: str = "lost laptop", admin: Authority = ADMIN) -> bytes:
    return pack_item(revoke_grant(admin, SWARM, invite().id, issued_at=NOW, reason=reason))


def test_an_invite_that_is_no_good_any_more_is_told_why():
    late, revoked, full = Door(now=NOW + 3600 + 301), Door(), Door()
    revoked.admission.apply([out()])
    full.admission.admit(peer(5).peer_id, certificate(peer(5)).raw)
    for door, reason in ((late, Reason.EXPIRED), (revoked, Reason.REVOKED), (full, Reason.USED_UP)):
        assert told(door, visit()) is reason
        said = door.admission.explain(ASKER.peer_id, visit(), RemoteError(reason))
        assert said[:1] == b"\x92"
        assert (b"lost laptop" in said) == (reason is Reason.REVOKED)
        assert peer(5).public_key not in said, "and nobody else is named"


def test_an_invite_by_a_former_admin_is_told_so_and_shown_no_manifest():
    chain = chain_of((ADMIN, ADMINS[1]))
    short = short_of(chain)
    door = Door(chain)
    door.admission.apply_manifests(pack_manifests((after(chain, ADMIN, admins=(ADMINS[1],)),)))
    asked = visit(short)
    with pytest.raises(RemoteError) as caught:
        door.admission.admit(ASKER.peer_id, asked)
    said = parse_refusal(door.admission.explain(ASKER.peer_id, asked, caught.value))
    assert said == Refusal(reason=Reason.FORGED)
    assert invite_words(said, signed=False) == "it says that the admin who made the invite is no admin any more"


def test_who_asks_too_often_is_not_told():
    door, shown = Door(), visit()
    assert all(isinstance(told(door, shown), bytes) for _ in range(PIECES_BURST))
    assert told(door, shown) is Reason.FLOODED
    assert door.admission.explain(ASKER.peer_id, shown, RemoteError(Reason.FLOODED)) == b""
    door.now += 2
    assert isinstance(told(door, shown), bytes)


@given(st.binary(min_size=16, max_size=16), st.integers(0, MAX_LINE_BYTES), st.integers(0, 50))
def test_visits_come_back(named, at, number):
    read = parse_visit(make_visit(invite(), secret(), peer(number).peer_id, named, at))
    assert (read.invite, read.peer, read.named, read.at) == (invite(), peer(number).peer_id, named, at)


def test_the_largest_chain_fits():
    assert MAX_PIECES * MAX_PIECE_BYTES >= MAX_LINE_BYTES
    assert len(pack((MAX_LINE_BYTES, bytes(16), bytes(MAX_PIECE_BYTES)))) <= MAX_CREDENTIALS


# -- asking, over a network


class Voice:
    """The door of a node that says what it likes."""

    def __init__(self, says: Callable[[int], bytes]) -> None:
        self.says = says
        self.knocks = 0

    def credentials(self) -> bytes:
        return b"mine"

    def admit(self, who: PeerId, credentials: bytes) -> None:
        self.knocks += 1
        said = self.says(self.knocks)
        if said != b"come in":
            raise AnsweredError(said)

    def explain(self, who: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        return b""

    def heard(self, who: PeerId, said: bytes) -> str:
        return ""


class Town:
    """Nodes, and a newcomer that asks them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.network = MemoryNetwork(random.Random(1))
        self.complaints: list[str] = []
        self.asker = Identity.generate()

    async def node(self, number: int, admission: Admission) -> MemoryTransport:
        node = self.network.attach(peer(number).peer_id, admission)
        handlers = ClientHandlers(keeps_peers=False)
        handlers.caller_refused = lambda caller, why: self.complaints.append(why)  # type: ignore[method-assign]
        await self.nursery.start(node.run, handlers)
        return node

    async def ask(
        self,
        *nodes: MemoryTransport | str,
        short: ShortInvite | None = None,
        within_s: float = 60.0,
        once: bool = False,
    ) -> InviteBundle:
        addresses = [each if isinstance(each, str) else each.addresses[0] for each in nodes]
        visitor = Visitor(short or short_of(), self.asker)
        transport = self.network.attach(self.asker.peer_id, visitor)
        return await fetch(visitor, transport, addresses, within_s=within_s, once=once)


@asynccontextmanager
async def town() -> AsyncIterator[Town]:
    async with trio.open_nursery() as nursery:
        yield Town(nursery)
        nursery.cancel_scope.cancel()


async def test_one_knock_is_enough_and_alarms_nobody(autojump_clock):
    async with town() as it:
        door = Door()
        node = await it.node(1, door.admission)
        found = await it.ask(node)
        assert list(found.chain) == list(CHAIN)
        assert (found.invite, found.secret.seed) == (short_of().invite, short_of().secret.seed)
        assert {kind: times for kind, times in node.drops.items() if times} == {"visited": 1}
        assert not it.complaints
        assert not node.peers
        shown = found.redeem(peer(5).peer_id, issued_at=NOW, nonce=b"n" * 16)
        assert door.refusal(peer(5).peer_id, shown) is None


async def test_a_large_manifest_comes_in_pieces_over_a_slow_link(autojump_clock):
    allow = frozenset(peer(each).peer_id for each in range(1024))
    chain = chain_of(policy=Policy.ALLOW, allow=allow)
    async with town() as it:
        node = await it.node(1, Door(chain).admission)
        it.network.set_link(it.asker.peer_id, node.peer_id, LinkQuality(latency_s=0.8))
        found = await it.ask(node, short=short_of(chain))
        assert found.chain.newest.terms.allow == allow
        assert node.drops["visited"] == 9


def of(chain: ManifestChain) -> Callable[[int], bytes]:
    """Says these manifests, as an honest node does."""
    return whole(chain.dump())


def whole(data: bytes, size: int | None = None, check: bytes | None = None) -> Callable[[int], bytes]:
    named = digest_of(data)[:16] if check is None else check
    length = len(data) if size is None else size

    def says(knock: int) -> bytes:
        piece = data[(knock - 1) * MAX_PIECE_BYTES : knock * MAX_PIECE_BYTES]
        return pack((length, named, piece))

    return says


def without_the_named() -> ManifestChain:
    """By an admin that the named version put out: one that goes round it."""
    chain = chain_of(ADMINS[:2])
    chain.accept(next_version(chain.newest, chain.newest.terms, applies_at=0, version=9).signed_by(ADMIN))
    return chain


def put_out() -> ManifestChain:
    """Of two admins the second alone is one from version 2 on, and invites."""
    chain = chain_of(ADMINS[:2])
    chain.accept(after(chain, ADMIN, admins=ADMINS[1:2]))
    return chain


NAMED = put_out()
BY_SECOND = InviteBundle(invite=invite(admin=ADMINS[1], chain=NAMED), secret=secret(), chain=NAMED)


def forked() -> bytes:
    """The named version, and one after it by the admin that it put out."""
    late = next_version(NAMED.newest, chain_of(ADMINS[:2]).newest.terms, applies_at=0).signed_by(ADMIN)
    return pack_manifests((*NAMED, late))


LIES: dict[str, Callable[[int], bytes]] = {
    "other swarm": of(chain_of(nonce=b"m" * 16)),
    "truncated chain": of(chain_of(ADMINS[:2])),
    "a former admin's way round": of(without_the_named()),
    "a former admin's version on top": whole(forked()),
    "nothing": lambda knock: b"",
    "garbage": lambda knock: random.Random(knock).randbytes(300),
    "no manifests": whole(b"\x90"),
    "of no bytes": whole(b""),
    "giant": whole(bytes(4000), size=MAX_LINE_BYTES + 1),
    "without end": whole(bytes(MAX_LINE_BYTES), check=bytes(16)),
    "longer than it says": whole(NAMED.dump(), size=100),
    "byte by byte": lambda knock: pack((1000, bytes(16), b"x")),
    "another each time": lambda knock: pack((9000, bytes([knock] * 16), bytes(MAX_PIECE_BYTES))),
    "other digest": whole(NAMED.dump(), check=bytes(16)),
    "too much": lambda knock: bytes(MAX_CREDENTIALS),
    "a membership": lambda knock: certificate(peer(1)).raw,
    "come in": lambda knock: b"come in",
    "a revocation by nobody": lambda knock: Refusal(
        reason=Reason.REVOKED, revocation=revoke_grant(ADMINS[3], SWARM, invite().id, issued_at=NOW, reason="x")
    ).pack(),
    "a hurt refusal": lambda knock: Refusal(reason=Reason.REVOKED).pack()[:-1] + b"\xff",
    **{f"says {reason}": lambda knock, reason=reason: Refusal(reason=reason).pack() for reason in sorted(TOLD)},
}


def by_second() -> ShortInvite:
    made = shorten(BY_SECOND)
    assert made is not None
    return made


@pytest.mark.parametrize("lie", LIES)
async def test_a_liar_is_passed_over_and_alone_gets_nothing_taken(lie, autojump_clock):
    async with town() as it:
        liar = await it.node(1, Voice(LIES[lie]))
        began = trio.current_time()
        with pytest.raises(FetchError) as caught:
            await it.ask(liar, short=by_second(), within_s=30.0)
        assert trio.current_time() - began <= 31
        ((address, why),) = caught.value.tried.items()
        assert address == liar.addresses[0]
        assert why
        assert not caught.value.final, "whose signature it may be is not known"
        door = Door(NAMED)
        door.admission.apply_manifests(NAMED.dump())
        honest = await it.node(2, door.admission)
        began = trio.current_time()
        found = await it.ask(liar, honest, short=by_second())
        assert list(found.chain) == list(NAMED)
        assert trio.current_time() - began < 1


async def test_one_that_is_silent_or_drips_takes_no_more_than_its_turn(autojump_clock):
    async with town() as it:
        silent = await it.node(1, Door().admission)
        it.network.stall(silent.peer_id)
        dripping = await it.node(2, Voice(whole(bytes(MAX_LINE_BYTES))))
        it.network.set_link(it.asker.peer_id, dripping.peer_id, LinkQuality(latency_s=6.0))
        honest = await it.node(3, Door().admission)
        began = trio.current_time()
        found = await it.ask(silent, dripping, honest)
        assert list(found.chain) == list(CHAIN)
        assert KNOCK_S + EACH_S - 1 < trio.current_time() - began < KNOCK_S + EACH_S + 1
        with pytest.raises(FetchError) as caught:
            await it.ask(silent, dripping, within_s=50.0)
        assert set(caught.value.tried.values()) <= {"no answer", "no answer, or one that trickles"}


async def test_dead_addresses_are_tried_again_until_the_time_is_over(autojump_clock):
    async with town() as it:
        later = it.network.attach(peer(1).peer_id, Door().admission)
        dead = f"/memory/99/p2p/{peer(9).peer_id}"
        began = trio.current_time()
        with pytest.raises(FetchError) as caught:
            await it.ask(dead, later, within_s=15.0)
        assert trio.current_time() - began == pytest.approx(15, abs=1.5)
        assert list(caught.value.tried) == [dead, later.addresses[0]]
        with pytest.raises(FetchError):
            await it.ask(dead, later, once=True)
        assert trio.current_time() - began < 17, "one look is one turn each"

        async def starts() -> None:
            await trio.sleep(20)
            await later.run(ClientHandlers(keeps_peers=False))

        it.nursery.start_soon(starts)
        assert list((await it.ask(dead, later)).chain) == list(CHAIN)


async def test_an_admin_s_own_word_ends_it_at_once(autojump_clock):
    async with town() as it:
        door = Door()
        door.admission.apply([out()])
        node, never = await it.node(1, door.admission), f"/memory/99/p2p/{peer(9).peer_id}"
        began = trio.current_time()
        with pytest.raises(FetchError) as caught:
            await it.ask(node, never)
        assert trio.current_time() - began < 1
        day, by = "2027-01-15 08:00 UTC", ADMIN.public_key.hex()[:16]
        assert caught.value.final == f"the invite was revoked by admin {by} on {day} (lost laptop)"
        assert caught.value.tried == {node.addresses[0]: caught.value.final, never: "it was not its turn"}


async def test_words_of_all_members_end_it_at_once_and_of_some_within_ten_seconds(autojump_clock):
    async with town() as it:
        door = Door()
        door.admission.admit(peer(5).peer_id, certificate(peer(5)).raw)
        node, never = await it.node(1, door.admission), f"/memory/99/p2p/{peer(9).peer_id}"
        began = trio.current_time()
        with pytest.raises(FetchError) as caught:
            await it.ask(node)
        assert trio.current_time() - began < 1
        assert caught.value.turned_away
        assert caught.value.tried == {node.addresses[0]: "it says that all uses of the invite are taken"}
        with pytest.raises(FetchError):
            await it.ask(never, node)
        assert 9 < trio.current_time() - began < 14


async def test_a_member_of_an_older_release_is_passed_over(autojump_clock):
    class Older(Voice):
        def admit(self, who: PeerId, credentials: bytes) -> None:
            raise RemoteError(Reason.MALFORMED, "field 1 is out of range")

    async with town() as it:
        old, new = await it.node(1, Older(lambda knock: b"")), await it.node(2, Door().admission)
        with pytest.raises(FetchError) as caught:
            await it.ask(old, within_s=5.0)
        assert "does not take us for a member" in caught.value.tried[old.addresses[0]]
        assert list((await it.ask(old, new)).chain) == list(CHAIN)


async def test_one_that_is_interrupted_leaves_nothing_open(autojump_clock):
    async with town() as it:
        node = await it.node(1, Door().admission)
        it.network.stall(node.peer_id)
        with trio.move_on_after(3) as scope:
            await it.ask(node)
        assert scope.cancelled_caught
        assert not node.peers
        assert it.network.find(f"/memory/1/p2p/{it.asker.peer_id}") is None
