"""Moves inside a private swarm, by nodes that were let in: what members tell each other of members."""

import trio
from adversary_members import FOUNDED, SWARM, TERMS, certificate, chain, forged_manifest, short_line
from adversary_move import Act, move
from hostile_peer import Fault
from moves_chains import take_part

from gossip.core.digests import digest_of
from gossip.core.errors import AnsweredError, GossipError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId
from gossip.core.member_messages import Known, MembershipRequest
from gossip.core.membership_limits import MAX_LINE_BYTES, MAX_PIECE_BYTES, MAX_REFUSAL_BYTES
from gossip.core.wire import pack
from gossip.membership import Authority, create_manifest, pack_item, pack_manifests, revoke_grant, revoke_peer
from gossip.membership.refusal import TOLD, Refusal
from gossip.membership.roster_sync import paged
from gossip.membership.visit import Visitor, make_visit
from gossip.membership.visit_task import FetchError, fetch
from gossip.transport.client_handlers import ClientHandlers

PRIVATE = frozenset({"private"})


async def tell(act: Act, known: Known, page: bytes) -> None:
    """Each target, once."""
    for life in act.targets:
        await act.peer.ask(life.peer, MembershipRequest.of(known, page))


@move(
    "members.news",
    amounts=(5, 120),
    seconds=(5, 60),
    variants=("many", "forged", "junk", "again"),
    speaks=("membership",),
    among=PRIVATE,
    apt=("private",),
)
async def _news(act: Act) -> None:
    """Tell of members: many that redeemed a line without a number, forged ones, bytes that are none, the same again."""
    await act.meet()
    items = []
    for number in range(act.move.amount):
        somebody = Identity(digest_of(f"member {act.move.seed} {number}".encode()))
        item = pack_item(certificate(somebody.peer_id, number))
        items.append({"forged": item[:-1] + b"x", "junk": act.rng.randbytes(60)}.get(act.move.variant, item))
    pages = list(paged(items)) * (3 if act.move.variant == "again" else 1)
    for page in pages:
        await tell(act, act.peer.known(), page)
        await trio.sleep(act.move.seconds / len(pages))


@move(
    "members.revoke",
    amounts=(1, 6),
    variants=("told", "claim", "forged", "hurt", "junk", "visit"),
    speaks=("membership",),
    among=PRIVATE,
    apt=("private",),
)
async def _revoke(act: Act) -> None:
    """Revoke honest members, without being an admin: by telling others, or by saying at the own door that they are out
    to whoever dials, with whom it parts again and again. Or (`visit`) lie there to newcomers: no kind of its own, which
    would change what every seed draws."""
    await act.meet()
    if act.move.variant == "visit":
        await lie_to_newcomers(act)
        return
    if act.move.variant != "told":
        await refuse_all(act)
        return
    admin = Authority(act.peer.identity.seed)
    for number in range(act.move.amount):
        victim = act.stage.lives[number % len(act.stage.lives)].peer
        item = pack_item(revoke_peer(admin, SWARM, victim, issued_at=FOUNDED + number, reason="because"))
        await tell(act, act.peer.known(), next(paged([item])))


@move(
    "members.known",
    amounts=(2, 30),
    seconds=(10, 60),
    variants=("roster", "manifest", "version"),
    speaks=("membership", "terms", "buckets", "roster"),
    among=PRIVATE,
    apt=("private",),
)
async def _known(act: Act) -> None:
    """Say that it knows something else, another each time, so that it is asked; and answer with a forged manifest."""
    await act.meet()
    peer = act.peer
    assert peer.spread is not None
    peer.terms = forged_manifest(peer.spread.admission.chain.newest, peer.identity).raw
    for _ in range(act.move.amount):
        noise, true = Digest(act.rng.randbytes(32)), peer.known()
        known = {
            "roster": Known(roster=noise, version=true.version, manifest=true.manifest),
            "manifest": Known(roster=true.roster, version=true.version, manifest=noise),
            "version": Known(roster=true.roster, version=true.version + 7, manifest=noise),
        }[act.move.variant]
        await tell(act, known, b"")
        await trio.sleep(act.move.seconds / act.move.amount)


@move(
    "members.answer",
    variants=("membership", "buckets", "roster", "terms"),
    seconds=(20, 120),
    speaks=("membership", "terms", "buckets", "roster"),
    among=PRIVATE,
)
async def _answer(act: Act) -> None:
    """Answer what members ask wrongly, in any way."""
    how = act.rng.choice(["refuse", "hang", "trickle", "truncate", "garbage", "oversize", "wrong", "extra"])
    with act.peer.lying(Fault(act.move.variant, how, frozenset())):
        await take_part(act, "mean")


class LyingDoor:
    """Lets nobody in, and says why: a claim of any kind; a revocation or (every other time) a manifest that no admin
    has signed; bytes that are none."""

    def __init__(self, act: Act, shown: bytes) -> None:
        self._act = act
        self._shown = shown
        self._asked = 0

    def credentials(self) -> bytes:
        """Its own are good."""
        return self._shown

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        """Nobody."""
        raise RemoteError(Reason.REVOKED, "so it says")

    def explain(self, peer: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        """A lie."""
        act, reason = self._act, self._act.rng.choice(sorted(TOLD))
        forged = revoke_peer(Authority(act.peer.identity.seed), SWARM, peer, issued_at=FOUNDED, reason="because")
        manifest = forged_manifest(chain().newest, act.peer.identity)
        self._asked += 1
        true = (
            Refusal(reason=Reason.REVOKED, revocation=forged)
            if self._asked % 2
            else Refusal(reason=Reason.FORGED, manifests=pack_manifests((manifest,)))
        ).pack()
        return {
            "claim": Refusal(reason=reason).pack(),
            "forged": true,
            "hurt": true[:-1] + bytes([true[-1] ^ 1]),
            "junk": act.rng.randbytes(act.rng.choice([1, 60, MAX_REFUSAL_BYTES])),
        }[act.move.variant]

    def heard(self, peer: PeerId, said: bytes) -> str:
        """It does not matter."""
        return ""


async def refuse_all(act: Act) -> None:
    """A door that lies, for as long as the move lasts."""
    door = act.peer.transport._handshake_admission
    was, door._admission = door._admission, LyingDoor(act, door.credentials())
    try:
        for _ in range(act.move.amount):
            for life in act.targets:
                await act.peer.transport.disconnect(life.peer)
            await trio.sleep(act.move.seconds / act.move.amount)
    finally:
        door._admission = was


LIES = ("junk", "own", "forged", "giant", "endless", "drip", "claim", "revoked", "in")
"""What a newcomer with a short invite may be told."""


async def lie_to_newcomers(act: Act) -> None:
    """Mislead newcomers that ask by a short invite: with manifests of its own, forged ones, none, a claim, without end,
    or by letting them in. And visit members, with a line that it has, and with what is none."""
    door = act.peer.transport._handshake_admission
    was = door._admission
    try:
        for number in range(min(act.move.amount, 3)):
            door._admission = LyingAnswers(act, door.credentials(), act.rng.choice(LIES))
            await come_new(act, number)
    finally:
        door._admission = was
    await ask_members(act)


class LyingAnswers(LyingDoor):
    """Answers visits, and whatever else knocks, with one kind of lie."""

    def __init__(self, act: Act, shown: bytes, lie: str) -> None:
        super().__init__(act, shown)
        self._lie = lie
        self._knocks = 0

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        """Nobody but newcomers, where it is to let them in."""
        self._knocks += 1
        if self._lie != "in":
            raise AnsweredError(self._answer())

    def _answer(self) -> bytes:
        act, rng, size = self._act, self._act.rng, MAX_PIECE_BYTES
        liar = Authority(act.peer.identity.seed)
        own = pack_manifests((create_manifest(TERMS, b"m" * 16).signed_by(Authority(b"\x64" * 32)),))
        forged = pack_manifests((*chain(), forged_manifest(chain().newest, act.peer.identity)))
        revoked = revoke_grant(liar, SWARM, short_line("").invite.id, issued_at=FOUNDED, reason="because")
        return {
            "junk": lambda: rng.randbytes(rng.choice([0, 1, 60, MAX_REFUSAL_BYTES])),
            "own": lambda: pack((len(own), digest_of(own)[:16], own)),
            "forged": lambda: pack((len(forged), digest_of(forged)[:16], forged)),
            "giant": lambda: pack((MAX_LINE_BYTES + 1, bytes(16), bytes(size))),
            "endless": lambda: pack((MAX_LINE_BYTES, bytes(16), bytes(size))),
            "drip": lambda: pack((100 * self._knocks, bytes(16), b"x")),
            "claim": lambda: Refusal(reason=rng.choice(sorted(TOLD))).pack(),
            "revoked": lambda: Refusal(reason=Reason.REVOKED, revocation=revoked).pack(),
        }[self._lie]()


async def come_new(act: Act, number: int) -> None:
    """An honest newcomer, whose line names the hostile node first: it ends with the true manifests, or with none while
    there is nobody honest to ask."""
    stage, identity = act.stage, Identity(digest_of(f"newcomer {act.move.seed} {act.number} {number}".encode()))
    honest = [life.member.transport.addresses[0] for life in act.targets]
    visitor = Visitor(short_line(act.peer.address), identity)
    transport = stage.network.attach(identity.peer_id, visitor)
    try:
        whole = await fetch(visitor, transport, [act.peer.address, *honest], within_s=60.0)
    except FetchError as error:
        if honest and stage.running and stage.targets(act.move.targets):
            stage.misled.append(f"nothing fetched beside {act.peer.address}: {error}")
    else:
        if list(whole.chain) != list(chain()):
            stage.misled.append(f"took what {act.peer.address} told it")


async def ask_members(act: Act) -> None:
    """Visits by a line that it has, by none, and of another."""
    short, rng = short_line("", number=1 + act.number), act.rng
    for number in range(act.move.amount):
        identity = Identity(digest_of(f"visitor {act.move.seed} {act.number} {number}".encode()))
        shown = make_visit(
            short.invite, short.secret, identity.peer_id, rng.randbytes(16), rng.choice([0, 0, 100, 9000])
        )
        hurt = shown[:-1] + bytes([shown[-1] ^ 1])
        another = make_visit(short.invite, identity, identity.peer_id, bytes(16), 0)
        visitor = Caller(rng.choice([shown, shown, hurt, another, shown[:200], b"\x93\x03" + rng.randbytes(200)]))
        transport = act.stage.network.attach(identity.peer_id, visitor)
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run, ClientHandlers(keeps_peers=False))
            for life in act.targets:
                try:
                    await transport.dial(life.member.transport.addresses[0])
                except GossipError:
                    continue
                act.stage.misled.append(f"{life.member.name} has let in who only asks")
            nursery.cancel_scope.cancel()
        await trio.sleep(act.move.seconds / act.move.amount)


class Caller:
    """An admission that shows the same to everybody, and wants nobody."""

    def __init__(self, shown: bytes) -> None:
        self._shown = shown

    def credentials(self) -> bytes:
        """What it has."""
        return self._shown

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        """Whoever lets it in."""

    def explain(self, peer: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        """Nothing."""
        return b""

    def heard(self, peer: PeerId, said: bytes) -> str:
        """It does not matter."""
        return ""
