"""What members of a private swarm ask each other about it: requests that keep rosters and manifests equal.

The formats inside are defined in membership/ (docs/private-swarms.md); here they are bytes within bounds. In an open
swarm nobody has an answer to these requests.
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
    """What the asker knows, and a page of items that are new to the other (b"": none); answered by a `Known`."""

    roster: Digest
    version: int
    manifest: Digest
    page: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, known: Known, page: bytes = b"") -> "MembershipRequest":
        """Return the request of a member that knows this."""
        return cls(roster=known.roster, version=known.version, manifest=known.manifest, page=page)

    @property
    def known(self) -> Known:
        """What the asker knows."""
        return Known(roster=self.roster, version=self.version, manifest=self.manifest)


@dataclass(frozen=True, kw_only=True)
class BucketsRequest:
    """Asks for the digests of the roster's buckets; answered by the `buckets` of the roster."""


@dataclass(frozen=True, kw_only=True)
class RosterRequest:
    """Asks for one page of the items of some parts; answered by it, or by b"" beyond the last one."""

    parts: bytes
    page: int


@dataclass(frozen=True, kw_only=True)
class TermsRequest:
    """Asks for the oldest manifest above a version that a chain needs (`ManifestChain.spine`); b"" in answer: none."""

    above: int


MemberRequest = MembershipRequest | BucketsRequest | RosterRequest | TermsRequest


def known_fields(known: Known) -> tuple[bytes, int, bytes]:
    """Return the fields as they are sent, in a request and in its answer."""
    return known.roster, known.version, known.manifest


def parse_known(fields: Fields) -> Known:
    """Parse what a member knows. Raises RemoteError(MALFORMED)."""
    return Known(roster=fields.digest(), version=fields.integer(MAX_VERSION), manifest=fields.digest())


def parse_membership(fields: Fields) -> MembershipRequest:
    """Parse a membership request. Raises RemoteError(MALFORMED | OVERSIZE)."""
    return MembershipRequest.of(parse_known(fields), fields.binary(MAX_PAGE_BYTES))


def parse_roster(fields: Fields) -> RosterRequest:
    """Parse a roster request. Raises RemoteError(MALFORMED | OVERSIZE)."""
    return RosterRequest(parts=fields.exactly(PART_BYTES), page=fields.integer(MAX_PAGE_NUMBER))


def parse_terms(fields: Fields) -> TermsRequest:
    """Parse a terms request. Raises RemoteError(MALFORMED | OVERSIZE)."""
    return TermsRequest(above=fields.integer(MAX_VERSION))


def pack_parts(parts: Collection[int]) -> bytes:
    """Return the wire form of a set of parts."""
    packed = bytearray(PART_BYTES)
    for part in parts:
        packed[part // 8] |= 1 << part % 8
    return bytes(packed)


def unpack_parts(packed: bytes) -> frozenset[int]:
    """Return the parts in a packed set of `PART_BYTES` bytes."""
    return frozenset(part for part in range(BUCKETS) if packed[part // 8] >> part % 8 & 1)
