"""How rosters become equal, and how a roster is stored on disk.

Two members compare the digests of their rosters; where these differ, `buckets` (2 KiB) shows in which parts. Then each
sends the other's missing parts in pages of at most 8 KiB. Items are idempotent, so nobody records what was sent.

On disk: a header line, the swarm's id, then each item after its length (4 bytes, big-endian), and the digest of all
that precedes.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from gossip.core.digests import DIGEST_BYTES, SWARM_ID_BYTES, digest_of
from gossip.core.errors import LocalError, RemoteError
from gossip.core.ids import Digest, SwarmId
from gossip.core.membership_limits import (
    BUCKET_BYTES,
    BUCKETS,
    MAX_ITEM_BYTES,
    MAX_PAGE_BYTES,
    MAX_REDEMPTIONS,
    MAX_REVOCATIONS,
)
from gossip.core.wire import malformed, pack
from gossip.membership.roster import Roster, parse_item
from gossip.membership.signed import unpack_exact

HEADER: Final = b"p2ptrain-roster-1\n"
_LENGTH_BYTES: Final = 4
MAX_ROSTER_BYTES: Final = (
    len(HEADER) + SWARM_ID_BYTES + (MAX_REDEMPTIONS + MAX_REVOCATIONS) * (_LENGTH_BYTES + MAX_ITEM_BYTES) + DIGEST_BYTES
)
_PAGE_ROOM: Final = MAX_PAGE_BYTES - 8
"""Bytes of a page, less the array's own header."""
_ITEM_HEADER: Final = 3


def roster_digest(roster: Roster) -> Digest:
    """Return the digest of a roster; equal for equal rosters, whatever the order of their items was."""
    return digest_of(buckets(roster))


def buckets(roster: Roster) -> bytes:
    """Return 8 bytes for each of 256 parts; an item belongs to the part of its digest's first byte."""
    return buckets_of(map(digest_of, roster.items()))


def buckets_of(digests: Iterable[Digest]) -> bytes:
    """Return the `buckets` of the items with these digests."""
    parts: list[list[bytes]] = [[] for _ in range(BUCKETS)]
    for digest in digests:
        parts[digest[0]].append(digest)
    return b"".join(map(bucket_of, parts))


def bucket_of(digests: Iterable[bytes]) -> bytes:
    """Return a part's 8 bytes, from its items' digests."""
    return digest_of(b"".join(sorted(digests)))[:BUCKET_BYTES]


def differing(mine: bytes, theirs: bytes) -> frozenset[int]:
    """Return which parts differ. Raises RemoteError(MALFORMED) when `theirs` is malformed."""
    if len(theirs) != BUCKETS * BUCKET_BYTES:
        raise malformed(f"a roster has {BUCKETS} parts")
    spans = [slice(at * BUCKET_BYTES, (at + 1) * BUCKET_BYTES) for at in range(BUCKETS)]
    return frozenset(at for at, span in enumerate(spans) if mine[span] != theirs[span])


def pages(roster: Roster, parts: Collection[int]) -> Iterator[bytes]:
    """Yield the items of some parts, revocations and certificates, in pages of at most `MAX_PAGE_BYTES`."""
    yield from paged(item for item in roster.items() if digest_of(item)[0] in parts)


def paged(items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield items in pages of at most `MAX_PAGE_BYTES`."""
    page: list[bytes] = []
    room = _PAGE_ROOM
    for item in items:
        if len(item) + _ITEM_HEADER > room:
            yield pack(page)
            page, room = [], _PAGE_ROOM
        page.append(item)
        room -= len(item) + _ITEM_HEADER
    if page:
        yield pack(page)


def parse_page(data: bytes) -> tuple[bytes, ...]:
    """Return a page's items, unparsed. Raises RemoteError(OVERSIZE | MALFORMED)."""
    fields = unpack_exact(data, MAX_PAGE_BYTES)
    return tuple(fields.binary(MAX_ITEM_BYTES) for _ in range(fields.left))


def dump_roster(roster: Roster) -> bytes:
    """Return the roster's bytes for the disk."""
    body = b"".join(len(item).to_bytes(_LENGTH_BYTES, "big") + item for item in roster.items())
    whole = HEADER + roster.swarm + body
    return whole + digest_of(whole)


def load_roster(data: bytes, swarm: SwarmId, admins: Collection[bytes]) -> Roster:
    """Return the roster of a dump, without items of former admins. Checks two signatures an item: 0.1 ms each.

    Raises LocalError when it is damaged, or of another swarm.
    """
    whole, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if len(data) > MAX_ROSTER_BYTES or not whole.startswith(HEADER) or digest_of(whole) != digest:
        raise LocalError("the roster is damaged; without it, it is learned anew from other members")
    at = len(HEADER) + SWARM_ID_BYTES
    if whole[len(HEADER) : at] != swarm:
        raise LocalError("the roster of another swarm")
    roster = Roster(swarm, admins)
    try:
        for item in map(parse_item, _split(whole[at:])):
            if roster.trusts(item):
                roster.put(item)
    except RemoteError as error:
        raise LocalError(f"the roster holds what was never signed: {error.detail or error}") from error
    return roster


def _split(body: bytes) -> Iterable[bytes]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + _LENGTH_BYTES], "big")
        at += _LENGTH_BYTES + size
        if at > len(body):
            raise malformed("an item is cut short")
        yield body[at - size : at]
