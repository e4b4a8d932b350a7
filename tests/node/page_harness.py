"""A node's page over a real socket on loopback, fed by the test."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h11
import httpx
import trio
from swarm_story import node_events
from typed_events import typed

from node.events.log import Event
from node.events.progress import NodeProgress
from node.metrics.node_metrics import Metrics
from node.page.feed import Feed, LiveSnapshot
from node.page.status_server import StatusServer

ROUNDS_TOLD = 3

PATIENCE_S = 10.0
"""Only a broken test waits for so long."""


@dataclass
class Served:
    """A node that has told of ROUNDS_TOLD rounds."""

    url: str
    feed: Feed
    progress: NodeProgress

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def tell(self, event: Event) -> None:
        self.progress.observe(typed(event))
        self.feed.observe(typed(event))


@asynccontextmanager
async def served(*, token: str = "", moment: LiveSnapshot | None = None) -> AsyncIterator[Served]:
    progress = NodeProgress("node-0")
    feed = Feed(progress, moment=lambda: moment or LiveSnapshot())
    async with trio.open_nursery() as nursery:
        url = await nursery.start(StatusServer(Metrics(), feed, token=token).run)
        page = Served(url, feed, progress)
        for event in node_events(0, rounds=ROUNDS_TOLD):
            page.tell(event)
        yield page
        nursery.cancel_scope.cancel()


async def ask(url: str, method: str = "GET", **options: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.request(method, url, **options)


class Listener:
    """A page's connection to /events, byte by byte as HTTP has it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream, self._http, self._text = stream, h11.Connection(h11.CLIENT), ""

    async def begin(self, headers: Sequence[tuple[str, str]] = (("Host", "localhost"),)) -> h11.Response:
        request = h11.Request(method="GET", target="/events", headers=list(headers))
        for event in (request, h11.EndOfMessage()):
            await self._stream.send_all(self._http.send(event) or b"")
        response = await self._event()
        assert isinstance(response, h11.Response)
        return response

    async def next(self) -> dict[str, Any]:
        """The next message; what is said beside them is passed over."""
        with trio.fail_after(PATIENCE_S):
            while True:
                whole, found, rest = self._text.partition("\n\n")
                if found:
                    self._text = rest
                    if whole.startswith("data: "):
                        message: dict[str, Any] = json.loads(whole.removeprefix("data: "))
                        return message
                else:
                    data = await self._event()
                    assert isinstance(data, h11.Data), data
                    self._text += data.data.decode()

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive_some(1 << 16))
        return event


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Listener]:
    port = int(url.rpartition(":")[2])
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        listener = Listener(stream)
        response = await listener.begin()
        assert response.status_code == 200
        assert dict(response.headers)[b"content-type"].startswith(b"text/event-stream")
        yield listener
