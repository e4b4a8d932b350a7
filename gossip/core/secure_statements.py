"""What members of a secure sum sign (gossip/secure_aggregation): a statement a stage. Encoders, and strict parsers.

All are envelopes of one kind: `epoch` is the round, `seq` the stage, `prev` the name of the exchange. Members are
named by their places in the group's order, and a set of them is a bitmap of eight bytes. Two different statements of
one member in one place of one exchange prove that it lies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from gossip.core.digests import DIGEST_BYTES, NO_DIGEST
from gossip.core.envelope import Envelope, EnvelopeKind, Statement, body_of
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import MAX_GROUP
from gossip.core.wire import Fields, malformed, pack

SECRET_BYTES: Final = 32
"""An X25519 key, a seed, or the key that seals a share."""

SEALED_SHARES_BYTES: Final = 96
"""A holder's two shares, of 32 bytes and a tag of 16 each."""

_SET_BYTES: Final = MAX_GROUP // 8


class SecureStage(IntEnum):
    """What a statement says, in the order in which a member says it."""

    KEYS = 0
    SHARES = 1
    MASKED = 2
    HELD = 3
    AGREED = 4
    OPENED = 5
    SUMMED = 6


@dataclass(frozen=True, kw_only=True)
class KeysBody:
    """Public keys of this exchange alone, and what the sender's seed will be: for the channels through which shares are
    dealt, for the masks with other members, and a digest of the seed of the sender's own mask."""

    channel: bytes
    mask: bytes
    seed: Digest

    def encode(self) -> bytes:
        """Return the body of the statement."""
        return pack((self.channel, self.mask, self.seed))


@dataclass(frozen=True, kw_only=True)
class SharesBody:
    """Shares of the sender's two secrets for each of the `holders`, sealed, in the order of their places. The
    statement's payload is the digest of the sender's keys."""

    holders: frozenset[int]
    sealed: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the body of the statement."""
        return pack((_bits_of(self.holders), self.sealed))

    def of(self, holder: int) -> bytes | None:
        """Return the two sealed shares of a holder; None: it was dealt none."""
        if holder not in self.holders:
            return None
        place = sorted(self.holders).index(holder)
        return self.sealed[place * SEALED_SHARES_BYTES : (place + 1) * SEALED_SHARES_BYTES]


@dataclass(frozen=True, kw_only=True)
class ViewBody:
    """Digests of other members' statements, as the sender has them. When it has masked its vector: of the shares of
    each member with which it shares a mask; the payload is the vector's address. When it has pulled its parts of the
    others'
    vectors: of their statements on these."""

    view: Mapping[int, Digest]

    def encode(self) -> bytes:
        """Return the body of the statement."""
        return pack((_bits_of(self.view), b"".join(self.view[place] for place in sorted(self.view))))


@dataclass(frozen=True, kw_only=True)
class AgreedBody:
    """The members whose vectors are summed. The payload is a digest of them and of their masked vectors."""

    survivors: frozenset[int]

    def encode(self) -> bytes:
        """Return the body of the statement."""
        return pack((_bits_of(self.survivors),))


@dataclass(frozen=True, kw_only=True)
class OpenedBody:
    """The sender's own seed, where its vector is summed, and the keys of the shares that it holds: of the seeds of
    these survivors, and of the mask keys of these others, in the order of their places. The payload is that of the
    survivors."""

    seed: bytes = field(repr=False)
    seeds: frozenset[int]
    keys: frozenset[int]
    share_keys: Mapping[int, bytes] = field(repr=False)
    """By the dealer's place; the two sets have no member in common."""

    def encode(self) -> bytes:
        """Return the body of the statement."""
        opened = b"".join(self.share_keys[place] for place in sorted(self.share_keys))
        return pack((self.seed, _bits_of(self.seeds), _bits_of(self.keys), opened))


@dataclass(frozen=True, kw_only=True)
class SummedBody:
    """The part, by the place of its first owner, whose sum is the payload's blob."""

    part: int

    def encode(self) -> bytes:
        """Return the body of the statement."""
        return pack((self.part,))


SecureBody = KeysBody | SharesBody | ViewBody | AgreedBody | OpenedBody | SummedBody


@dataclass(frozen=True, kw_only=True)
class SecureStatement:
    """A member's signed statement in a secure sum."""

    peer: PeerId
    exchange: Digest
    round: int
    stage: SecureStage
    payload: Digest
    body: SecureBody
    digest: Digest
    raw: bytes = field(repr=False)

    @property
    def place(self) -> tuple[SecureStage, int]:
        """Of which a member signs one statement an exchange: the stage, and the part of a sum."""
        return self.stage, self.body.part if isinstance(self.body, SummedBody) else 0


def secure_statement(
    *, exchange: Digest, round: int, stage: SecureStage, body: SecureBody, payload: Digest = NO_DIGEST
) -> Statement:
    """Return the statement of a stage."""
    return Statement(
        kind=EnvelopeKind.SECURE, epoch=round, seq=stage, prev=exchange, payload=payload, body=body.encode()
    )


def parse_secure(envelope: Envelope) -> SecureStatement:
    """Parse the statement inside a SECURE envelope."""
    stated = envelope.statement
    if stated.kind is not EnvelopeKind.SECURE:
        raise RemoteError(Reason.UNKNOWN_KIND, f"{stated.kind.value} where a secure sum's is expected")
    if stated.seq > SecureStage.SUMMED:
        raise malformed("a statement of no stage of a secure sum")
    stage, fields = SecureStage(stated.seq), body_of(envelope)
    body = _parse_body(stage, fields)
    fields.end()
    if (stated.payload == NO_DIGEST) != (stage in (SecureStage.KEYS, SecureStage.HELD)):
        raise malformed("a payload where none belongs, or none where one does")
    return SecureStatement(
        peer=envelope.sender,
        exchange=stated.prev,
        round=stated.epoch,
        stage=stage,
        payload=stated.payload,
        body=body,
        digest=envelope.digest,
        raw=envelope.raw,
    )


def _parse_body(stage: SecureStage, fields: Fields) -> SecureBody:
    match stage:
        case SecureStage.KEYS:
            return KeysBody(
                channel=fields.exactly(SECRET_BYTES), mask=fields.exactly(SECRET_BYTES), seed=fields.digest()
            )
        case SecureStage.SHARES:
            holders = _set_in(fields)
            return SharesBody(holders=holders, sealed=fields.exactly(len(holders) * SEALED_SHARES_BYTES))
        case SecureStage.MASKED | SecureStage.HELD:
            return ViewBody(view={place: Digest(it) for place, it in _by_place(_set_in(fields), fields).items()})
        case SecureStage.AGREED:
            return AgreedBody(survivors=_set_in(fields))
        case SecureStage.OPENED:
            return _parse_opened(fields)
        case SecureStage.SUMMED:
            return SummedBody(part=fields.integer(MAX_GROUP - 1))


def _parse_opened(fields: Fields) -> OpenedBody:
    seed = fields.binary(SECRET_BYTES)
    seeds, keys = _set_in(fields), _set_in(fields)
    if len(seed) not in (0, SECRET_BYTES):
        raise malformed("a seed has 32 bytes, or is not told")
    if seeds & keys:
        raise RemoteError(Reason.PROTOCOL, "shares of both secrets of one member")
    return OpenedBody(seed=seed, seeds=seeds, keys=keys, share_keys=_by_place(seeds | keys, fields))


def _by_place(places: frozenset[int], fields: Fields) -> dict[int, bytes]:
    """Read 32 bytes for each of the places, in their order."""
    joined = fields.exactly(len(places) * DIGEST_BYTES)
    return {
        place: joined[at : at + DIGEST_BYTES]
        for place, at in zip(sorted(places), range(0, len(joined), DIGEST_BYTES), strict=True)
    }


def _bits_of(places: frozenset[int] | Mapping[int, object]) -> bytes:
    return sum(1 << place for place in places).to_bytes(_SET_BYTES, "little")


def _set_in(fields: Fields) -> frozenset[int]:
    bits = int.from_bytes(fields.exactly(_SET_BYTES), "little")
    return frozenset(place for place in range(MAX_GROUP) if bits >> place & 1)
