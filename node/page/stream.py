"""Server-sent events: what is new, as it comes, to a bounded number of pages.

A page that reads slowly is written to less often, since each write waits for the one before; one that has stopped
reading is let go of (serving.py). A browser connects again by itself, and is then told everything anew.
"""

from typing import Generic, Protocol, TypeVar

import trio
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

MAX_PAGES = 16
"""Open at a time. An operator has a few; each costs the node a few milliseconds a second."""

GAP_S = 0.5
"""Between two messages to a page at least: rounds of a small model come ten a second, and nobody reads that fast."""

TICK_S = 2.0
"""Between two looks at what no event tells (scores, links, the graph)."""

QUIET_S = 15.0
"""After so long without news an empty message is sent, so that both ends know that the other is there: a page that has
heard nothing for longer says so, and is not shown a comment (page.js)."""

NOTHING_NEW = "{}"

RETRY_MS = 2000
"""How long a browser waits before it connects again."""


P = TypeVar("P")


class Tells(Protocol[P]):
    """Knows what a page wants to know next (feed.py of a node, swarm_feed.py of many)."""

    @property
    def events(self) -> int:
        """Rises when there may be news."""

    def place(self) -> P:
        """Of a page that has been told nothing yet."""

    def news(self, place: P) -> str:
        """What is new to a page, as one line of JSON, and its place moved on; empty: nothing."""

    async def replay(self) -> None:
        """Make ready, when a page has come."""

    async def changed(self, since: int) -> None:
        """Wait until `events` is above `since`."""


class Streams(Generic[P]):
    """All pages that are open now."""

    def __init__(self, feed: Tells[P]) -> None:
        self._feed = feed
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An answer that goes on until the page is closed; a refusal when there are too many."""
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
