"""Moves of floods: each message of the wire as often as a move may, true, false and malformed."""

from contextlib import suppress

import trio
from adversary_move import Act, move
from hostile_peer import LENGTH, PATIENCE_S
from moves_chains import lie, new_epoch

from gossip.core.digests import NO_DIGEST
from gossip.core.envelope import seal
from gossip.core.errors import GossipError
from gossip.core.ids import Digest
from gossip.core.limits import MAX_RESPONSE_BYTES, STREAM_PROTOCOL
from gossip.core.member_messages import BucketsRequest, MembershipRequest, RosterRequest, TermsRequest
from gossip.core.membership_limits import BUCKETS
from gossip.core.messages import (
    ChunkRequest,
    FindRequest,
    GoodbyeRequest,
    HeadersRequest,
    HelloRequest,
    ManifestRequest,
    PartRequest,
    Request,
    SnapshotRequest,
    StateRequest,
    encode_request,
)
from gossip.core.statements import Stage as PartStage
from gossip.core.statements import part_statement
from gossip.reachability.circuit import HOP_PROTOCOL, CircuitKind, CircuitMessage, encode_hop
from gossip.reachability.dialback import DIALBACK_PROTOCOL, encode_ask
from gossip.session import FrameStream, open_session
from gossip.transport.base import TransportError

FLOOD = (10, 150)
"""Messages of one flood to each target: three times what any of them is granted at once."""


def part(act: Act, *, size: int = 100) -> bytes:
    """A statement of a part of an exchange that there is not."""
    exchange, address = Digest(act.rng.randbytes(32)), Digest(act.rng.randbytes(32))
    statement = part_statement(
        exchange=exchange, round=act.stage.round, stage=PartStage.WHOLE, address=address, size=size
    )
    return seal(act.peer.identity, act.stage.scope, statement).raw


def _an_address(act: Act) -> Digest:
    """Of a blob that some honest node serves, or of none."""
    held = [link.address for life in act.targets for link in life.member.node.service._engine.publisher._links]
    return act.rng.choice([*held, Digest(act.rng.randbytes(32))])


def request_of(act: Act, name: str) -> Request:
    """One of this name, as an honest node might send it or not."""
    rng, stage = act.rng, act.stage
    epoch = int(1000 * trio.current_time())
    someone = act.rng.choice([life.member.transport.peer_id for life in stage.lives])
    match name:
        case "hello":
            return HelloRequest(hello=act.peer.hello())
        case "links":
            return HeadersRequest(epoch=rng.choice([epoch, 0]), first=rng.randrange(9), count=rng.randrange(9))
        case "snapshot":
            return SnapshotRequest(epoch=rng.choice([epoch, 0, 0]), seq=rng.randrange(9))
        case "state":
            from gossip.core.identity import verify_key_of

            return StateRequest(key=verify_key_of(someone), epoch=epoch, seq=rng.randrange(20), least=0)
        case "manifest":
            return ManifestRequest(address=_an_address(act))
        case "chunk":
            return ChunkRequest(address=_an_address(act), index=rng.choice([0, 0, 1, 16000]))
        case "goodbye":
            return GoodbyeRequest(envelope=rng.choice([act.peer.chain.goodbye(), rng.randbytes(50)]))
        case "part":
            return PartRequest(envelope=part(act, size=rng.choice([1, 100, 1 << 30])))
        case "find":
            target = Digest(rng.randbytes(32))
            return FindRequest(
                swarm=stage.scope.swarm,
                run=stage.scope.run,
                genesis=stage.genesis,
                target=target,
                record=act.peer.record,
            )
        case "membership":
            return MembershipRequest(roster=NO_DIGEST, version=1, manifest=NO_DIGEST, page=rng.randbytes(200))
        case "buckets":
            return BucketsRequest()
        case "roster":
            return RosterRequest(parts=bytes(BUCKETS // 8), page=rng.randrange(4))
        case "terms":
            return TermsRequest(above=rng.randrange(4))
        case _:
            raise AssertionError(name)


REQUESTS = (
    "hello", "links", "snapshot", "state", "manifest", "chunk", "goodbye", "part", "find",
    "membership", "buckets", "roster", "terms",
)  # fmt: skip


def _register(name: str) -> None:
    @move(f"flood.{name}", amounts=FLOOD, seconds=(1, 20), variants=("stranger", "neighbour"), speaks=(name,))
    async def _flood(act: Act) -> None:
        """By one who has been met, or has not."""
        if act.move.variant == "neighbour":
            await act.meet()
        async with trio.open_nursery() as nursery:
            for life in act.targets:
                nursery.start_soon(_ask_often, act, name, life.member.transport.addresses[0])


async def _ask_often(act: Act, name: str, address: str) -> None:
    pause_s = act.move.seconds / act.move.amount
    with suppress(GossipError):
        peer = await act.peer.transport.dial(address)
        for _ in range(act.move.amount // 10 + 1):
            with suppress(GossipError):
                async with open_session(act.peer.transport, peer, PATIENCE_S) as session:
                    for _ in range(min(10, act.move.amount)):
                        await session.ask(request_of(act, name), MAX_RESPONSE_BYTES)
                        await trio.sleep(pause_s)
            await trio.sleep(pause_s)


for _name in REQUESTS:
    _register(_name)


@move(
    "flood.announce", amounts=(20, 300), seconds=(2, 20), variants=("same", "new", "forged", "junk"), speaks=("link",)
)
async def _announce(act: Act) -> None:
    """Broadcasts: the same link again, new epochs, forged ones, and what is none."""
    await act.meet()
    chain = act.peer.chain
    model_d = lie(act, "mean", act.stage.genesis_d)
    raw = chain.begin(epoch=new_epoch(act), round=act.stage.round, model_d=model_d).raw
    for number in range(act.move.amount):
        match act.move.variant:
            case "new":
                raw = chain.begin(epoch=new_epoch(act) + number, round=act.stage.round, model_d=model_d).raw
            case "forged":
                raw = raw[:-4] + number.to_bytes(4, "big")
            case "junk":
                raw = act.rng.randbytes(act.rng.randrange(1, 300))
        await act.peer.tell(raw)
        await trio.sleep(act.move.seconds / act.move.amount)


@move("flood.others_links", amounts=(20, 200), seconds=(2, 20), speaks=("link",))
async def _others_links(act: Act) -> None:
    """What it has heard of others, again and again."""
    await act.meet()
    await trio.sleep(12.0)
    heard = list(act.peer.heard)
    for _ in range(act.move.amount if heard else 0):
        await act.peer.tell(act.rng.choice(heard))
        await trio.sleep(act.move.seconds / act.move.amount)


@move("flood.streams", amounts=(4, 40), seconds=(5, 60))
async def _streams(act: Act) -> None:
    """Streams that are opened, and left."""
    await act.meet()
    streams = []
    for life in act.targets:
        for _ in range(act.move.amount):
            with suppress(GossipError):
                streams.append(await act.peer.transport.open_stream(life.peer, STREAM_PROTOCOL))
    await trio.sleep(act.move.seconds)
    for stream in streams:
        await stream.reset()


@move("flood.garbage", amounts=(1, 40), variants=("bytes", "length", "half", "request", "protocol"))
async def _garbage(act: Act) -> None:
    """Frames that are none."""
    await act.meet()
    for life in act.targets:
        for _ in range(act.move.amount):
            with suppress(GossipError):
                await _one_bad_stream(act, life.peer)


async def _one_bad_stream(act: Act, peer: str) -> None:
    protocol = "/p2ptrain/1/nothing" if act.move.variant == "protocol" else STREAM_PROTOCOL
    stream = await act.peer.transport.open_stream(peer, protocol)  # type: ignore[arg-type]
    junk = act.rng.randbytes(40)
    made = {
        "bytes": junk,
        "length": LENGTH.pack((1 << 32) - 1) + junk,
        "half": LENGTH.pack(400) + junk,
        "request": LENGTH.pack(7) + b"\x91\xa5other",
        "protocol": junk,
    }[act.move.variant]
    try:
        await stream.send_all(made)
        await stream.close()
    except TransportError:
        await stream.reset()


@move("flood.dribble", amounts=(1, 6), seconds=(20, 80))
async def _dribble(act: Act) -> None:
    """Requests that come a byte a second."""
    await act.meet()
    raw = encode_request(request_of(act, "hello"))
    framed = LENGTH.pack(len(raw)) + raw

    async def one(peer: str) -> None:
        with suppress(GossipError), trio.move_on_after(act.move.seconds):
            stream = await act.peer.transport.open_stream(peer, STREAM_PROTOCOL)  # type: ignore[arg-type]
            for byte in framed:
                await stream.send_all(bytes([byte]))
                await trio.sleep(1.0)

    async with trio.open_nursery() as nursery:
        for life in act.targets:
            for _ in range(act.move.amount):
                nursery.start_soon(one, life.peer)


@move("flood.unread", amounts=(2, 8), seconds=(10, 60))
async def _unread(act: Act) -> None:
    """Asks for much, and reads nothing of it."""
    await act.meet()
    streams = []
    for life in act.targets:
        for _ in range(act.move.amount):
            with suppress(GossipError):
                stream = await act.peer.transport.open_stream(life.peer, STREAM_PROTOCOL)
                frames = FrameStream(stream, PATIENCE_S)
                for _ in range(5):
                    await frames.send(encode_request(request_of(act, "chunk")))
                streams.append(stream)
    await trio.sleep(act.move.seconds)
    for stream in streams:
        await stream.reset()


@move("flood.dialback", amounts=(4, 60), seconds=(2, 20), speaks=("dialback",))
async def _dialback(act: Act) -> None:
    """Asks to be dialled back."""
    await act.meet()
    for life in act.targets:
        for number in range(act.move.amount):
            with suppress(GossipError):
                stream = await act.peer.transport.open_stream(life.peer, DIALBACK_PROTOCOL)
                frames = FrameStream(stream, PATIENCE_S)
                await frames.send(act.rng.choice([encode_ask([number % 99 + 1]), act.rng.randbytes(20)]))
                await frames.receive(600)
                await stream.close()


@move(
    "flood.relay",
    amounts=(4, 80),
    seconds=(2, 30),
    variants=("reserve", "connect", "junk"),
    speaks=("hop",),
    apt=("relay",),
)
async def _relay(act: Act) -> None:
    """Asks to be relayed for, and for circuits to everybody."""
    await act.meet()
    for life in act.targets:
        for _ in range(act.move.amount):
            other = act.rng.choice([it.peer for it in act.stage.lives])
            asked = {
                "reserve": encode_hop(CircuitMessage(kind=CircuitKind.RESERVE)),
                "connect": encode_hop(CircuitMessage(kind=CircuitKind.CONNECT, peer=other)),
                "junk": act.rng.randbytes(30),
            }[act.move.variant]
            with suppress(GossipError):
                stream = await act.peer.transport.open_stream(life.peer, HOP_PROTOCOL)
                await stream.send_all(bytes([len(asked)]) + asked)
                with trio.move_on_after(PATIENCE_S):
                    await stream.receive_some(200)
                await stream.close()
