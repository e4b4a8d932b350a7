"""Sealed envelopes for tests, one factory a kind, all by well-known keys in one scope."""

from gossip.core.api import UpdateKind
from gossip.core.digests import NO_DIGEST, digest_of, swarm_id_of
from gossip.core.envelope import Envelope, EnvelopeKind, Scope, Statement, seal
from gossip.core.identity import Identity
from gossip.core.ids import Digest, RunId
from gossip.core.statements import (
    SnapshotOffer,
    UpdateHeader,
    UpdateHeaderBody,
    goodbye_statement,
    parse_snapshot_offer,
    parse_update_header,
    record_statement,
    snapshot_offer_statement,
    update_header_statement,
)
from gossip.discovery.peerstore import RecordTrust
from gossip.updates.mesh import MeshEvidence

SCOPE = Scope(swarm=swarm_id_of("p2ptrain"), run=RunId(b"r" * 16))
GENESIS = digest_of(b"the initial model")
WELL_KNOWN = MeshEvidence(
    standing=lambda peer: RecordTrust.VERIFIED, network=lambda peer: "", dialled_us=lambda peer: False
)
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
) -> UpdateHeader:
    kind = kind or ("genesis" if seq == 0 else "delta")
    empty = kind == "genesis"
    body = UpdateHeaderBody(
        round=round,
        kind=kind,
        codec="none" if kind == "delta" else "",
        size=(0 if empty else len(content)) if size is None else size,
        genesis=genesis if empty else None,
        state=state,
    )
    address = NO_DIGEST if empty else digest_of(content)
    statement = update_header_statement(epoch=epoch, seq=seq, prev=prev, address=address, body=body)
    return parse_update_header(sealed(statement, by, scope))


def chain(count: int, *, by: Identity = ALICE, epoch: int = 1, content: bytes = b"payload") -> list[UpdateHeader]:
    """A genesis and `count` - 1 deltas, at rounds 0, 1, ..."""
    links = [link(by=by, epoch=epoch)]
    while len(links) < count:
        last = links[-1]
        links.append(link(by=by, epoch=epoch, seq=last.seq + 1, prev=last.digest, round=last.seq + 1, content=content))
    return links


def offer(head: UpdateHeader, *, by: Identity = ALICE, digest: Digest | None = None, size: int = 7) -> SnapshotOffer:
    statement = snapshot_offer_statement(
        epoch=head.epoch,
        seq=head.seq,
        head=digest or head.digest,
        address=digest_of(b"snapshot"),
        round=head.body.round,
        size=size,
    )
    return parse_snapshot_offer(sealed(statement, by))


def record(
    *, by: Identity = ALICE, epoch: int = 1, version: int = 1, addresses: tuple[str, ...] | None = None
) -> bytes:
    given = addresses if addresses is not None else (f"/memory/1/p2p/{by.peer_id}",)
    return sealed(record_statement(epoch=epoch, version=version, addresses=given), by).raw


def goodbye(by: Identity = ALICE) -> bytes:
    return sealed(goodbye_statement(epoch=1, seq=1), by).raw


ONE_OF_EACH = {
    EnvelopeKind.LINK: chain(2)[1].raw,
    EnvelopeKind.OFFER: offer(chain(2)[1]).raw,
    EnvelopeKind.RECORD: record(),
    EnvelopeKind.GOODBYE: goodbye(),
}
