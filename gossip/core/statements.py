"""What peers sign: links of a chain, snapshot offers, peer records, goodbyes, regions' models. Encoders, and strict
parsers.

A parser takes an `Envelope` whose signature and scope are checked, and raises RemoteError and nothing else.
"""

import re
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final, Literal, get_args

from gossip.core.api import UpdateKind
from gossip.core.digests import DIGEST_BYTES, NO_DIGEST
from gossip.core.envelope import Envelope, EnvelopeKind, Statement, body_of
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import (
    MARK_EVERY,
    MAX_ADDRESS_CHARS,
    MAX_ADDRESSES,
    MAX_BLOB_BYTES,
    MAX_CODEC_CHARS,
    MAX_LAYERS,
    MAX_RECORD_NEIGHBOURS,
    MAX_REGION_CHARS,
    MAX_REGION_MEMBERS,
    TAG_BYTES,
)
from gossip.core.wire import Fields, malformed, pack

_REGION: Final = re.compile(rf"[a-z0-9]([a-z0-9_-]{{0,{MAX_REGION_CHARS - 2}}}[a-z0-9])?")
_SHARED_LABELS: Final = 64
"""Labels of regions of which one copy is kept: more than a run has. Chosen."""

_UPDATE_KINDS: Final = frozenset(get_args(UpdateKind))


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A refinement of an update: what its payload left out, in a further codec. `size`: bytes of the blob `address`."""

    codec: str
    size: int
    address: Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateHeaderBody:
    """What a link says of its update. `size`: payload bytes. `genesis`: the initial model's digest, in genesis links
    only. `state`: the address of the estimate after this link, in marked deltas only (limits.MARK_EVERY). `layers`: the
    refinements of a delta, coarsest first."""

    round: int
    kind: UpdateKind
    codec: str = ""
    size: int = 0
    steps: int = 0
    tokens: int = 0
    genesis: Digest | None = None
    state: Digest | None = None
    layers: tuple[Layer, ...] = ()

    def encode(self) -> bytes:
        """Return the body of the statement."""
        fields = (self.round, self.kind, self.codec, self.size, self.steps, self.tokens)
        if self.genesis is not None:
            return pack((*fields, self.genesis))
        if self.kind != "delta":
            return pack(fields)
        layers = [(layer.codec, layer.size, layer.address) for layer in self.layers]
        return pack((*fields, self.state or b"", *([layers] if layers else [])))


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateHeader:
    """One signed step of a peer's chain. `address` names its payload's blob; equal links have equal digests."""

    peer: PeerId
    epoch: int
    seq: int
    digest: Digest
    prev: Digest
    address: Digest
    body: UpdateHeaderBody
    raw: bytes = field(repr=False)

    @property
    def place(self) -> tuple[int, int]:
        """(epoch, seq): the position of this link in all the peer's chains."""
        return self.epoch, self.seq


def update_header_statement(
    *, epoch: int, seq: int, prev: Digest, address: Digest, body: UpdateHeaderBody
) -> Statement:
    """Return the statement of a link."""
    return Statement(kind=EnvelopeKind.LINK, epoch=epoch, seq=seq, prev=prev, payload=address, body=body.encode())


def parse_update_header(envelope: Envelope) -> UpdateHeader:
    """Parse the link inside a LINK envelope."""
    stated = envelope.statement
    if stated.kind is not EnvelopeKind.LINK:
        raise RemoteError(Reason.UNKNOWN_KIND, f"{stated.kind.value} where a link is expected")
    link = UpdateHeader(
        peer=envelope.sender,
        epoch=stated.epoch,
        seq=stated.seq,
        digest=envelope.digest,
        prev=stated.prev,
        address=stated.payload,
        body=_parse_link_body(envelope),
        raw=envelope.raw,
    )
    _check_link(link)
    return link


def _parse_link_body(envelope: Envelope) -> UpdateHeaderBody:
    fields = body_of(envelope)
    round_ = fields.integer()
    kind = fields.text(16)
    if kind not in _UPDATE_KINDS:
        raise RemoteError(Reason.UNKNOWN_KIND, f"an update of kind {kind}")
    codec, size = fields.text(MAX_CODEC_CHARS), fields.integer(MAX_BLOB_BYTES)
    steps, tokens = fields.integer(), fields.integer()
    genesis = fields.digest() if kind == "genesis" else None
    state = fields.binary(DIGEST_BYTES) if kind == "delta" else b""
    layers = _parse_layers(fields.array(MAX_LAYERS)) if kind == "delta" and fields.left else ()
    fields.end()
    if len(state) not in (0, DIGEST_BYTES):
        raise malformed("a state is named by a digest")
    known: Literal["genesis", "snapshot", "delta"] = kind  # type: ignore[assignment]  # checked above
    return UpdateHeaderBody(
        round=round_,
        kind=known,
        codec=codec,
        size=size,
        steps=steps,
        tokens=tokens,
        genesis=genesis,
        state=Digest(state) if state else None,
        layers=layers,
    )


def _parse_layers(items: Fields) -> tuple[Layer, ...]:
    if not items.left:
        raise malformed("no layers are said by leaving them out")
    layers = []
    while items.left:
        fields = items.array(3)
        layer = Layer(codec=fields.text(MAX_CODEC_CHARS), size=fields.integer(MAX_BLOB_BYTES), address=fields.digest())
        fields.end()
        layers.append(layer)
    return tuple(layers)


def _check_link(link: UpdateHeader) -> None:
    """Refuse a link that no honest encoder writes."""
    base = link.seq == 0
    if base == (link.body.kind == "delta"):
        raise RemoteError(Reason.PROTOCOL, "a chain begins with a base, and nowhere else is one")
    if base != (link.prev == NO_DIGEST):
        raise RemoteError(Reason.PROTOCOL, "only a base has no previous link")
    empty = link.body.kind == "genesis"
    if empty != (link.address == NO_DIGEST) or empty != (link.body.size == 0):
        raise RemoteError(Reason.PROTOCOL, "a genesis, and nothing else, has no payload")
    if any(layer.size == 0 or layer.address == NO_DIGEST for layer in link.body.layers):
        raise RemoteError(Reason.PROTOCOL, "a layer without a payload")
    if link.body.state is not None and link.seq % MARK_EVERY:
        raise RemoteError(Reason.PROTOCOL, f"only every {MARK_EVERY}th link names a state")


@dataclass(frozen=True, kw_only=True)
class SnapshotOffer:
    """A snapshot of a peer's public estimate: the link it belongs to, and the blob that holds it."""

    peer: PeerId
    epoch: int
    seq: int
    head: Digest
    address: Digest
    round: int
    size: int
    raw: bytes = field(repr=False)

    @property
    def place(self) -> tuple[int, int]:
        """(epoch, seq) of the link that the snapshot belongs to."""
        return self.epoch, self.seq


def snapshot_offer_statement(
    *, epoch: int, seq: int, head: Digest, address: Digest, round: int, size: int
) -> Statement:
    """Return the statement of an offer."""
    return Statement(
        kind=EnvelopeKind.OFFER, epoch=epoch, seq=seq, prev=head, payload=address, body=pack((round, size))
    )


def parse_snapshot_offer(envelope: Envelope) -> SnapshotOffer:
    """Parse the offer inside an OFFER envelope."""
    stated = envelope.statement
    if stated.kind is not EnvelopeKind.OFFER:
        raise RemoteError(Reason.UNKNOWN_KIND, f"{stated.kind.value} where an offer is expected")
    fields = body_of(envelope)
    round_, size = fields.integer(), fields.integer(MAX_BLOB_BYTES)
    fields.end()
    if size == 0:
        raise malformed("an empty snapshot")
    return SnapshotOffer(
        peer=envelope.sender,
        epoch=stated.epoch,
        seq=stated.seq,
        head=stated.prev,
        address=stated.payload,
        round=round_,
        size=size,
        raw=envelope.raw,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerRecord:
    """Where a peer says it can be dialled, who its neighbours are, and which region it is of. Of two records the one
    with the larger (epoch, version) holds. `tags`: of its neighbours, one after the other (discovery/topology.py)."""

    peer: PeerId
    epoch: int
    version: int
    addresses: tuple[str, ...]
    raw: bytes = field(repr=False)
    tags: bytes = field(default=b"", repr=False)
    region: str = ""

    @property
    def beside(self) -> tuple[bytes, ...]:
        """The tag of each neighbour."""
        return tuple(self.tags[at : at + TAG_BYTES] for at in range(0, len(self.tags), TAG_BYTES))


def record_statement(
    *, epoch: int, version: int, addresses: tuple[str, ...], beside: tuple[bytes, ...] = (), region: str = ""
) -> Statement:
    """Return the statement of a record; addresses and neighbours beyond the wire's bounds are left out, and so is the
    region of a swarm that has none."""
    kept = [address for address in addresses if len(address) <= MAX_ADDRESS_CHARS][:MAX_ADDRESSES]
    fields = (kept, beside[:MAX_RECORD_NEIGHBOURS])
    body = pack((*fields, region) if region else fields)
    return Statement(kind=EnvelopeKind.RECORD, epoch=epoch, seq=version, prev=NO_DIGEST, payload=NO_DIGEST, body=body)


def parse_record(envelope: Envelope) -> PeerRecord:
    """Parse the record inside a RECORD envelope; every address must name the signer, or it would send us to a
    stranger."""
    stated = envelope.statement
    if stated.kind is not EnvelopeKind.RECORD:
        raise RemoteError(Reason.UNKNOWN_KIND, f"{stated.kind.value} where a record is expected")
    fields = body_of(envelope)
    items, tags = fields.array(MAX_ADDRESSES), fields.array(MAX_RECORD_NEIGHBOURS)
    region = region_in(fields) if fields.left else ""
    fields.end()
    addresses = tuple(items.text(MAX_ADDRESS_CHARS) for _ in range(items.left))
    beside = b"".join(tags.exactly(TAG_BYTES) for _ in range(tags.left))
    if not all(address.startswith("/") and address.endswith(f"/p2p/{envelope.sender}") for address in addresses):
        raise malformed("an address that does not name its peer")
    return PeerRecord(
        peer=envelope.sender,
        epoch=stated.epoch,
        version=stated.seq,
        addresses=addresses,
        raw=envelope.raw,
        tags=beside,
        region=_shared(region),
    )


def check_region(label: str) -> str:
    """Return a region's label. ValueError for what is none."""
    if not _REGION.fullmatch(label):
        letters = "small letters and digits, with - and _ between them"
        raise ValueError(f"{label!r} is no region: one has 1 to {MAX_REGION_CHARS} {letters}")
    return label


@lru_cache(maxsize=_SHARED_LABELS)
def _shared(label: str) -> str:
    """A node holds hundreds of records, of a few regions. Python 3.12 never lets go of a string that it interns, and a
    stranger may name any region."""
    return label


def region_in(fields: Fields) -> str:
    """Read a field that is a region's label. Raises RemoteError(MALFORMED)."""
    try:
        return check_region(fields.text(MAX_REGION_CHARS))
    except ValueError as error:
        raise malformed("a region's label that is none") from error


def goodbye_statement(*, epoch: int, seq: int) -> Statement:
    """Return the statement of a peer that leaves the run."""
    return Statement(kind=EnvelopeKind.GOODBYE, epoch=epoch, seq=seq, prev=NO_DIGEST, payload=NO_DIGEST, body=pack(()))


class Stage(IntEnum):
    """Stage of a part: a member's own vector, which others take their parts of, or a part that its owner reduced."""

    WHOLE = 0
    REDUCED = 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """A blob that a member serves in an all-reduce (allreduce/allreduce.py), named by `exchange`; `size` in bytes."""

    peer: PeerId
    exchange: Digest
    round: int
    stage: Stage
    address: Digest
    size: int
    raw: bytes = field(repr=False)


def part_statement(*, exchange: Digest, round: int, stage: Stage, address: Digest, size: int) -> Statement:
    """Return the statement of a part."""
    return Statement(kind=EnvelopeKind.PART, epoch=round, seq=stage, prev=exchange, payload=address, body=pack((size,)))


def parse_part(envelope: Envelope) -> Part:
    """Parse the part inside a PART envelope."""
    stated = envelope.statement
    if stated.kind is not EnvelopeKind.PART:
        raise RemoteError(Reason.UNKNOWN_KIND, f"{stated.kind.value} where a part is expected")
    fields = body_of(envelope)
    size = fields.integer(MAX_BLOB_BYTES)
    fields.end()
    if stated.seq > Stage.REDUCED or size == 0:
        raise malformed("a part of no stage, or an empty one")
    return Part(
        peer=envelope.sender,
        exchange=stated.prev,
        round=stated.epoch,
        stage=Stage(stated.seq),
        address=stated.payload,
        size=size,
        raw=envelope.raw,
    )


@dataclass(frozen=True, kw_only=True)
class RegionalModel:
    """A region's model after a round, as one of its members publishes it for the other regions
    (regions/regional_models.py). `members`: how many the region has. Its blob, of `size` bytes, is read by
    `codec` alone: it is no difference to another one. `averaged`: of how many members it is an average at least, as its
    author says where the run's policy asks for that (regions/residency.py); 0: not said."""

    peer: PeerId
    region: str
    round: int
    codec: str
    members: int
    address: Digest
    size: int
    digest: Digest
    raw: bytes = field(repr=False)
    averaged: int = 0


def regional_statement(
    *, region: str, round: int, codec: str, members: int, address: Digest, size: int, averaged: int = 0
) -> Statement:
    """Return the statement of a region's model; it does not say an `averaged` of 0."""
    said = (averaged,) if averaged else ()
    return Statement(
        kind=EnvelopeKind.REGIONAL,
        epoch=0,
        seq=round,
        prev=NO_DIGEST,
        payload=address,
        body=pack((region, codec, members, size, *said)),
    )


def parse_regional(envelope: Envelope) -> RegionalModel:
    """Parse the model inside a REGIONAL envelope."""
    stated = envelope.statement
    if stated.kind is not EnvelopeKind.REGIONAL:
        raise RemoteError(Reason.UNKNOWN_KIND, f"{stated.kind.value} where a region's model is expected")
    fields = body_of(envelope)
    region, codec = region_in(fields), fields.text(MAX_CODEC_CHARS)
    members, size = fields.integer(MAX_REGION_MEMBERS), fields.integer(MAX_BLOB_BYTES)
    says = bool(fields.left)
    averaged = fields.integer(MAX_REGION_MEMBERS) if says else 0
    fields.end()
    if members == 0 or size == 0 or stated.epoch or stated.prev != NO_DIGEST:
        raise malformed("a region's model of nobody, or an empty one")
    if says and not 1 <= averaged <= members:
        raise malformed("an average of nobody, or of more members than the region has")
    return RegionalModel(
        peer=envelope.sender,
        region=region,
        round=stated.seq,
        codec=codec,
        members=members,
        address=stated.payload,
        size=size,
        digest=envelope.digest,
        raw=envelope.raw,
        averaged=averaged,
    )
