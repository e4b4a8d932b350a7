"""Answers to libp2p's pings, at a pace, and with nothing left of who has gone.

Stock code answers as fast as they come, at 0.2 ms each, so that one stranger keeps a core busy. It also keeps an entry
of every peer that ever pinged (trap 25, host/ping.py:181), and keys are free.
"""

from collections import Counter
from typing import Any, Final

import trio
from libp2p.io.utils import read_exactly
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID

from gossip.core.rate_limit import KeyedTokenBucket
from gossip.transport.base import PING_BYTES

PING_STREAMS_OF_PEER: Final = 2
"""Streams of one peer that are answered: libp2p's specification says that it opens one, and may have a second."""

PING_S: Final = 10.0
"""Seconds to wait for the next ping, and for an answer to be taken: go's number."""

PINGS_BURST: Final = 16
PINGS_PER_S: Final = 4.0
"""Pings of a peer that are answered at once, and in the long run; later ones wait. A node that finds out its region
sends five, libp2p's tools one a second. At 0.2 ms each, 288 peers take a quarter of a core."""


class PingAnswers:
    """Answers each peer's pings until it closes the stream."""

    def __init__(self) -> None:
        self._pace = KeyedTokenBucket(burst=PINGS_BURST, per_s=PINGS_PER_S)
        self._streams: Counter[ID] = Counter()

    async def serve(self, stream: Any) -> None:
        """Serve one stream to its end. Raises what a broken stream raises, for the guard of streams."""
        peer = stream.muxed_conn.peer_id
        if self._streams[peer] >= PING_STREAMS_OF_PEER:
            await stream.reset()
            return
        self._streams[peer] += 1
        try:
            await self._answer(stream, str(peer))
        finally:
            self._streams[peer] -= 1
            self._streams += Counter()  # drops the zeros
        await stream.close()

    async def _answer(self, stream: Any, peer: str) -> None:
        while True:
            try:
                with trio.fail_after(PING_S):
                    ping = await read_exactly(stream, PING_BYTES)
            except (StreamEOF, trio.TooSlowError):
                return
            await trio.sleep(self._pace.reserve(peer, trio.current_time()))
            with trio.fail_after(PING_S):
                await stream.write(ping)
