"""What members of a private swarm ask each other about it: the requests that keep rosters and manifests alike.

Formats of what travels inside are membership's (docs/private-swarms.md); here they are bytes within bounds. In a swarm
that is open to all, nobody has an answer to these.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from gossip.core.ids import Digest
from gossip.core.membership_limits import BUCKETS, MAX_PAGE_BYTES, MAX_VERSION
from gossip.core.wire import Fields

PART_BYTES: Final = BUCKETS // 8
"""Bytes of a set of parts: bit `at % 8` (the lowest first) of byte `at // 8` is part `at`."""

MAX_PAGE_NUMBER: Final = 4096
"""Pages are counted from 0; a full roster has 1,200."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a member knows, by digest: its roster, and its newest manifest."""

    roster: Digest
    version: int
    manifest: Digest


@dataclass(frozen=True, kw_only=True)
class MembershipRequest:
    """What the asker knows, and a page of items that are news to it (b"": none); answered by a `Known`."""

    roster: Digest
    version: int
    manifest: Digest
    page: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, known: Known, page: bytes = b"") -> "MembershipRequest":
        """Of one that knows this."""
        return cls(roster=known.roster, version=known.version, manifest=known.manifest, page=page)

    @property
    def known(self) -> Known:
        """What the asker knows."""
        return Known(roster=self.roster, version=self.version, manifest=self.manifest)


@dataclass(frozen=True, kw_only=True)
class BucketsRequest:
    """Answered by the `buckets` of the roster."""


@dataclass(frozen=True, kw_only=True)
class RosterRequest:
    """One page of the items of some parts; answered by it, or by b"" beyond the last one."""

    parts: bytes
    page: int


@dataclass(frozen=True, kw_only=True)
class TermsRequest:
    """Answered by the oldest manifest above a version that a chain needs (`ManifestChain.spine`); b"": none."""

    above: int


MemberRequest = MembershipRequest | BucketsRequest | RosterRequest | TermsRequest


def known_fields(known: Known) -> tuple[bytes, int, bytes]:
    """As they travel, in a request and in its answer."""
    return known.roster, known.version, known.manifest


def parse_known(fields: Fields) -> Known:
    """Raises RemoteError(MALFORMED)."""
    return Known(roster=fields.digest(), version=fields.integer(MAX_VERSION), manifest=fields.digest())


def parse_membership(fields: Fields) -> MembershipRequest:
    """Raises RemoteError(MALFORMED | OVERSIZE)."""
    return MembershipRequest.of(parse_known(fields), fields.binary(MAX_PAGE_BYTES))


def parse_roster(fields: Fields) -> RosterRequest:
    """Raises RemoteError(MALFORMED | OVERSIZE)."""
    return RosterRequest(parts=fields.exactly(PART_BYTES), page=fields.integer(MAX_PAGE_NUMBER))


def parse_terms(fields: Fields) -> TermsRequest:
    """Raises RemoteError(MALFORMED | OVERSIZE)."""
    return TermsRequest(above=fields.integer(MAX_VERSION))


def pack_parts(parts: Collection[int]) -> bytes:
    """A set of parts, as it travels."""
    packed = bytearray(PART_BYTES)
    for part in parts:
        packed[part // 8] |= 1 << part % 8
    return bytes(packed)


def unpack_parts(packed: bytes) -> frozenset[int]:
    """The parts of a set, which has `PART_BYTES` bytes."""
    return frozenset(part for part in range(BUCKETS) if packed[part // 8] >> part % 8 & 1)
