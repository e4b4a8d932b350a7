"""Messages on streams: hellos, requests and responses. Encoders, and strict bounded parsers for both ends.

A request is a msgpack array that begins with its name; a response begins with True and the answer, or with False, a
reason and one line of detail. The transport authenticates a stream's far end, so these are not signed. What must
convince third parties (links, offers, records, goodbyes) is contained as envelopes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gossip.core.digests import RUN_ID_BYTES, SWARM_ID_BYTES
from gossip.core.envelope import Scope
from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import KEY_BYTES
from gossip.core.ids import Digest, RunId, SwarmId
from gossip.core.limits import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_DETAIL_CHARS,
    MAX_ENVELOPE_BYTES,
    MAX_FIND_ANSWER_BYTES,
    MAX_FOUND,
    MAX_HELLO_BYTES,
    MAX_HELLO_RECORDS,
    MAX_LINKS,
    MAX_MANIFEST_BYTES,
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    MAX_STATISTICS_BYTES,
    PROTOCOL_VERSION,
)
from gossip.core.member_messages import (
    BucketsRequest,
    Known,
    MemberRequest,
    MembershipRequest,
    RosterRequest,
    TermsRequest,
    known_fields,
    parse_known,
    parse_membership,
    parse_roster,
    parse_terms,
)
from gossip.core.wire import Fields, pack, unpack


@dataclass(frozen=True, kw_only=True)
class Hello:
    """A greeting: the scope, our newest link and record, and records of peers we know.

    `neighbours`: how many we have, so that a full node can make room for a lonely one, and both ends of an edge can
    give it the same weight. `admitted`: in an answer, whether we take the other as a neighbour. The envelopes are raw
    here; b"" stands for none.
    """

    scope: Scope
    genesis: Digest
    neighbours: int
    admitted: bool
    link: bytes = field(default=b"", repr=False)
    record: bytes = field(default=b"", repr=False)
    records: tuple[bytes, ...] = field(default=(), repr=False)

    def encode(self) -> bytes:
        """Return the wire form."""
        return pack(
            (
                PROTOCOL_VERSION,
                self.scope.swarm,
                self.scope.run,
                self.genesis,
                self.neighbours,
                self.admitted,
                self.link,
                self.record,
                self.records,
            )
        )


def parse_hello(raw: bytes) -> Hello:
    """Parse a hello. Raises RemoteError(PROTOCOL) on another version, MALFORMED or OVERSIZE on nonsense."""
    fields = unpack(raw, MAX_HELLO_BYTES)
    version = fields.integer()
    if version != PROTOCOL_VERSION:
        raise RemoteError(Reason.PROTOCOL, f"protocol version {version}, ours is {PROTOCOL_VERSION}")
    swarm, run = fields.exactly(SWARM_ID_BYTES), fields.exactly(RUN_ID_BYTES)
    genesis, neighbours, admitted = fields.digest(), fields.integer(), fields.boolean()
    link, record = fields.binary(MAX_ENVELOPE_BYTES), fields.binary(MAX_ENVELOPE_BYTES)
    items = fields.array(MAX_HELLO_RECORDS)
    fields.end()
    return Hello(
        scope=Scope(swarm=SwarmId(swarm), run=RunId(run)),
        genesis=genesis,
        neighbours=neighbours,
        admitted=admitted,
        link=link,
        record=record,
        records=tuple(items.binary(MAX_ENVELOPE_BYTES) for _ in range(items.left)),
    )


def check_run(asked: "Hello | FindRequest", scope: Scope, genesis: Digest) -> None:
    """Raise RemoteError(WRONG_SWARM | WRONG_RUN | WRONG_MODEL) on a message for members of another run."""
    theirs = asked.scope
    if theirs.swarm != scope.swarm:
        raise RemoteError(Reason.WRONG_SWARM, "another swarm")
    if theirs.run != scope.run:
        raise RemoteError(Reason.WRONG_RUN, "another run: task, model, base model, or strategy and its options differ")
    if asked.genesis != genesis:
        raise RemoteError(Reason.WRONG_MODEL, "another initial model: the seed differs")


@dataclass(frozen=True, kw_only=True)
class HelloRequest:
    """Says hello; answered by a `Hello`."""

    hello: bytes


@dataclass(frozen=True, kw_only=True)
class HeadersRequest:
    """Asks for `count` links of the chain `epoch`, starting at `first`; answered by the envelopes that are held."""

    epoch: int
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class SnapshotRequest:
    """Asks for a snapshot at (epoch, seq) or later; answered by an OFFER envelope."""

    epoch: int
    seq: int


@dataclass(frozen=True, kw_only=True)
class StateRequest:
    """Asks what the answerer holds of the peer with this public key after its link (epoch, seq); `least`: the seq from
    which on a snapshot was wanted. Answered by an address (updates/neighbour.py: `witness`)."""

    key: bytes
    epoch: int
    seq: int
    least: int


@dataclass(frozen=True, kw_only=True)
class ManifestRequest:
    """Asks for a blob's manifest; answered by it, together with its chunk when there is only one."""

    address: Digest


@dataclass(frozen=True, kw_only=True)
class ChunkRequest:
    """Asks for one chunk; answered by its bytes."""

    address: Digest
    index: int


@dataclass(frozen=True, kw_only=True)
class GoodbyeRequest:
    """Brings a GOODBYE envelope; answered by nothing."""

    envelope: bytes


@dataclass(frozen=True, kw_only=True)
class PartRequest:
    """Brings a PART envelope; answered by nothing."""

    envelope: bytes


@dataclass(frozen=True, kw_only=True)
class SecureRequest:
    """Brings a SECURE envelope, the sender's or one that it passes on; answered by nothing."""

    envelope: bytes


@dataclass(frozen=True, kw_only=True)
class PauseRequest:
    """Says that its sender publishes nothing after `link`, its newest, for some `seconds`; 0: it does not know for how
    long. Answered by nothing."""

    link: bytes
    seconds: int


@dataclass(frozen=True, kw_only=True)
class ShiftRequest:
    """Says that its sender's own data have shifted, as of the round of `link`, its newest. Answered by nothing."""

    link: bytes


@dataclass(frozen=True, kw_only=True)
class StatisticsRequest:
    """Asks for the answerer's class statistics; answered by its STATISTICS envelope and the payload that it names."""


@dataclass(frozen=True, kw_only=True)
class FindRequest:
    """Asks for the members of a run nearest to a place (discovery/routing_table.py); answered by the answerer's own
    record and theirs, nearest first. `record`: the asker's own. The envelopes are raw here; b"" stands for none."""

    swarm: SwarmId
    run: RunId
    genesis: Digest
    target: Digest
    record: bytes = field(default=b"", repr=False)

    @property
    def scope(self) -> Scope:
        """The run whose members are looked for."""
        return Scope(swarm=self.swarm, run=self.run)


Request = (
    HelloRequest
    | HeadersRequest
    | SnapshotRequest
    | StateRequest
    | ManifestRequest
    | ChunkRequest
    | GoodbyeRequest
    | PartRequest
    | SecureRequest
    | PauseRequest
    | ShiftRequest
    | StatisticsRequest
    | FindRequest
    | MemberRequest
)


def encode_request(request: Request) -> bytes:
    """Return the wire form."""
    match request:
        case HelloRequest(hello=hello):
            return pack(("hello", hello))
        case HeadersRequest(epoch=epoch, first=first, count=count):
            return pack(("links", epoch, first, count))
        case SnapshotRequest(epoch=epoch, seq=seq):
            return pack(("snapshot", epoch, seq))
        case StateRequest(key=key, epoch=epoch, seq=seq, least=least):
            return pack(("state", key, epoch, seq, least))
        case ManifestRequest(address=address):
            return pack(("manifest", address))
        case ChunkRequest(address=address, index=index):
            return pack(("chunk", address, index))
        case GoodbyeRequest(envelope=envelope):
            return pack(("goodbye", envelope))
        case PartRequest(envelope=envelope):
            return pack(("part", envelope))
        case SecureRequest(envelope=envelope):
            return pack(("secure", envelope))
        case PauseRequest(link=link, seconds=seconds):
            return pack(("pause", link, seconds))
        case ShiftRequest(link=link):
            return pack(("shift", link))
        case StatisticsRequest():
            return pack(("statistics",))
        case FindRequest(swarm=swarm, run=run, genesis=genesis, target=target, record=record):
            return pack(("find", swarm, run, genesis, target, record))
        case MembershipRequest(page=page):
            return pack(("membership", *known_fields(request.known), page))
        case BucketsRequest():
            return pack(("buckets",))
        case RosterRequest(parts=parts, page=number):
            return pack(("roster", parts, number))
        case TermsRequest(above=above):
            return pack(("terms", above))


_PARSERS: Final[dict[str, Callable[[Fields], Request]]] = {
    "hello": lambda fields: HelloRequest(hello=fields.binary(MAX_HELLO_BYTES)),
    "links": lambda fields: HeadersRequest(
        epoch=fields.integer(), first=fields.integer(), count=fields.integer(MAX_LINKS)
    ),
    "snapshot": lambda fields: SnapshotRequest(epoch=fields.integer(), seq=fields.integer()),
    "state": lambda fields: StateRequest(
        key=fields.exactly(KEY_BYTES), epoch=fields.integer(), seq=fields.integer(), least=fields.integer()
    ),
    "manifest": lambda fields: ManifestRequest(address=fields.digest()),
    "chunk": lambda fields: ChunkRequest(address=fields.digest(), index=fields.integer(MAX_CHUNKS)),
    "goodbye": lambda fields: GoodbyeRequest(envelope=fields.binary(MAX_ENVELOPE_BYTES)),
    "part": lambda fields: PartRequest(envelope=fields.binary(MAX_ENVELOPE_BYTES)),
    "secure": lambda fields: SecureRequest(envelope=fields.binary(MAX_ENVELOPE_BYTES)),
    "pause": lambda fields: PauseRequest(link=fields.binary(MAX_ENVELOPE_BYTES), seconds=fields.integer()),
    "shift": lambda fields: ShiftRequest(link=fields.binary(MAX_ENVELOPE_BYTES)),
    "statistics": lambda fields: StatisticsRequest(),
    "find": lambda fields: FindRequest(
        swarm=SwarmId(fields.exactly(SWARM_ID_BYTES)),
        run=RunId(fields.exactly(RUN_ID_BYTES)),
        genesis=fields.digest(),
        target=fields.digest(),
        record=fields.binary(MAX_ENVELOPE_BYTES),
    ),
    "membership": parse_membership,
    "buckets": lambda fields: BucketsRequest(),
    "roster": parse_roster,
    "terms": parse_terms,
}


def parse_request(raw: bytes | bytearray) -> Request:
    """Parse a request. Raises RemoteError(UNKNOWN_KIND) for a name that is not in the list above."""
    fields = unpack(raw, MAX_REQUEST_BYTES)
    name = fields.text(16)
    if name not in _PARSERS:
        raise RemoteError(Reason.UNKNOWN_KIND, f"a request called {name}")
    request = _PARSERS[name](fields)
    fields.end()
    return request


def encode_answer(*values: bytes | memoryview | int | Sequence[bytes]) -> bytes:
    """Return a response that grants a request."""
    return pack((True, *values))


def encode_refusal(reason: Reason, detail: str) -> bytes:
    """Return a response that refuses a request."""
    line = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in detail)
    return pack((False, reason.value, line[:MAX_DETAIL_CHARS]))


_CHUNK_HEAD: Final = b"\x92\xc3\xc6"
"""An array of two: true, and bytes with a length of four bytes. msgpack writes this for chunks of 64 KiB and more."""


class Refused(RemoteError):  # noqa: N818  # mostly a fact ("not held any more"), seldom a fault
    """The far end refused a request; the asker decides whether that is an offence."""


def _open_response(raw: bytes | bytearray) -> Fields:
    fields = unpack(raw, MAX_RESPONSE_BYTES)
    if fields.boolean():
        return fields
    reason, detail = fields.text(MAX_DETAIL_CHARS), fields.text(MAX_DETAIL_CHARS)
    fields.end()
    known = reason in Reason.__members__.values()
    raise Refused(Reason(reason) if known else Reason.PROTOCOL, detail)


def parse_bytes_answer(raw: bytes | bytearray, most: int) -> bytes:
    """Parse the answer to a hello, snapshot or chunk request. Raises Refused or RemoteError."""
    fields = _open_response(raw)
    value = fields.binary(most)
    fields.end()
    return value


def parse_chunk_answer(raw: bytes | bytearray, size: int) -> bytes | memoryview:
    """Parse the answer to a chunk request: a view of `raw` where it has the usual form. Raises Refused or
    RemoteError."""
    head = _CHUNK_HEAD + size.to_bytes(4, "big")
    if len(raw) == len(head) + size and raw.startswith(head):
        return memoryview(raw)[len(head) :]
    return parse_bytes_answer(raw, size)


def parse_headers_answer(raw: bytes | bytearray) -> tuple[bytes, ...]:
    """Parse the answer to a links request into envelopes. Raises Refused or RemoteError."""
    fields = _open_response(raw)
    items = fields.array(MAX_LINKS)
    fields.end()
    return tuple(items.binary(MAX_ENVELOPE_BYTES) for _ in range(items.left))


def parse_manifest_answer(raw: bytes | bytearray) -> tuple[bytes, bytes]:
    """Parse an answer into a manifest and the only chunk (b"" when there are more). Raises Refused or RemoteError."""
    fields = _open_response(raw)
    manifest, chunk = fields.binary(MAX_MANIFEST_BYTES), fields.binary(CHUNK_BYTES)
    fields.end()
    return manifest, chunk


def parse_statistics_answer(raw: bytes | bytearray) -> tuple[bytes, bytes]:
    """Parse an answer into a STATISTICS envelope and its payload. Raises Refused or RemoteError."""
    fields = _open_response(raw)
    envelope, payload = fields.binary(MAX_ENVELOPE_BYTES), fields.binary(MAX_STATISTICS_BYTES)
    fields.end()
    return envelope, payload


def parse_find_answer(raw: bytes | bytearray) -> tuple[bytes, tuple[bytes, ...]]:
    """Parse an answer into the answerer's own record (b"": none), and those of others. Raises Refused or
    RemoteError."""
    if len(raw) > MAX_FIND_ANSWER_BYTES:
        raise RemoteError(Reason.OVERSIZE, f"{len(raw)} bytes of records")
    fields = _open_response(raw)
    own, items = fields.binary(MAX_ENVELOPE_BYTES), fields.array(MAX_FOUND)
    fields.end()
    return own, tuple(items.binary(MAX_ENVELOPE_BYTES) for _ in range(items.left))


def parse_known_answer(raw: bytes | bytearray) -> Known:
    """Parse what a member says that it knows. Raises Refused or RemoteError."""
    fields = _open_response(raw)
    known = parse_known(fields)
    fields.end()
    return known


def parse_empty_answer(raw: bytes | bytearray) -> None:
    """Check the answer to a goodbye, a part, a pause, a shift or a statement of a secure sum. Raises Refused or
    RemoteError."""
    _open_response(raw).end()
