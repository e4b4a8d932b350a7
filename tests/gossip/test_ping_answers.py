"""Pings are answered in order and at a pace, and of a peer that has gone nothing is left."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from libp2p.network.stream.exceptions import StreamEOF, StreamReset
from libp2p.peer.id import ID

from gossip.transport.base import PING_BYTES
from gossip.transport.libp2p.ping import PING_S, PING_STREAMS_OF_PEER, PINGS_BURST, PINGS_PER_S, PingAnswers

ONE, OTHER = ID(b"one"), ID(b"other")


class Pings:
    """A stream on which so many pings have come. `end`: what comes then; None: nothing."""

    def __init__(self, peer: ID, count: int, *, end: Exception | None = StreamEOF()) -> None:
        self.muxed_conn = SimpleNamespace(peer_id=peer)
        self.sent = b"".join(number.to_bytes(PING_BYTES, "big") for number in range(count))
        self.answered = b""
        self.over = ""
        self._left = self.sent
        self._end = end

    async def read(self, n: int) -> bytes:
        await trio.lowlevel.checkpoint()
        data, self._left = self._left[:n], self._left[n:]
        if data:
            return data
        if self._end is not None:
            raise self._end
        await trio.sleep_forever()
        raise AssertionError

    async def write(self, data: bytes) -> None:
        self.answered += data

    async def close(self) -> None:
        self.over = "closed"

    async def reset(self) -> None:
        self.over = "reset"


def tables(answers: PingAnswers) -> Any:
    return answers._streams


async def test_pings_are_answered_with_the_same_bytes(autojump_clock: trio.testing.MockClock) -> None:
    answers, pings = PingAnswers(), Pings(ONE, PINGS_BURST)
    await answers.serve(pings)
    assert (pings.answered, pings.over, trio.current_time()) == (pings.sent, "closed", 0.0)
    assert not tables(answers), "stock code keeps an entry of every peer, for ever"


async def test_more_of_them_wait_and_those_of_others_do_not(autojump_clock: trio.testing.MockClock) -> None:
    answers, flood, other = PingAnswers(), Pings(ONE, PINGS_BURST + 40), Pings(OTHER, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answers.serve, flood)
        await trio.sleep(1)
        await answers.serve(other)
        assert other.answered == other.sent
        assert len(flood.answered) <= PING_BYTES * (PINGS_BURST + PINGS_PER_S)
    assert flood.answered == flood.sent
    assert trio.current_time() == pytest.approx(40 / PINGS_PER_S)


async def test_a_peer_has_two_streams_and_one_that_falls_silent_ends(autojump_clock: trio.testing.MockClock) -> None:
    answers = PingAnswers()
    async with trio.open_nursery() as nursery:
        silent = [Pings(ONE, 1, end=None) for _ in range(PING_STREAMS_OF_PEER)]
        for stream in silent:
            nursery.start_soon(answers.serve, stream)
        await trio.sleep(1)
        late = Pings(ONE, 1)
        await answers.serve(late)
        assert (late.answered, late.over) == (b"", "reset")
    assert [stream.over for stream in silent] == ["closed"] * PING_STREAMS_OF_PEER
    assert trio.current_time() == PING_S
    assert not tables(answers)


async def test_a_stream_that_is_reset_leaves_nothing(autojump_clock: trio.testing.MockClock) -> None:
    answers, torn = PingAnswers(), Pings(ONE, 1, end=StreamReset())
    with pytest.raises(StreamReset):
        await answers.serve(torn)
    assert torn.answered == torn.sent
    assert not tables(answers)
