"""What is here of a blob, which chunks are requested from whom, and what to request next from the author and helpers.

Every peer that pulls a blob begins with its own share of the chunks, requests that from the author, and requests the
others' shares from them. So an author with a slow uplink sends each chunk about once, instead of once to everybody.
Shares are classes of `index % shares`, by a puller's rank among those that it knows to pull; where two views of that
differ, chunks come twice or later, never wrong. A peer that has finished its share requests others' from their ends.

Requests to a source cover what it sends in PLAN_S, and AHEAD chunks at most. A chunk that a source has not sent for too
long is requested from another as well, TWICE chunks at a time. A source that fails returns the chunks requested from
it; what was verified stays for the next pull.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gossip.blobs.blob import Assembler, BlobManifest, parse_blob_manifest
from gossip.core.api import BlobFile
from gossip.core.digests import digest_of
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import CHUNK_BYTES

AHEAD: Final = 4
"""Chunks requested and not yet verified: 4 MiB, one stream's largest window (335 Mbit/s at a round trip of 100 ms)."""

PLAN_S: Final = 2.0
"""Seconds of requests to a source ahead: a chunk requested from one source costs twice when another sends it too, and a
round trip of 0.1 s is a twentieth of this."""

SLOW_S: Final = 0.25
"""Seconds for a chunk. An author that takes longer (less than 34 Mbit/s) is helped, as is one that has sent none for as
long as the puller waits (blobs/multi_source_task.py)."""

LATE_S: Final = 10.0
"""A chunk requested so many seconds ago, and longer ago than twice what either source takes for one, is requested from
another: as long as a source that sends nothing is tolerated (network.request_timeout_s)."""

TRAILS: Final = 2.0
"""Times as long as another source takes for a chunk, from which on a source is not waited for: its share is requested
from the author as well, however slow that is. With two sources the slower one has half of the chunks, so that the
pull takes no longer than from the author alone."""

TWICE: Final = 2
"""Chunks of a blob requested from two sources at once: as many as can delay its end when one source has died."""

LACKS_S: Final = 1.0
"""Seconds for which a chunk that a source did not have is not requested from it again. For a slow author and another
peer's share it is twice as long: the owner of that share may request it meanwhile."""

PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 1.0
"""Longest pause of a source after it refused a chunk, doubling: a request takes 200 bytes, to a few sources each."""

MAX_PACES: Final = 32
"""Sources whose pace is remembered after they left: four times the default degree. A blob of 1 GiB may take hours, and
any number of peers may come and go meanwhile."""

GIVE_UP: Final = 8
"""Refusals in a row after which a source has nothing for us now: they take five seconds."""


@dataclass(eq=False)
class _Asked:
    first: float
    last: float
    """When the source last showed, by waiting before its refusal, that it is about to have the chunk."""


@dataclass(eq=False)
class _Refusals:
    first: float
    last: float


@dataclass(eq=False)
class _Source:
    left: list[int]
    """Chunks that it may be asked for, in order; those that are here are removed."""

    own: range
    window: int
    chunk_s: float | None
    under_way: dict[int, _Asked] = field(default_factory=dict)
    lacks: dict[int, float] = field(default_factory=dict)
    heard_at: float = -math.inf
    resumes_at: float = -math.inf
    refusals: int = 0
    carried: int = 0


class AuthorLiedError(RemoteError):
    """The address and the size of a signed link contradict each other: the peer that serves the blob is not to
    blame."""


class Download:
    """One blob being pulled. Only `keep`, `chunk` and `finish` may be called by other threads."""

    def __init__(
        self,
        address: Digest,
        size: int,
        *,
        author: PeerId,
        began: float,
        span: range | None = None,
        file: BlobFile | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """`file`: where the bytes are to go; None: into memory."""
        self.address = address
        self.size = size
        self.author = author
        self.began = began
        self.arrived_at = began
        """When the newest chunk came."""
        self._span = span
        self._file = file
        self._chunk_bytes = chunk_bytes
        self._pullers: Sequence[PeerId] = ()
        self._assembler: Assembler | None = None
        self._here: set[int] = set()
        self._sources: dict[PeerId, _Source] = {}
        self._paces: dict[PeerId, float | None] = {}
        self._refused_at: dict[int, _Refusals] = {}
        self._rank, self._shares = 0, 1

    # -- what it is

    @property
    def manifest(self) -> BlobManifest | None:
        """Return the manifest; None until a source has given it."""
        return self._assembler.manifest if self._assembler else None

    def learn(self, raw: bytes) -> BlobManifest:
        """Process a source's manifest. Raises RemoteError when it is not the announced one."""
        try:
            manifest = parse_blob_manifest(raw, self.address, self.size, self._chunk_bytes)
            if manifest.size != self.size:
                raise RemoteError(Reason.PROTOCOL, f"a blob of {manifest.size} bytes where {self.size} were announced")
        except RemoteError as error:
            if digest_of(raw) == self.address:  # the source gave what was asked for
                raise AuthorLiedError(error.reason, error.detail) from error
            raise
        if self._assembler is None:
            self._assembler = Assembler(manifest, self._span, file=self._file)
        return self._assembler.manifest

    @property
    def done(self) -> bool:
        """Whether all of it is here, verified."""
        return self._assembler is not None and len(self._here) == len(self._assembler.span)

    @property
    def bytes_missing(self) -> int:
        """How many bytes have yet to come."""
        if self._assembler is None:
            return self.size
        manifest = self._assembler.manifest
        return sum(manifest.chunk_size(index) for index in self._assembler.span if index not in self._here)

    @property
    def bytes_here(self) -> int:
        """How many bytes have come and were verified: what is held, in memory or in a file."""
        return 0 if self._assembler is None else self._assembler.bytes_here

    def keep(self, index: int, chunk: bytes | memoryview) -> None:
        """Verify and keep a chunk; `arrived` must follow. Raises RemoteError(DIGEST_MISMATCH)."""
        self._known().take(chunk, index)

    def has(self, index: int) -> bool:
        """Return whether this chunk is here."""
        return index in self._here

    def chunk(self, index: int) -> bytes | None:
        """Return a copy of a chunk that is here."""
        return self._known().chunk(index) if index in self._here else None

    def coming(self, index: int) -> bool:
        """Return whether the author itself is about to send this chunk."""
        source = self._sources.get(self.author)
        return source is not None and index in source.under_way

    def finish(self) -> bytes | BlobFile:
        """Return the whole blob, once `done`."""
        return self._known().finish()

    # -- whom to ask for what

    def join(self, peer: PeerId, pullers: Sequence[PeerId], me: PeerId) -> None:
        """Add `peer` as a source; the manifest must be known. `pullers`: who else pulls, and ourselves, in an order
        that all know."""
        span = self._known().span
        shares = max(1, min(len(pullers), len(span)))
        self._rank, self._shares = (pullers.index(me) if me in pullers else 0) % shares, shares
        whose = me if peer == self.author else peer
        rank = (pullers.index(whose) if whose in pullers else 0) % shares
        own = span[rank::shares]
        order = [*own, *(index for by in range(1, shares) for index in reversed(span[(rank + by) % shares :: shares]))]
        pace = self._paces.get(peer)
        first = min(AHEAD, len(own)) if peer == self.author else 1
        self._sources[peer] = _Source(order, own, max(1, first) if pace is None else _window(pace), pace)

    def leave(self, peer: PeerId) -> None:
        """Remove a source; the chunks requested from it are free for others."""
        source = self._sources.pop(peer, None)
        if source is not None:
            self._paces.pop(peer, None)
            self._paces[peer] = source.chunk_s
            if len(self._paces) > MAX_PACES:
                del self._paces[next(iter(self._paces))]

    def idle(self, peer: PeerId) -> bool:
        """Return whether this source has joined and owes no answer."""
        source = self._sources.get(peer)
        return source is not None and not source.under_way

    def ask(self, peer: PeerId, now: float) -> int | None:
        """Return the next chunk to request from this source, which counts as requested from now on; None when there is
        none."""
        source = self._sources[peer]
        if len(source.under_way) >= source.window or now < source.resumes_at or self._would_hold_up(source):
            return None
        index = self._free(source, now)
        if index is None:
            index = self._late(source, now)
        if index is not None:
            source.under_way[index] = _Asked(now, now)
        return index

    @property
    def idle_chunks(self) -> bool:
        """Whether there is a chunk that was requested from nobody."""
        return self._assembler is None or len(self._here) + len(self._askers()) < len(self._assembler.span)

    def author_wanted(self, now: float) -> bool:
        """Return whether there is something to request from an author that has left the sources: what nobody was asked
        for, or what another has been at for too long."""
        if self._assembler is None:
            return True
        askers, pace = self._askers(), self._paces.get(self.author)
        return any(
            index not in self._here and index not in askers and self._settled(index, now)
            for index in self._assembler.span
        ) or (pace is not None and bool(self._overdue(None, pace, now, strict=True)))

    def ask_again_at(self, peer: PeerId, now: float) -> float:
        """Return when to check again whether there is something to request from this source, if nothing happens
        before."""
        source = self._sources[peer]
        return source.resumes_at if source.resumes_at > now else now + PAUSE_MAX_S

    def arrived(self, peer: PeerId, index: int, now: float) -> None:
        """Note that a chunk came and was kept."""
        self._here.add(index)
        self.arrived_at = now
        source = self._sources.get(peer)
        if source is None:
            return
        asked = source.under_way.pop(index, None)
        took = now - max(asked.last if asked else now, source.heard_at)
        usual = took if source.chunk_s is None else source.chunk_s
        source.chunk_s = min(took, (took + usual) / 2)  # a source that had to wait itself is quick again at once
        source.heard_at, source.refusals = now, 0
        source.carried += self._known().manifest.chunk_size(index)
        source.window = _window(source.chunk_s)

    def refused(self, peer: PeerId, index: int, now: float) -> None:
        """Note that the source does not have this chunk now."""
        source = self._sources[peer]
        source.under_way.pop(index, None)
        source.lacks[index] = now + LACKS_S
        self._refused_at.setdefault(index, _Refusals(now, now)).last = now
        source.resumes_at = now + min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0**source.refusals)
        source.heard_at, source.window = now, 1
        source.refusals += 1

    def waits(self, peer: PeerId, index: int, now: float) -> None:
        """Note that the source is about to have a requested chunk: it stays under way."""
        source = self._sources[peer]
        source.heard_at = source.under_way[index].last = now

    def has_nothing(self, peer: PeerId) -> bool:
        """Return whether this source refused so often that it is not worth asking now."""
        return self._sources[peer].refusals >= GIVE_UP

    def carried(self, peer: PeerId) -> int:
        """Return the bytes of chunks that this source has sent since it joined."""
        source = self._sources.get(peer)
        return source.carried if source else 0

    def slow(self, peer: PeerId) -> bool:
        """Return whether this source takes so long for a chunk that others should help, or has not sent any."""
        source = self._sources.get(peer)
        return source is None or source.chunk_s is None or source.chunk_s > SLOW_S

    # -- insides

    def _known(self) -> Assembler:
        assert self._assembler is not None
        return self._assembler

    def _askers(self) -> dict[int, int]:
        """Return from how many sources each chunk under way was requested."""
        found: dict[int, int] = {}
        for source in self._sources.values():
            for index in source.under_way:
                if index not in self._here:
                    found[index] = found.get(index, 0) + 1
        return found

    def _free(self, source: _Source, now: float) -> int | None:
        missing = len(self._known().span) - len(self._here)
        if len(source.left) > 2 * missing:  # each is checked a few times in all, however many there are
            source.left = [index for index in source.left if index not in self._here]
        askers = self._askers()
        wary = source is self._sources.get(self.author) and (source.chunk_s or 0.0) > SLOW_S
        for index in source.left:
            if index in self._here or index in askers or source.lacks.get(index, now) > now:
                continue
            if not wary or index in source.own or self._settled(index, now):
                return index
        return None

    def _settled(self, index: int, now: float) -> bool:
        """Return whether a slow author may be asked for another's share: its owner does not help, or said a while ago
        that it has not requested this chunk itself. The owner may not be pulling at all: what nobody has had for long,
        all peers that have finished their own shares request in turn."""
        refused = self._refused_at.get(index)
        if refused is not None:
            turn = (self._rank - (index - self._known().span.start)) % self._shares
            through = self._here.issuperset(self._known().span[self._rank :: self._shares])
            late = through and now >= refused.first + LATE_S + min(LATE_S, turn * LACKS_S)
            return late or now >= refused.last + 2 * LACKS_S
        author = self._sources.get(self.author)
        pace = author.chunk_s if author else self._paces.get(self.author)
        helpers = (source for source in self._sources.values() if source is not author)
        return not any(index in source.own for source in helpers if not _trails(source, pace, now))

    def _would_hold_up(self, source: _Source) -> bool:
        """Return whether the author sends all that is missing while this source sends one chunk."""
        author = self._sources.get(self.author)
        if author is None or author is source or author.chunk_s is None or source.chunk_s is None:
            return False
        missing = len(self._known().span) - len(self._here)
        return source.chunk_s > max(TRAILS, missing) * author.chunk_s

    def _late(self, source: _Source, now: float) -> int | None:
        """Return a chunk that another source has taken too long for; None where there is none."""
        if source.chunk_s is None:
            return None  # one that has sent nothing yet is no better than the other source
        strict = source is self._sources.get(self.author)  # it has the chunk: not put off by waiting sources
        late = self._overdue(source, source.chunk_s, now, strict=strict)
        return next((index for index in late if source.lacks.get(index, now) <= now), None)

    def _overdue(self, source: _Source | None, chunk_s: float, now: float, *, strict: bool) -> list[int]:
        """Return the chunks that others than `source`, which takes `chunk_s` for one, have been at for too long; none
        where enough chunks were requested twice. `strict`: also those that they say they are about to have."""
        askers = self._askers()
        if sum(count > 1 for count in askers.values()) >= TWICE:
            return []
        patience = max(LATE_S, 2.0 * chunk_s)
        late = (
            (asked.first, index)
            for other in self._sources.values()
            for index, asked in other.under_way.items()
            if other is not source
            and askers.get(index) == 1
            and now - (asked.first if strict else asked.last) > max(patience, _granted_s(other, chunk_s))
        )
        return [index for _, index in sorted(late)]


def _trails(source: _Source, chunk_s: float | None, now: float) -> bool:
    """Return whether a source is much slower than one that takes `chunk_s` for a chunk, or has not sent its first one
    nor said that it waits for it."""
    if chunk_s is None:
        return False
    if source.chunk_s is None:
        silent_s = max((now - asked.last for asked in source.under_way.values()), default=0.0)
        return silent_s > max(LATE_S, TRAILS * chunk_s)
    return source.chunk_s > TRAILS * chunk_s


def _granted_s(source: _Source, chunk_s: float) -> float:
    """Return the seconds that a source has for a chunk before one that takes `chunk_s` is asked for it as well."""
    return 0.0 if source.chunk_s is None or source.chunk_s > TRAILS * chunk_s else 2.0 * source.chunk_s


def _window(chunk_s: float) -> int:
    """Return how many chunks to request ahead from a source that takes `chunk_s` seconds for one."""
    return AHEAD if chunk_s * AHEAD <= PLAN_S else max(1, math.ceil(PLAN_S / chunk_s))
