"""Frames and conversations over the in-memory stream: every way in which the far end can misbehave."""

import pytest
import trio
from gossip_swarm import identity
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from gossip.core.errors import Reason, RemoteError
from gossip.core.limits import MAX_RESPONSE_BYTES, MIN_RATE
from gossip.core.messages import ManifestRequest, encode_answer, encode_refusal, encode_request, parse_chunk_answer
from gossip.session import APART_BYTES, IDLE_S, FrameStream, Session, serve
from gossip.transport.base import TransportError
from gossip.transport.memory.pipe import MemoryStream, Pipe
from gossip.transport.wire_bytes import WireBytes

ONE, OTHER = identity(1).peer_id, identity(2).peer_id


def pair() -> tuple[MemoryStream, MemoryStream]:
    there, back = Pipe(lambda size: 0.0), Pipe(lambda size: 0.0)
    return MemoryStream(OTHER, back, there, WireBytes()), MemoryStream(ONE, there, back, WireBytes())


async def reason_of(wait, *args) -> Reason:
    with pytest.raises(RemoteError) as caught:
        await wait(*args)
    return caught.value.reason


@pytest.mark.parametrize("size", [0, 1, 65_536, 300_000])
async def test_a_frame_comes_back_whatever_the_pieces(size, autojump_clock):
    ours, theirs = pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(FrameStream(ours, 5.0).send, b"x" * size)
        assert await FrameStream(theirs, 5.0).receive(300_000) == b"x" * size
    await ours.close()
    assert await FrameStream(theirs, 5.0).receive(10) is None


async def test_byte_by_byte(autojump_clock):
    ours, theirs = pair()
    wire = (5).to_bytes(4, "big") + b"hello"

    async def trickle() -> None:
        for byte in wire:
            await ours.send_all(bytes([byte]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        assert await FrameStream(theirs, 5.0).receive(5) == b"hello"


async def test_every_truncation_is_an_offence(autojump_clock):
    wire = (5).to_bytes(4, "big") + b"hello"
    for size in range(1, len(wire)):
        ours, theirs = pair()
        await ours.send_all(wire[:size])
        await ours.close()
        assert await reason_of(FrameStream(theirs, 5.0).receive, 5) is Reason.PROTOCOL


async def test_a_frame_too_long_is_refused_by_its_header_alone(autojump_clock):
    ours, theirs = pair()
    await ours.send_all((6).to_bytes(4, "big"))
    assert await reason_of(FrameStream(theirs, 5.0).receive, 5) is Reason.OVERSIZE


async def test_silence_ends_after_the_patience(autojump_clock):
    _, theirs = pair()
    assert await reason_of(FrameStream(theirs, 5.0).receive, 5) is Reason.TIMEOUT
    assert trio.current_time() == pytest.approx(5.0)


async def test_who_trickles_is_given_up_and_who_is_merely_slow_is_not(autojump_clock):
    async def feed(stream: MemoryStream, piece: int, pause: float) -> None:
        await stream.send_all((10 * MIN_RATE).to_bytes(4, "big"))
        for _ in range(10 * MIN_RATE // piece):
            await trio.sleep(pause)
            await stream.send_all(bytes(piece))

    for rate, patient in ((0.5, False), (1.5, True)):
        ours, theirs = pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed, ours, MIN_RATE, 1.0 / rate)
            frames = FrameStream(theirs, 3.0)
            if patient:
                assert len(await frames.receive(10 * MIN_RATE) or b"") == 10 * MIN_RATE
            else:
                assert await reason_of(frames.receive, 10 * MIN_RATE) is Reason.TIMEOUT
            nursery.cancel_scope.cancel()


async def test_a_reader_that_stops_reading_holds_the_writer_for_a_bounded_time(autojump_clock):
    ours, _ = pair()
    assert await reason_of(FrameStream(ours, 3.0).send, bytes(10 * MIN_RATE + 300_000)) is Reason.TIMEOUT
    assert trio.current_time() < 60


async def echo(raw: bytes) -> bytes:
    return encode_answer(raw)


async def test_requests_are_answered_in_turn_until_the_end(autojump_clock):
    ours, theirs = pair()
    request = ManifestRequest(address=bytes(32))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, theirs, echo, 5.0)
        session = Session(FrameStream(ours, 5.0))
        for _ in range(3):
            assert await session.ask(request) == encode_answer(encode_request(request))
        await ours.close()


async def test_a_server_does_not_wait_for_ever(autojump_clock):
    _, theirs = pair()
    assert await reason_of(serve, theirs, echo, 5.0) is Reason.TIMEOUT
    assert trio.current_time() == pytest.approx(IDLE_S)


async def test_a_closed_stream_is_no_answer(autojump_clock):
    ours, theirs = pair()

    async def hang_up() -> None:
        await FrameStream(theirs, 5.0).receive(100)
        await theirs.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_up)
        session = Session(FrameStream(ours, 5.0))
        assert await reason_of(session.ask, ManifestRequest(address=bytes(32))) is Reason.UNAVAILABLE


async def test_a_reset_is_the_networks_fault(autojump_clock):
    ours, theirs = pair()
    await theirs.reset()
    with pytest.raises(TransportError):
        await FrameStream(ours, 5.0).receive(100)


@settings(max_examples=examples(40), deadline=None)
@given(st.binary(max_size=64))
def test_random_bytes_from_a_client_end_in_a_remote_error(data):
    async def main() -> None:
        ours, theirs = pair()
        await ours.send_all(data)
        await ours.close()
        try:
            while await FrameStream(theirs, 1.0).receive(1000) is not None:
                pass
        except RemoteError:
            return
        assert data[:4] == bytes(4) or len(data) == 0 or 4 + int.from_bytes(data[:4], "big") <= len(data)

    trio.run(main)


@pytest.mark.parametrize("size", [APART_BYTES - 1, APART_BYTES, MAX_RESPONSE_BYTES])
async def test_a_large_body_is_sent_apart_and_one_that_comes_whole_is_not_copied(size, autojump_clock):
    sent: list[bytes] = []

    class Whole:
        """Hands over what was sent, as it was sent."""

        pending = 0

        async def send_all(self, data):
            sent.append(bytes(data))

        async def receive_some(self, max_bytes):
            if len(sent[0]) <= max_bytes:
                return sent.pop(0)
            part, sent[0] = sent[0][:max_bytes], sent[0][max_bytes:]
            return part

    await FrameStream(Whole(), 5.0).send(b"x" * size)
    assert len(sent) == (2 if size >= APART_BYTES else 1)
    whole = sent[-1]
    got = await FrameStream(Whole(), 5.0).receive(size)
    assert got == b"x" * size
    assert (got is whole) == (size >= APART_BYTES)


class Slow:
    """A record of `SLOW_BYTES` that comes at `rate` bytes a second, and can be handed over when it is whole."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.began = trio.current_time()

    @property
    def pending(self) -> int:
        return int(min(SLOW_BYTES, (trio.current_time() - self.began) * self.rate))

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.sleep(max(0.0, self.began + SLOW_BYTES / self.rate - trio.current_time()))
        return b"x" * max_bytes


SLOW_BYTES = 64 * MIN_RATE


async def test_a_large_record_over_a_slow_link_is_waited_for_and_a_slower_one_is_not(autojump_clock):
    frames = FrameStream(Slow(1.1 * MIN_RATE), 5.0)
    began = trio.current_time()
    assert await frames._exactly(SLOW_BYTES, began + 5.0) == b"x" * SLOW_BYTES
    assert trio.current_time() - began > 50.0
    began = trio.current_time()
    assert await reason_of(FrameStream(Slow(0.5 * MIN_RATE), 5.0)._exactly, SLOW_BYTES, began + 5.0) is Reason.TIMEOUT
    assert trio.current_time() - began == pytest.approx(10.0, abs=0.5)  # 5 s, and 1/2 s more for each that passes


@pytest.mark.parametrize("size", [0, 1, 255, 65_535, 65_536, 1 << 20])
def test_a_chunk_is_read_from_its_answer(size):
    chunk = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert parse_chunk_answer(encode_answer(chunk), size) == chunk
    longest = b"\x92\xc3\xc6" + size.to_bytes(4, "big") + chunk  # a longer form than needed is as good
    assert parse_chunk_answer(bytearray(longest), size) == chunk
    for wrong, reason in (
        (encode_answer(chunk + b"y"), Reason.OVERSIZE),
        (longest + b"y", Reason.MALFORMED),
        (encode_answer(chunk, b"more"), Reason.MALFORMED),
        (encode_refusal(Reason.UNAVAILABLE, "gone"), Reason.UNAVAILABLE),
    ):
        with pytest.raises(RemoteError) as caught:
            parse_chunk_answer(wrong, size)
        assert caught.value.reason is reason
