"""Our own chain: we sign its links, keep the last few with their payloads, and offer snapshots.

Memory holds the history, the refinements of the newest link, and two snapshots: the newest, and the one that the newest
mark names or, where that is too old, the one before, which a slow puller may still be reading. A snapshot that nobody
asked for makes room for the next. Everything older is dropped at once, so that a node holds as much at round 60 as at
round 20.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gossip.blobs.blob import BlobManifest, BlobStore
from gossip.core.api import BlobFile, Head
from gossip.core.digests import NO_DIGEST
from gossip.core.envelope import Scope, seal
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import Digest
from gossip.core.limits import MARK_EVERY, MAX_CODEC_CHARS, MAX_LAYERS
from gossip.core.statements import (
    Layer,
    SnapshotOffer,
    UpdateHeader,
    UpdateHeaderBody,
    parse_snapshot_offer,
    parse_update_header,
    snapshot_offer_statement,
    update_header_statement,
)

SNAPSHOTS_HELD: Final = 2
REUSE_WITHIN: Final = MARK_EVERY
"""A snapshot at most this many links old is offered again: the asker catches up by links, one snapshot serves many
askers, and the newest mark is offered until the next (neighbour.py: `witness`)."""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """Bytes to publish, hashed beforehand."""

    manifest: BlobManifest
    data: bytes | BlobFile


class Publisher:
    """Signs this node's headers, and holds its payloads and snapshots."""

    def __init__(self, identity: Identity, scope: Scope, history: int, max_payload_bytes: int) -> None:
        self._identity = identity
        self._scope = scope
        self._history = history
        self._max_payload_bytes = max_payload_bytes
        # Every payload of the history, two snapshots, one link's refinements and one blob being added.
        self.blobs = BlobStore((history + SNAPSHOTS_HELD + MAX_LAYERS + 1) * max_payload_bytes)
        self._layers: list[Digest] = []
        """The addresses of the newest link's refinements, coarsest first. Two are alike where nothing is left out."""
        self._links: deque[UpdateHeader] = deque()
        self._offers: deque[SnapshotOffer] = deque()
        self._marked: tuple[int, int] | None = None
        """The place of our newest link that names the state after it."""
        self._wanted: set[Digest] = set()
        """Addresses of the offers that were given to a peer."""

    @property
    def newest(self) -> UpdateHeader | None:
        """Our newest link; None before the first epoch."""
        return self._links[-1] if self._links else None

    def head(self) -> Head:
        """Return our newest link's name. Raises LocalError before the first epoch."""
        link = self._require()
        return Head(epoch=link.epoch, seq=link.seq, digest=link.digest)

    def begin(self, *, epoch: int, round: int, base: Payload | Digest) -> UpdateHeader:
        """Start a chain from the genesis (its digest) or from a snapshot. Raises LocalError on an old epoch."""
        if self.newest is not None and epoch <= self.newest.epoch:
            raise LocalError(f"epoch {epoch} is not later than {self.newest.epoch}")
        if isinstance(base, Payload):
            address = self._hold(base)
            body = UpdateHeaderBody(round=round, kind="snapshot", size=base.manifest.size)
        else:
            address, body = NO_DIGEST, UpdateHeaderBody(round=round, kind="genesis", genesis=base)
        link = self._sign(epoch=epoch, seq=0, prev=NO_DIGEST, address=address, body=body)
        while self._links:
            self._let_go(self._links.popleft().address)
        while self._offers:
            self._let_go(self._offers.popleft().address)
        self._wanted.clear()
        self._marked = None
        self._drop_layers()
        self._links.append(link)
        return link

    @property
    def may_mark(self) -> bool:
        """Return whether our next link may name the state after it: a peer that gets this state must find the links
        since held."""
        newest = self.newest
        return newest is not None and (newest.seq + 1) % MARK_EVERY == 0 and self._history > REUSE_WITHIN

    def extend(
        self,
        *,
        round: int,
        codec: str,
        payload: Payload,
        steps: int,
        tokens: int,
        state: Payload | None = None,
        layers: Sequence[tuple[str, Payload]] = (),
    ) -> UpdateHeader:
        """Publish the next delta, marked with `state` and offered from then on if there is one. `layers`: its
        refinements, each by the codec that reads it. Raises LocalError before the first epoch, or on a payload that
        cannot be sent."""
        newest = self._require()
        for blob in (payload, *([state] if state else []), *(refinement for _, refinement in layers)):
            self._check_size(blob)
        for name in (codec, *(name for name, _ in layers)):
            if not 0 < len(name) <= MAX_CODEC_CHARS:
                raise LocalError(f"a codec's name has 1 to {MAX_CODEC_CHARS} characters: {name!r}")
        if len(layers) > MAX_LAYERS:
            raise LocalError(f"an update has at most {MAX_LAYERS} refinements, not {len(layers)}")
        body = UpdateHeaderBody(
            round=round,
            kind="delta",
            codec=codec,
            size=payload.manifest.size,
            steps=steps,
            tokens=tokens,
            state=state.manifest.address if state else None,
            layers=tuple(
                Layer(codec=name, size=blob.manifest.size, address=blob.manifest.address) for name, blob in layers
            ),
        )
        self._drop_layers()
        address = self._hold(payload)
        self._layers = [self._hold(refinement) for _, refinement in layers]
        link = self._sign(epoch=newest.epoch, seq=newest.seq + 1, prev=newest.digest, address=address, body=body)
        self._links.append(link)
        while len(self._links) > self._history:
            self._let_go(self._links.popleft().address)
        if state is not None:
            self._marked = link.place
            self._offer(link, state)
        return link

    def layer_at(self, address: Digest) -> int:
        """Return which refinement of our newest link a blob is, from 1; 0 for any other blob, and for its payload."""
        newest = self.newest
        is_layer = address in self._layers and newest is not None and address != newest.address
        return self._layers.index(address) + 1 if is_layer else 0

    def links(self, epoch: int, first: int, count: int) -> list[bytes]:
        """Return the requested envelopes that are held, without a gap; none when the first is not held."""
        held = [link for link in self._links if link.epoch == epoch and first <= link.seq < first + count]
        return [link.raw for link in held] if held and held[0].seq == first else []

    def offer(self, head: Head, payload: Payload) -> SnapshotOffer:
        """Sign and hold a snapshot of the estimate at `head`. Raises LocalError when that is no link of ours."""
        link = next((link for link in self._links if link.digest == head.digest), None)
        if link is None:
            raise LocalError("a snapshot must belong to a recent link")
        offer = self._offer(link, payload)
        self._wanted.add(offer.address)
        return offer

    def _offer(self, link: UpdateHeader, payload: Payload) -> SnapshotOffer:
        statement = snapshot_offer_statement(
            epoch=link.epoch,
            seq=link.seq,
            head=link.digest,
            address=self._hold(payload),
            round=link.body.round,
            size=payload.manifest.size,
        )
        offer = parse_snapshot_offer(seal(self._identity, self._scope, statement))
        wanted = [held for held in self._offers if held.address in self._wanted]
        # What the newest mark names stays, asked for or not: a witness expects it, also after a later one was cut.
        marks = [held for held in self._offers if held.place == self._marked and self._is_recent(held)]
        kept = (marks or wanted)[1 - SNAPSHOTS_HELD :]
        for held in self._offers:
            if not any(held is each for each in kept):
                self._let_go(held.address)
        self._offers = deque((*kept, offer))
        self._wanted.intersection_update(held.address for held in kept)
        return offer

    def held_offer(self, epoch: int, seq: int) -> SnapshotOffer | None:
        """Return a snapshot at (epoch, seq) or later that still leads to our head: the one that the newest mark names,
        if it is among them. Raises RemoteError before an epoch."""
        newest = self.newest
        if newest is None or (epoch, seq) > newest.place:
            raise RemoteError(Reason.UNAVAILABLE, "there is no such link yet")
        asked = epoch, seq
        fit = [it for it in self._offers if it.place >= asked and self._is_recent(it) and not self._is_owed(it, asked)]
        if not fit:
            return None
        offer = max(fit, key=lambda it: it.place)
        self._wanted.add(offer.address)
        return offer

    def _is_recent(self, offer: SnapshotOffer) -> bool:
        return self._require().seq - offer.seq <= min(REUSE_WITHIN, self._history - 1)

    def _is_owed(self, offer: SnapshotOffer, asked: tuple[int, int]) -> bool:
        """Return whether witnesses expect an earlier one in its place (neighbour.py: `witness`)."""
        marked = self._marked
        return marked is not None and asked <= marked < offer.place and offer.seq - marked[1] <= REUSE_WITHIN

    def is_offer(self, address: Digest) -> bool:
        """Return whether this blob is a snapshot or a snapshot base."""
        bases = any(link.address == address and link.seq == 0 for link in self._links)
        return bases or any(offer.address == address for offer in self._offers)

    def _require(self) -> UpdateHeader:
        if self.newest is None:
            raise LocalError("no epoch has begun")
        return self.newest

    def _check_size(self, payload: Payload) -> None:
        size = payload.manifest.size
        if not 0 < size <= self._max_payload_bytes:  # neighbours with the same limit would charge us for it
            raise LocalError(f"a payload has 1 to {self._max_payload_bytes} bytes, not {size} (max_payload_bytes)")

    def _hold(self, payload: Payload) -> Digest:
        self._check_size(payload)
        return self.blobs.put(payload.manifest, payload.data)

    def _drop_layers(self) -> None:
        while self._layers:
            self._let_go(self._layers.pop())

    def _let_go(self, address: Digest) -> None:
        if address != NO_DIGEST:
            self.blobs.drop(address)

    def _sign(self, *, epoch: int, seq: int, prev: Digest, address: Digest, body: UpdateHeaderBody) -> UpdateHeader:
        statement = update_header_statement(epoch=epoch, seq=seq, prev=prev, address=address, body=body)
        return parse_update_header(seal(self._identity, self._scope, statement))
