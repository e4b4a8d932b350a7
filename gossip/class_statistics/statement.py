"""A member's class statistics as a signed statement: a STATISTICS envelope that names its payload.

What is in the payload is the runtime's. Nothing of the protocol follows from it, and nobody certifies it: it is the
word of its signer about data that nobody else sees. The signature binds it to one member and one run, so that nobody
can pass another's off as its own.
"""

from dataclasses import dataclass

from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.envelope import EnvelopeKind, Scope, Statement, body_of, open_from, seal
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_STATISTICS_BYTES
from gossip.core.wire import pack


@dataclass(frozen=True)
class SharedPayload:
    """A payload, and the envelope that names it."""

    envelope: bytes
    payload: bytes


def sealed_statistics(identity: Identity, scope: Scope, payload: bytes) -> SharedPayload:
    """Sign class statistics. Raises LocalError where they are too large to send."""
    if len(payload) > MAX_STATISTICS_BYTES:
        raise LocalError(f"class statistics of {len(payload)} bytes, above {MAX_STATISTICS_BYTES}")
    return SharedPayload(seal(identity, scope, statistics_statement(payload)).raw, payload)


def statistics_statement(payload: bytes) -> Statement:
    """Return the statement that names this payload."""
    named = digest_of(payload)
    return Statement(kind=EnvelopeKind.STATISTICS, epoch=0, seq=0, prev=NO_DIGEST, payload=named, body=pack(()))


def check_statistics(shared: SharedPayload, scope: Scope, sender: PeerId) -> bytes:
    """Return the payload of a member's statement. Raises RemoteError(FORGED | UNKNOWN_KIND | DIGEST_MISMATCH | ...)."""
    envelope = open_from(shared.envelope, scope, sender, EnvelopeKind.STATISTICS)
    body_of(envelope).end()
    if envelope.statement.payload != digest_of(shared.payload):
        raise RemoteError(Reason.DIGEST_MISMATCH, "class statistics other than those that were signed")
    return shared.payload
