"""Server-sent events: news, as it arrives, to a bounded number of pages.

A page that reads slowly is written to less often, since each write waits for the one before. One that has stopped
reading is cut off (http1.py). A browser connects again by itself, and then receives everything again.
"""

from typing import Generic, Protocol, TypeVar

import trio
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

MAX_PAGES = 16
"""Most pages open at a time. An operator has a few; each costs the node a few milliseconds a second."""

GAP_S = 0.5
"""Least seconds between two messages to a page: a small model has ten rounds a second, and nobody reads that fast."""

TICK_S = 2.0
"""Seconds between two reads of the values that no event has (scores, links, the graph)."""

QUIET_S = 15.0
"""Seconds without news after which an empty message is sent, so that both ends know that the other is there. A page
that received nothing for longer says so. A comment would not do, since the page's script does not see it (page.js)."""

NOTHING_NEW = "{}"

RETRY_MS = 2000
"""Milliseconds that a browser waits before it connects again."""


P = TypeVar("P")


class Tells(Protocol[P]):
    """A source of a page's news (feed.py for a node, swarm_feed.py for many)."""

    @property
    def events(self) -> int:
        """Return a number that rises when there may be news."""

    def place(self) -> P:
        """Return the position of a page that has received nothing yet."""

    def news(self, place: P) -> str:
        """Return what is new to a page, as one line of JSON, and advance its place; empty when nothing is."""

    async def replay(self) -> None:
        """Prepare, when a page has connected."""

    async def changed(self, since: int) -> None:
        """Wait until `events` is above `since`."""


class Streams(Generic[P]):
    """All pages that are open now."""

    def __init__(self, feed: Tells[P]) -> None:
        self._feed = feed
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer until the page is closed; refuse when there are too many."""
        if self._open >= MAX_PAGES:
            refusal = PlainTextResponse("too many pages are open\n", 503, {"retry-after": "10"})
            await refusal(scope, receive, send)
            return
        self._open += 1
        try:
            await self._until_closed(scope, receive, send)
        finally:
            self._open -= 1

    async def _until_closed(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = Response(media_type="text/event-stream", headers={"cache-control": "no-store"})
        raw = [pair for pair in head.raw_headers if pair[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body"})
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell, send)
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

    async def _tell(self, send: Send) -> None:
        async def say(words: str) -> None:
            await send({"type": "http.response.body", "body": words.encode(), "more_body": True})

        await self._feed.replay()
        await say(f"retry: {RETRY_MS}\n\n")
        place, spoke = self._feed.place(), trio.current_time()
        while True:
            events, news = self._feed.events, self._feed.news(place)
            if news or trio.current_time() - spoke > QUIET_S:
                await say(f"data: {news or NOTHING_NEW}\n\n")
                spoke = trio.current_time()
            await trio.sleep(GAP_S)
            with trio.move_on_after(TICK_S):
                await self._feed.changed(events)
