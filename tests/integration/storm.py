"""Ten thousand hostile connections, streams and frames against one node: `python storm.py ADDRESS COUNT SEED`.

A mix of everything that a stranger can send at each layer, from a few hands at once: as fast as the node lets them,
with a new connection whenever it hangs up. Prints a JSON line a second with how many of each kind were sent so far, and
one at the end.
"""

import json
import random
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio
from libp2p.utils.varint import encode_varint_prefixed
from libp2p_harness import Attacker, attacking, delimited
from multiaddr import Multiaddr

from gossip.core.limits import STREAM_PROTOCOL

HANDS = 6
PATIENCE_S = 5.0
MESHSUB = "/meshsub/1.1.0"
LORIS = 40
"""Connections that trickle, all at once."""
PER_CONNECTION = 20
YAMUX_HEADER = struct.Struct(">BBHII")


class Storm:
    """Whatever the far end does to us is fine: it should."""

    def __init__(self, address: str, count: int, rng: random.Random) -> None:
        self.sent: Counter[str] = Counter()
        self._address, self._count, self._rng = address, count, rng
        parsed = Multiaddr(address)
        self._host = parsed.value_for_protocol("ip4")
        self._port = int(parsed.value_for_protocol("tcp"))

    @property
    def over(self) -> bool:
        return sum(self.sent.values()) >= self._count

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell)
            async with trio.open_nursery() as hands:
                for _ in range(HANDS):
                    hands.start_soon(self._hand)
                for _ in range(LORIS):
                    hands.start_soon(self._trickle)
            nursery.cancel_scope.cancel()

    async def _tell(self) -> None:
        while True:
            print(json.dumps({"event": "storm", "sent": self.sent}), flush=True)
            await trio.sleep(1)

    async def _hand(self) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [self._bare, self._noise, self._upgraded]
        while not self.over:
            kind = self._rng.choices(kinds, weights=[4, 4, 3])[0]
            with suppress(Exception), trio.move_on_after(PATIENCE_S):
                await kind()
            await trio.lowlevel.checkpoint()

    async def _bare(self) -> None:
        """Connect, say something that is no multistream, or half of it, or nothing; and go."""
        async with await self._tcp() as stream:
            await stream.send_all(self._rng.choice([b"", self._junk(400), delimited(b"/multistream/1.0.0\n")[:9]]))
            self.sent["multistream"] += 1

    async def _noise(self) -> None:
        """A handshake that ends in the middle, or is none."""
        async with await self._tcp() as stream:
            await stream.send_all(delimited(b"/multistream/1.0.0\n") + delimited(b"/noise\n"))
            await stream.receive_some(100)
            message = self._junk(200)
            await stream.send_all(struct.pack(">H", self._rng.choice([len(message), 65535, 0])) + message)
            self.sent["noise"] += 1

    async def _upgraded(self) -> None:
        """A connection that is in order, and then is not."""
        async with attacking(self._address) as attacker:
            kinds = [self._frame, self._pubsub, self._own, self._stream]
            for _ in range(PER_CONNECTION):
                await self._rng.choice(kinds)(attacker)

    async def _frame(self, attacker: Attacker) -> None:
        kind, flags = self._rng.choice([0, 1, 2, 3, 9]), self._rng.choice([0, 1, 2, 4, 8, 15])
        header = YAMUX_HEADER.pack(
            0, kind, flags, self._rng.randrange(1 << 8), self._rng.choice([0, 7, 1 << 12, 1 << 30])
        )
        await attacker.muxed.secured_conn.write(header)
        self.sent["yamux"] += 1

    async def _pubsub(self, attacker: Attacker) -> None:
        stream = await attacker.stream(MESHSUB)
        for _ in range(3):
            await stream.write(self._rng.choice([encode_varint_prefixed(self._junk(300)), b"\xff" * 9 + b"\x01"]))
            self.sent["pubsub"] += 1

    async def _own(self, attacker: Attacker) -> None:
        stream = await attacker.stream(STREAM_PROTOCOL)
        for _ in range(3):
            body = self._rng.choice([self._junk(300), b"\x93\xa5hello\xc0\xc0", b"\xdd\xff\xff\xff\xff", b""])
            await stream.write(struct.pack(">I", self._rng.choice([len(body), 1 << 31, len(body) + 9])) + body)
            self.sent["own"] += 1

    async def _stream(self, attacker: Attacker) -> None:
        """Opened, and left half-way through a name."""
        stream = await attacker.raw_stream()
        await stream.write(self._rng.choice([delimited(b"/multistream/1.0.0\n"), self._junk(100), b"\xff" * 8]))
        self.sent["stream"] += 1

    async def _trickle(self) -> None:
        """A byte a second, for as long as it is borne."""
        while not self.over:
            with suppress(OSError, trio.BrokenResourceError):
                async with await self._tcp() as stream:
                    self.sent["slow"] += 1
                    while not self.over:
                        await stream.send_all(b"\x13")
                        await trio.sleep(1)
            await trio.sleep(0.5)

    async def _tcp(self) -> Any:
        return await trio.open_tcp_stream(self._host, self._port)

    def _junk(self, most: int) -> bytes:
        return self._rng.randbytes(self._rng.randrange(1, most))


async def main(address: str, count: int, seed: int) -> None:
    storm = Storm(address, count, random.Random(seed))
    began = trio.current_time()
    await storm.run()
    print(json.dumps({"event": "over", "sent": storm.sent, "seconds": trio.current_time() - began}), flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
