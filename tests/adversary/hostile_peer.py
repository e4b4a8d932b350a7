"""A hostile node: it speaks the wire itself, answers every request truthfully until it is told not to, and asks anybody
for anything.

What it answers falsely is a `Fault`: which request, how, and to whom. All of it runs on the virtual clock, so that a
byte a second costs no time.
"""

import random
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio
from hostile_chain import HostileChain

from gossip.class_statistics.statement import sealed_statistics
from gossip.core.errors import GossipError, Reason, RemoteError
from gossip.core.identity import Identity, peer_id_of
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import CHUNK_BYTES, MAX_RESPONSE_BYTES
from gossip.core.member_messages import (
    BucketsRequest,
    Known,
    MemberRequest,
    MembershipRequest,
    RosterRequest,
    TermsRequest,
    known_fields,
    unpack_parts,
)
from gossip.core.messages import (
    ChunkRequest,
    FindRequest,
    GoodbyeRequest,
    HeadersRequest,
    Hello,
    HelloRequest,
    ManifestRequest,
    PartRequest,
    PauseRequest,
    Request,
    SecureRequest,
    ShiftRequest,
    SnapshotRequest,
    StateRequest,
    StatisticsRequest,
    encode_answer,
    encode_refusal,
    parse_bytes_answer,
    parse_request,
)
from gossip.membership import MembershipAdmission, parse_page
from gossip.membership.anti_entropy import AntiEntropy
from gossip.reachability.circuit import (
    HOP_PROTOCOL,
    STOP_PROTOCOL,
    CircuitKind,
    CircuitMessage,
    CircuitStatus,
    Reservation,
    encode_hop,
    encode_stop,
    parse_hop,
)
from gossip.reachability.delimited_task import receive_message, send_message
from gossip.reachability.dialback import DIALBACK_PROTOCOL, encode_sighting, parse_ask
from gossip.reachability.vouchers import seal_voucher
from gossip.session import FrameStream, ask_once
from gossip.transport.base import Stream, TransportError

if TYPE_CHECKING:
    from adversary_stage import Stage

PATIENCE_S: Final = 20.0
HANG_S: Final = 60.0
"""What never answers holds its own stream so long."""

LATE_S: Final = 9.0
"""Just within the ten seconds that honest nodes wait for an answer."""

HEARD: Final = 256
"""Broadcasts of others that are kept, to be played again."""

LENGTH: Final = struct.Struct(">I")

FAULTS: Final = ("refuse", "hang", "late", "trickle", "truncate", "garbage", "oversize", "wrong", "extra")
"""refuse: says no. hang: says nothing. late: the truth after LATE_S. trickle: a byte a second. truncate: half of it,
and the end. garbage: random bytes. oversize: a length of 2 GiB. wrong: well-formed, and a lie. extra: a field too
many."""

RELAYED: Final = ("carry", "refuse", "other", "alter", "lose", "late", "repeat", "hang")
"""What becomes of a circuit through it."""

ANSWERED: Final = {
    HelloRequest: "hello",
    HeadersRequest: "links",
    SnapshotRequest: "snapshot",
    StateRequest: "state",
    ManifestRequest: "manifest",
    ChunkRequest: "chunk",
    GoodbyeRequest: "goodbye",
    PartRequest: "part",
    FindRequest: "find",
    MembershipRequest: "membership",
    BucketsRequest: "buckets",
    RosterRequest: "roster",
    TermsRequest: "terms",
    PauseRequest: "pause",
    SecureRequest: "secure",
    ShiftRequest: "shift",
    StatisticsRequest: "statistics",
}
"""What honest nodes ask, by the name on the wire; the last four where nodes pause, within a secure sum, where data
shift, or where a newcomer warms up alone, and the four before those in a private swarm alone."""


@dataclass(frozen=True)
class HeldBack:
    """When a blob is served, and to whom: those of `towards`, or whoever asks. `torn`: half of the answer."""

    seconds: float
    torn: bool
    towards: frozenset[PeerId]


@dataclass(frozen=True)
class Fault:
    """How a request is answered, instead of truthfully."""

    request: str
    how: str
    towards: frozenset[PeerId]
    """Empty: whoever asks."""


class HostilePeer:
    """`heard`: broadcasts of others. `passes_on`: whether it forwards them. `records`: what it tells others of whom."""

    def __init__(self, stage: "Stage", identity: Identity, admission: MembershipAdmission | None = None) -> None:
        self.identity = identity
        self.stage = stage
        self.transport = stage.network.attach(identity.peer_id, admission)
        self.transport.circuit_end = self._end_of_circuit
        self.spread = None if admission is None else AntiEntropy(admission)
        """What it knows of the members, where the swarm is private."""
        self.terms: bytes | None = None
        """The manifest that it gives; None: the true one."""
        self.chain = HostileChain(identity, stage.scope, stage.genesis, stage.genesis_d)
        self.rng = random.Random(f"{stage.seed}/{identity.peer_id}")
        self.heard: deque[bytes] = deque(maxlen=HEARD)
        self.goodbyes: deque[bytes] = deque(maxlen=16)
        """Of others, said to it."""
        self.statistics: bytes | None = None
        """What it states of its data; None: nothing."""
        self.faults: list[Fault] = []
        self.held_back: dict[Digest, HeldBack] = {}
        """By address, blobs that are not served at once."""
        self.passes_on = True
        self.admits = True
        self.neighbours = 4
        """What it says of itself."""
        self.records: list[bytes] = []
        self.version = 0
        self.record = b""
        self.scope = trio.CancelScope()
        self.tells_record = True

    @property
    def peer(self) -> PeerId:
        """Its name."""
        return self.identity.peer_id

    @property
    def address(self) -> str:
        """Where it is dialled."""
        return self.transport.addresses[0]

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Listen until `leave`, or the end of the run."""
        self.sign_record(self.address)
        with self.scope:
            await self.transport.run(self, task_status=task_status)

    def sign_record(self, *addresses: str) -> None:
        """A newer record, at these addresses."""
        self.version += 1
        self.record = self.chain.record(*addresses, version=self.version)

    # -- asking

    async def meet(self, address: str) -> None:
        """Dial, and say hello."""
        with suppress(GossipError):
            peer = await self.transport.dial(address)
            await self.greet(peer)

    async def greet(self, peer: PeerId, hello: bytes | None = None) -> None:
        """A hello to who is connected."""
        with suppress(GossipError):
            raw = await self.ask(peer, HelloRequest(hello=self.hello() if hello is None else hello))
            parse_bytes_answer(raw, MAX_RESPONSE_BYTES)

    async def ask(self, peer: PeerId, request: Request) -> bytes | bytearray:
        """Any request at all, on a stream of its own. Raises RemoteError, TransportError."""
        return await ask_once(self.transport, peer, request, PATIENCE_S, MAX_RESPONSE_BYTES)

    async def tell(self, *raws: bytes) -> None:
        """Broadcast."""
        for raw in raws:
            with suppress(TransportError):
                await self.transport.publish(raw)

    async def say_goodbye(self, *peers: PeerId) -> None:
        """To each of these, or to all who are connected."""
        raw = self.chain.goodbye()
        for peer in peers or sorted(self.transport.peers):
            with suppress(GossipError):
                await self.ask(peer, GoodbyeRequest(envelope=raw))

    def leave(self) -> None:
        """Be gone, without a word."""
        self.scope.cancel()

    def hello(self, **changes: object) -> bytes:
        """Its own, with these fields changed."""
        fields: dict[str, object] = {
            "scope": self.stage.scope,
            "genesis": self.stage.genesis,
            "neighbours": self.neighbours,
            "admitted": self.admits,
            "link": self.chain.raw,
            "record": self.record if self.tells_record else b"",
            "records": tuple(self.records[:32]),
        }
        return Hello(**{**fields, **changes}).encode()  # type: ignore[arg-type]

    @contextmanager
    def lying(self, fault: Fault) -> Iterator[None]:
        """Answer so for the length of the block."""
        self.faults.append(fault)
        try:
            yield
        finally:
            self.faults.remove(fault)

    def known(self) -> Known:
        """What it knows of the members."""
        assert self.spread is not None
        return self.spread.known()

    # -- called by its transport

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """Answer what is asked."""
        try:
            if protocol == DIALBACK_PROTOCOL:
                await self._dial_back(stream)
            elif protocol == HOP_PROTOCOL:
                await self._relay(stream)
            else:
                await self._serve(stream)
        except (RemoteError, TransportError):
            await stream.reset()

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        """A broadcast."""
        self.heard.append(data)
        return self.passes_on

    def peer_connected(self, peer: PeerId) -> None:
        """Whoever comes is greeted by the moves."""

    def peer_lost(self, peer: PeerId) -> None:
        """And missed by them."""

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        """Nobody."""
        return frozenset()

    def keeps(self, peer: PeerId) -> bool:
        """Everybody."""
        return True

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        """It minds nothing."""

    def caller_refused(self, caller: str, why: str) -> None:
        """Nor this."""

    # -- insides

    async def _serve(self, stream: Stream) -> None:
        frames = FrameStream(stream, HANG_S)
        while (raw := await frames.receive(MAX_RESPONSE_BYTES)) is not None:
            request = parse_request(raw)
            name = ANSWERED.get(type(request), "")
            if isinstance(request, GoodbyeRequest):
                self.goodbyes.append(request.envelope)
            fault = next((it for it in self.faults if it.request == name and self._means(it, stream.remote)), None)
            if fault is None and await self._held_back(stream, request):
                return
            if fault is None:
                await frames.send(self._truth(request))
            elif not await self._lie(stream, frames, request, fault.how):
                return

    async def _held_back(self, stream: Stream, request: Request) -> bool:
        """Wait as long as the blob that is asked for is held back; return whether half of it was sent, and the end."""
        held = self.held_back.get(request.address) if isinstance(request, ManifestRequest | ChunkRequest) else None
        if held is None or (held.towards and stream.remote not in held.towards):
            return False
        await trio.sleep(held.seconds)
        if held.torn:
            truth = self._truth(request)
            await stream.send_all(LENGTH.pack(len(truth)) + truth[: len(truth) // 2])
            await stream.close()
        return held.torn

    def _means(self, fault: Fault, peer: PeerId) -> bool:
        return not fault.towards or peer in fault.towards

    async def _end_of_circuit(self, stream: Stream) -> None:
        """Takes a circuit and fills it, says something that is no answer, or says nothing."""
        with suppress(RemoteError, TransportError):
            match self.rng.randrange(3):
                case 0:
                    await send_message(stream, encode_stop(_status(CircuitStatus.OK)), PATIENCE_S)
                    with trio.move_on_after(HANG_S):
                        while True:
                            await stream.send_all(bytes(4096))
                            await trio.sleep(1.0)
                case 1:
                    await stream.send_all(self.rng.randbytes(40))
            await trio.sleep(HANG_S)

    async def _relay(self, near: Stream) -> None:
        """Grants every reservation, and makes of a circuit what it likes: carries it, or alters a byte, loses, holds
        back or repeats a piece of it, joins somebody else, or nobody."""
        asked = parse_hop(await receive_message(near, PATIENCE_S) or b"")
        if asked.kind is CircuitKind.RESERVE:
            await self._grant(near)
            return
        how = self.rng.choice(RELAYED)
        target = self.rng.choice(sorted(self.transport.peers)) if how == "other" else asked.peer
        if how == "refuse" or target is None:
            await send_message(near, encode_hop(_status(CircuitStatus.NO_RESERVATION)), PATIENCE_S)
            return
        far = await self.transport.open_stream(target, STOP_PROTOCOL)
        await send_message(far, encode_stop(CircuitMessage(kind=CircuitKind.CONNECT, peer=near.remote)), PATIENCE_S)
        await receive_message(far, PATIENCE_S)
        await send_message(near, encode_hop(_status(CircuitStatus.OK)), PATIENCE_S)
        after = self.rng.randrange(200)
        async with trio.open_nursery() as nursery:
            for source, sink in ((near, far), (far, near)):
                nursery.start_soon(self._carry, source, sink, how, after)

    async def _grant(self, stream: Stream) -> None:
        expire = int(trio.current_time()) + self.rng.choice([1, 60, 1 << 40])  # of a wall clock of its own
        voucher = seal_voucher(self.identity, stream.remote, expire)
        reservation = Reservation(expire=expire, voucher=self.rng.choice([None, voucher, bytes(40)]))
        await send_message(stream, encode_hop(_status(CircuitStatus.OK, reservation)), PATIENCE_S)

    async def _carry(self, source: Stream, sink: Stream, how: str, after: int) -> None:
        """Piece by piece, and one in so many as `how` says."""
        pieces = 0
        with suppress(TransportError):
            while piece := await source.receive_some(4096):
                pieces += 1
                if pieces > after:
                    match how:
                        case "alter":
                            piece = bytes([piece[0] ^ 1]) + piece[1:]
                        case "lose":
                            continue
                        case "late":
                            await trio.sleep(LATE_S)
                        case "repeat":
                            piece += piece
                        case "hang":
                            await trio.sleep(HANG_S)
                await sink.send_all(piece)
        await sink.reset()

    async def _dial_back(self, stream: Stream) -> None:
        frames = FrameStream(stream, PATIENCE_S)
        raw = await frames.receive(64)
        if raw is not None:
            port = parse_ask(raw)[0]
            await frames.send(encode_sighting({f"/memory/{port}": not self.faults}))
            await stream.close()

    def _truth(self, request: Request) -> bytes:
        match request:
            case HelloRequest():
                return encode_answer(self.hello())
            case HeadersRequest(epoch=epoch, first=first, count=count):
                held = [link.raw for link in self.chain.links if link.epoch == epoch and link.seq >= first]
                return encode_answer(held[: max(1, count)])
            case SnapshotRequest() if self.chain.links:
                return encode_answer(self.chain.offer())
            case StateRequest(key=key, epoch=epoch, seq=seq, least=least):
                named = self.stage.state_of(peer_id_of(key), epoch, seq, least)
                return self._no() if named is None else encode_answer(named)
            case ManifestRequest(address=address) if address in self.chain.blobs:
                manifest, data = self.chain.blobs[address]
                return encode_answer(manifest.encode(), data if len(manifest.chunks) == 1 else b"")
            case ChunkRequest(address=address, index=index) if address in self.chain.blobs:
                data = self.chain.blobs[address][1]
                return encode_answer(data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
            case GoodbyeRequest() | PartRequest() | SecureRequest() | PauseRequest() | ShiftRequest():
                return encode_answer()
            case StatisticsRequest() if self.statistics is not None:
                shared = sealed_statistics(self.identity, self.stage.scope, self.statistics)
                return encode_answer(shared.envelope, shared.payload)
            case FindRequest():
                return encode_answer(self.record, self.records[:16])
            case MembershipRequest() | BucketsRequest() | RosterRequest() | TermsRequest() if self.spread is not None:
                return self._of_members(self.spread, request)
            case _:
                return self._no()

    def _of_members(self, spread: AntiEntropy, request: MemberRequest) -> bytes:
        match request:
            case MembershipRequest():
                if request.page:
                    spread.submit_items(parse_page(request.page))
                return encode_answer(*known_fields(spread.known()))
            case BucketsRequest():
                return encode_answer(spread.census.buckets)
            case RosterRequest(parts=parts, page=page):
                return encode_answer(spread.census.page(unpack_parts(parts), page))
            case TermsRequest(above=above):
                return encode_answer(spread.manifest_above(above) if self.terms is None else self.terms)

    def _no(self) -> bytes:
        return encode_refusal(Reason.UNAVAILABLE, "no")

    async def _lie(self, stream: Stream, frames: FrameStream, request: Request, how: str) -> bool:
        """Whether the stream goes on."""
        truth = self._truth(request)
        match how:
            case "refuse":
                await frames.send(encode_refusal(self.rng.choice(list(Reason)), "no"))
            case "hang":
                await trio.sleep(HANG_S)
                return False
            case "late":
                await trio.sleep(LATE_S)
                await frames.send(truth)
            case "trickle":
                for byte in LENGTH.pack(len(truth)) + truth[:HEARD]:
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(1.0)
                return False
            case "truncate":
                await stream.send_all(LENGTH.pack(len(truth)) + truth[: len(truth) // 2])
                await stream.close()
                return False
            case "garbage":
                await frames.send(self.rng.randbytes(self.rng.randrange(1, 400)))
            case "oversize":
                await stream.send_all(LENGTH.pack((1 << 31) - 1) + bytes(100))
                await trio.sleep(HANG_S)
                return False
            case "wrong":
                await frames.send(self._wrong(request))
            case "extra":
                await frames.send(truth + b"\xc0")
            case _:
                raise AssertionError(how)
        return True

    def _wrong(self, request: Request) -> bytes:
        """Well-formed, and not so."""
        noise = Digest(self.rng.randbytes(32))
        match request:
            case HelloRequest():
                changes: list[dict[str, object]] = [
                    {"genesis": noise},
                    {"link": self._others()},
                    {"record": self._others()},
                ]
                return encode_answer(self.hello(**self.rng.choice(changes)))
            case HeadersRequest():
                return encode_answer([self._others()] * 2)
            case SnapshotRequest() if self.chain.links:
                lie_d = self.chain.public_d + self.rng.choice([1e-3, 1.0, 1e12])
                return encode_answer(self.chain.offer(lie_d.astype("float32")))
            case StateRequest():
                return encode_answer(noise)
            case ManifestRequest(address=address) if address in self.chain.blobs:
                manifest, data = self.chain.blobs[address]
                other = bytes([data[0] ^ 1]) + data[1:]
                return encode_answer(manifest.encode(), other if len(manifest.chunks) == 1 else b"")
            case ChunkRequest():
                return encode_answer(self.rng.randbytes(100))
            case StatisticsRequest():
                shared = sealed_statistics(self.identity, self.stage.scope, b"signed")
                return encode_answer(shared.envelope, self.rng.choice([b"not signed", self.rng.randbytes(300), b""]))
            case FindRequest():
                return encode_answer(self._others(), [self._others()] * 3)
            case MembershipRequest():
                return encode_answer(noise, self.rng.randrange(9), noise)
            case BucketsRequest() | RosterRequest() | TermsRequest():
                return encode_answer(self.rng.randbytes(2048))
            case _:
                return encode_answer(b"what was not asked")

    def _others(self) -> bytes:
        return self.rng.choice(self.heard) if self.heard else self.rng.randbytes(100)


def _status(status: CircuitStatus, reservation: Reservation | None = None) -> CircuitMessage:
    return CircuitMessage(kind=CircuitKind.STATUS, status=status, reservation=reservation)
