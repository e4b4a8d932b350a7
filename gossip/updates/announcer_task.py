"""Broadcasts our newest link, at once and then repeatedly: broadcasts get lost, and newcomers come.

It repeats a link that has not changed for a while, at first soon and then at the pace of heartbeats, whose hellos bring
it too; with short rounds a newer link is broadcast before that. A new link is broadcast at once. Only a node whose
rounds end faster than anybody follows keeps to the rate that others accept (core/announcement_limit.py), and names the
newest link when its turn comes.
"""

import math

import trio

from gossip.context import ServiceContext
from gossip.core.announcement_limit import ANNOUNCE_BURST, ANNOUNCE_PER_S
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.engine import JITTER_LEAST, JITTER_MOST
from gossip.updates.publisher import Publisher


def repetition_pause(repeated: int, first_s: float, most_s: float) -> float:
    """Return the seconds until a link is broadcast again that was repeated so often: `first_s`, twice as long each time
    up to `most_s`."""
    return min(max(first_s, most_s), first_s * 2.0 ** min(repeated, 16))


def repetitions(seconds: float, first_s: float, most_s: float) -> float:
    """Return how often a link is repeated in so many seconds, on average: each pause is drawn (Engine.jitter)."""
    expected, repeated, due = 0.0, 0, first_s
    while JITTER_LEAST * due <= seconds:
        expected += min(1.0, (seconds / due - JITTER_LEAST) / (JITTER_MOST - JITTER_LEAST))
        repeated += 1
        due += repetition_pause(repeated, first_s, most_s)
    return expected


class Announcer:
    """Broadcasts our newest link, and keeps our record's addresses and neighbours up to date."""

    def __init__(self, context: ServiceContext, publisher: Publisher) -> None:
        self._context = context
        self._publisher = publisher
        self._recorded: tuple[tuple[str, ...], tuple[bytes, ...]] = ((), ())
        self._version = 0
        self._quota = KeyedTokenBucket(burst=ANNOUNCE_BURST, per_s=ANNOUNCE_PER_S)
        self._owed = trio.Event()
        self._announced_at = -math.inf
        self._said: tuple[bytes, int] = (b"", 0)
        """The link that was broadcast last, and how often it was repeated."""

    async def announce(self) -> None:
        """Broadcast the newest link, if there is any; a little later when there were many lately."""
        newest = self._publisher.newest
        if newest is None:
            return
        if self._quota.take("", trio.current_time()):
            self._announced_at = trio.current_time()
            link, repeated = self._said
            self._said = (link, repeated + 1) if link == newest.raw else (newest.raw, 0)
            await self._context.transport.publish(newest.raw)
        else:
            self._owed.set()

    async def run(self, epoch: int) -> None:
        """Run until cancelled. `epoch` orders this process's address records after those of earlier ones."""
        while True:
            self._keep_record(epoch)
            jitter = self._context.engine.jitter()
            due = self._announced_at + self._pause_s() * jitter
            if trio.current_time() >= due or self._owed.is_set():
                self._owed = trio.Event()
                await self.announce()
                due = trio.current_time() + self._pause_s() * jitter
            # A newer link may be broadcast meanwhile, whose first repetition comes soon.
            with trio.move_on_at(min(due, trio.current_time() + self._context.config.reannounce_s * jitter)):
                await self._owed.wait()
                await trio.sleep(1 / ANNOUNCE_PER_S)

    def _pause_s(self) -> float:
        config = self._context.config
        return repetition_pause(self._said[1], config.reannounce_s, config.heartbeat_s)

    def _keep_record(self, epoch: int) -> None:
        now = self._context.addresses(), self._context.engine.beside
        if now != self._recorded:
            self._recorded, self._version = now, self._version + 1
            self._context.engine.set_record(*now, epoch=epoch, version=self._version)
