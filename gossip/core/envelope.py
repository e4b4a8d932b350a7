"""A signed statement of one peer: msgpack [signed bytes, signature].

The signed bytes are a msgpack array (protocol version, swarm id, run id, kind, sender's public key, epoch, seq, prev,
payload digest, body); the signature is Ed25519 over a domain tag and them. So nothing signed here can be taken for a
statement of another protocol, swarm or run. `open_envelope` checks cheap things first and from the outside in: size,
shape, signature, then version, swarm, run and kind. The body is parsed in messages.py, which knows the kinds.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from gossip.core.digests import RUN_ID_BYTES, SWARM_ID_BYTES, digest_of
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, peer_id_of, verify
from gossip.core.ids import Digest, PeerId, RunId, SwarmId
from gossip.core.limits import MAX_BODY_BYTES, MAX_ENVELOPE_BYTES, PROTOCOL_VERSION
from gossip.core.wire import Fields, pack, unpack

DOMAIN: Final = b"p2ptrain-envelope-v1\x00"


class EnvelopeKind(StrEnum):
    """What an envelope states."""

    LINK = "link"
    OFFER = "offer"
    RECORD = "record"
    GOODBYE = "goodbye"
    PART = "part"
    REGIONAL = "regional"
    SECURE = "secure"
    STATISTICS = "statistics"


_KINDS: Final = frozenset(kind.value for kind in EnvelopeKind)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where a statement holds: one run of one swarm."""

    swarm: SwarmId
    run: RunId


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a sender says of itself; the meaning of epoch, seq, prev and payload depends on the kind."""

    kind: EnvelopeKind
    epoch: int
    seq: int
    prev: Digest
    payload: Digest
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A statement whose signature and scope have been checked. `digest` names its signed bytes; `raw` is its wire
    form, in msgpack's shortest one: who passes a statement on may write it in another, and it is the same one."""

    sender: PeerId
    statement: Statement
    digest: Digest
    raw: bytes


def seal(identity: Identity, scope: Scope, statement: Statement) -> Envelope:
    """Sign a statement. Raises LocalError when it is too large to send."""
    fields = (
        PROTOCOL_VERSION,
        scope.swarm,
        scope.run,
        statement.kind.value,
        identity.public_key,
        statement.epoch,
        statement.seq,
        statement.prev,
        statement.payload,
        statement.body,
    )
    signed = pack(fields)
    raw = pack((signed, identity.sign(DOMAIN + signed)))
    if len(statement.body) > MAX_BODY_BYTES or len(raw) > MAX_ENVELOPE_BYTES:
        raise LocalError(f"an envelope of {len(raw)} bytes is too large to send")
    return Envelope(sender=identity.peer_id, statement=statement, digest=digest_of(signed), raw=raw)


def open_envelope(raw: bytes, scope: Scope) -> Envelope:
    """Check size, shape, signature and scope of a peer's bytes. Raises RemoteError and nothing else."""
    return opened(raw, scope)


def opened(raw: bytes, scope: Scope) -> Envelope:
    """`open_envelope`, which a simulation has done once for all of its nodes (node/simulation/sealed.py)."""
    outer = unpack(raw, MAX_ENVELOPE_BYTES)
    signed, signature = outer.binary(MAX_ENVELOPE_BYTES), outer.exactly(SIGNATURE_BYTES)
    outer.end()
    said = _fields_of(signed)
    verify(said.key, DOMAIN + signed, signature)
    _check_scope(said.version, said.swarm, said.run, scope)
    if said.kind not in _KINDS:
        raise RemoteError(Reason.UNKNOWN_KIND, said.kind)
    statement = Statement(
        kind=EnvelopeKind(said.kind),
        epoch=said.epoch,
        seq=said.seq,
        prev=said.prev,
        payload=said.payload,
        body=said.body,
    )
    usual = pack((signed, signature))
    return Envelope(sender=peer_id_of(said.key), statement=statement, digest=digest_of(signed), raw=usual)


class _Signed(NamedTuple):
    """The signed fields, in their order."""

    version: int
    swarm: SwarmId
    run: RunId
    kind: str
    key: bytes
    epoch: int
    seq: int
    prev: Digest
    payload: Digest
    body: bytes


def _fields_of(signed: bytes) -> _Signed:
    fields = unpack(signed, MAX_ENVELOPE_BYTES)
    said = _Signed(
        version=fields.integer(),
        swarm=SwarmId(fields.exactly(SWARM_ID_BYTES)),
        run=RunId(fields.exactly(RUN_ID_BYTES)),
        kind=fields.text(16),
        key=fields.exactly(KEY_BYTES),
        epoch=fields.integer(),
        seq=fields.integer(),
        prev=fields.digest(),
        payload=fields.digest(),
        body=fields.binary(MAX_BODY_BYTES),
    )
    fields.end()
    return said


def open_from(raw: bytes, scope: Scope, sender: PeerId, kind: EnvelopeKind) -> Envelope:
    """Open an envelope that must be of this sender and kind. Raises RemoteError(FORGED | UNKNOWN_KIND | ...)."""
    envelope = open_envelope(raw, scope)
    if envelope.sender != sender:
        raise RemoteError(Reason.FORGED, "signed by somebody else")
    if envelope.statement.kind is not kind:
        raise RemoteError(Reason.UNKNOWN_KIND, f"{envelope.statement.kind.value} where {kind.value} is expected")
    return envelope


def digests_in(raw: bytes) -> tuple[Digest, Digest]:
    """Return the digest of an envelope that was opened before, and the digest of the statement before it."""
    signed = unpack(raw, MAX_ENVELOPE_BYTES).binary(MAX_ENVELOPE_BYTES)
    return digest_of(signed), _fields_of(signed).prev


def body_of(envelope: Envelope) -> Fields:
    """Return the body's fields."""
    return unpack(envelope.statement.body, MAX_BODY_BYTES)


def _check_scope(version: int, swarm: SwarmId, run: RunId, scope: Scope) -> None:
    if version != PROTOCOL_VERSION:
        raise RemoteError(Reason.PROTOCOL, f"protocol version {version}, ours is {PROTOCOL_VERSION}")
    if swarm != scope.swarm:
        raise RemoteError(Reason.WRONG_SWARM)
    if run != scope.run:
        raise RemoteError(Reason.WRONG_RUN)
