"""Moves inside a private swarm, by nodes that were let in: what members tell each other of members."""

import trio
from adversary_members import FOUNDED, SWARM, certificate, forged_manifest
from adversary_move import Act, move
from hostile_peer import Fault
from moves_chains import take_part

from gossip.errors import Reason, RemoteError
from gossip.identity import Identity
from gossip.ids import Digest, PeerId
from gossip.membership import Authority, pack_item, revoke_peer
from gossip.membership.refusal import MAX_REFUSAL_BYTES, TOLD, Refusal
from gossip.membership.sync import paged
from gossip.protocol.digests import digest_of
from gossip.protocol.member_messages import Known, MembershipRequest

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
    variants=("told", "claim", "forged", "hurt", "junk"),
    speaks=("membership",),
    among=PRIVATE,
    apt=("private",),
)
async def _revoke(act: Act) -> None:
    """Revoke honest members, without being an admin: by telling others, or by saying at the own door that they are out
    to whoever dials, with whom it parts again and again."""
    await act.meet()
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
    peer.terms = forged_manifest(peer.spread.gate.chain.newest, peer.identity).raw
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
    """Lets nobody in, and says why: a claim of any kind, a revocation that no admin has signed, bytes that are none."""

    def __init__(self, act: Act, shown: bytes) -> None:
        self._act = act
        self._shown = shown

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
        true = Refusal(reason=Reason.REVOKED, revocation=forged).pack()
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
    door = act.peer.transport._door
    was, door._admission = door._admission, LyingDoor(act, door.credentials())
    try:
        for _ in range(act.move.amount):
            for life in act.targets:
                await act.peer.transport.disconnect(life.peer)
            await trio.sleep(act.move.seconds / act.move.amount)
    finally:
        door._admission = was
