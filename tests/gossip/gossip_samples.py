"""Sealed envelopes for tests, one factory a kind, all by well-known keys in one scope."""

from gossip.api import UpdateKind
from gossip.identity import Identity
from gossip.ids import Digest, RunId
from gossip.protocol.book import Standing
from gossip.protocol.digests import NO_DIGEST, digest_of, swarm_id_of
from gossip.protocol.envelope import Envelope, Kind, Scope, Statement, seal
from gossip.protocol.members import Evidence
from gossip.protocol.statements import (
    Link,
    LinkBody,
    Offer,
    goodbye_statement,
    link_statement,
    offer_statement,
    parse_link,
    parse_offer,
    record_statement,
)

SCOPE = Scope(swarm=swarm_id_of("p2ptrain"), run=RunId(b"r" * 16))
GENESIS = digest_of(b"the initial model")
WELL_KNOWN = Evidence(standing=lambda peer: Standing.VERIFIED, network=lambda peer: "", dialled_us=lambda peer: False)
"""Everybody was reached at its address, on a LAN, by us."""
ALICE, BOB, CAROL = (Identity(bytes([number]) * 32) for number in (1, 2, 3))


def sealed(statement: Statement, by: Identity = ALICE, scope: Scope = SCOPE) -> Envelope:
    return seal(by, scope, statement)


def link(
    *,
    by: Identity = ALICE,
    epoch: int = 1,
    seq: int = 0,
    prev: Digest = NO_DIGEST,
    round: int = 0,
    kind: UpdateKind | None = None,
    content: bytes = b"payload",
    scope: Scope = SCOPE,
    size: int | None = None,
    genesis: Digest = GENESIS,
    state: Digest | None = None,
) -> Link:
    kind = kind or ("genesis" if seq == 0 else "delta")
    empty = kind == "genesis"
    body = LinkBody(
        round=round,
        kind=kind,
        codec="none" if kind == "delta" else "",
        size=(0 if empty else len(content)) if size is None else size,
        genesis=genesis if empty else None,
        state=state,
    )
    address = NO_DIGEST if empty else digest_of(content)
    statement = link_statement(epoch=epoch, seq=seq, prev=prev, address=address, body=body)
    return parse_link(sealed(statement, by, scope))


def chain(count: int, *, by: Identity = ALICE, epoch: int = 1, content: bytes = b"payload") -> list[Link]:
    """A genesis and `count` - 1 deltas, at rounds 0, 1, ..."""
    links = [link(by=by, epoch=epoch)]
    while len(links) < count:
        last = links[-1]
        links.append(link(by=by, epoch=epoch, seq=last.seq + 1, prev=last.digest, round=last.seq + 1, content=content))
    return links


def offer(head: Link, *, by: Identity = ALICE, digest: Digest | None = None, size: int = 7) -> Offer:
    statement = offer_statement(
        epoch=head.epoch,
        seq=head.seq,
        head=digest or head.digest,
        address=digest_of(b"snapshot"),
        round=head.body.round,
        size=size,
    )
    return parse_offer(sealed(statement, by))


def record(
    *, by: Identity = ALICE, epoch: int = 1, version: int = 1, addresses: tuple[str, ...] | None = None
) -> bytes:
    given = addresses if addresses is not None else (f"/memory/1/p2p/{by.peer_id}",)
    return sealed(record_statement(epoch=epoch, version=version, addresses=given), by).raw


def goodbye(by: Identity = ALICE) -> bytes:
    return sealed(goodbye_statement(epoch=1, seq=1), by).raw


ONE_OF_EACH = {
    Kind.LINK: chain(2)[1].raw,
    Kind.OFFER: offer(chain(2)[1]).raw,
    Kind.RECORD: record(),
    Kind.GOODBYE: goodbye(),
}
