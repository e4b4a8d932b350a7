"""One HTTP/1.1 connection, by h11: requests in, an ASGI application's answers out, each in bounded time.

No newer HTTP is supported. In HTTP/2 a client opens windows for the answers that it wants, and one that never opens any
holds the answers, and the server, for ever; a page and a scrape need none of it. An offer to upgrade is ignored, as
HTTP allows. The preface of HTTP/2 is answered with 505, and the connection is closed. The page's requests have no
bodies: a body that arrives is discarded. Visitors' requests have one, whose size the application has agreed to before
it asks for it.

A client may take HEAD_S for the head of a request, ANSWER_S for a whole answer (for a continuing one, such as /events,
for each of its messages), and STALL_S without reading anything, or without sending as much of a body. After that it
is cut off.
"""

import logging
import math
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message
from trio.abc import HalfCloseableStream, Stream

HEAD_S: Final = 5.0
"""Seconds from the connection's beginning, or the end of the last answer, to the end of a request's head, however it is
sent. Three round trips of a second each, as on a bad mobile link, fit."""

ANSWER_S: Final = 30.0
"""Seconds for a whole answer, or for one message of a continuing answer. The largest (the first message to a page in a
swarm of a thousand, the scrape of a node with many peers) have some 256 kB, which is 9 kB a second."""

STALL_S: Final = 10.0
"""Seconds without reading a chunk. A phone that changes networks is back within seconds, and asks again in any case."""

GRACE_S: Final = 0.5
"""Seconds that an unfinished answer may take when the node stops: the whole stop has five seconds."""

LINGER_S: Final = 1.0
"""Seconds that a refused client may still send: if the connection closed at once, the system would discard the
answer."""

CHUNK_BYTES: Final = 1 << 14
"""Bytes that must be read, or of a body sent, within STALL_S: 1.6 kB/s is slower than any link over which a
person would watch a page."""

MAX_HEAD_BYTES: Final = 1 << 14
"""Most bytes of a request's head. Browsers send some 700, and localhost's cookies may add a few thousand."""

MAX_UNASKED_BYTES: Final = 1 << 16
"""Most bytes discarded of a body, or of data during an answer or after the last one; then the client is cut off."""

NO_LIMIT: Final = math.inf

_LOG: Final = logging.getLogger("p2ptrain.status")

_SPOKEN: Final = frozenset({b"1.0", b"1.1"})


class Http1Connection:
    """Serves one client until it is done. `admit` is put into each request's `scope["state"]`: the application calls it
    once the client has shown that it may ask. `client`: its address and port."""

    def __init__(
        self, app: ASGIApp, stream: Stream, *, client: tuple[str, int], admit: Callable[[], None], max_body: int = 0
    ) -> None:
        """`max_body`: most bytes of a request's body that the application may ask for; 0: bodies are discarded."""
        self._app = app
        self._max_body = max_body
        self._stream = stream
        self._client = client
        self._state = {"admit": admit}
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._life = trio.CancelScope()
        self._writing = trio.CancelScope(shield=True)
        self._until = NO_LIMIT
        self._broken = False
        self._unasked = 0

    async def run(self) -> None:
        """Answer until the client leaves, takes too long, or sends something other than HTTP/1.1. Then close the
        stream."""
        try:
            with self._life:
                await self._converse()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except Exception:  # our own error ends this connection, and not the node
            _LOG.exception("a connection of the page failed")
        finally:
            await trio.aclose_forcefully(self._stream)

    def cut(self) -> None:
        """End now, even in the middle of an answer: another client needs the place."""
        self._life.cancel()
        self._writing.cancel()

    def hasten(self) -> None:
        """Note that the node stops: the answer being written has GRACE_S left."""
        self._until = min(self._until, trio.current_time() + GRACE_S)
        self._writing.deadline = min(self._writing.deadline, self._until)

    async def _converse(self) -> None:
        try:
            while (request := await self._next_request()) is not None:
                if not await self._answered(request):
                    break
            else:
                return  # it left, or took too long: nobody reads what we might say
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
        await self._linger()

    async def _next_request(self) -> h11.Request | None:
        with trio.move_on_after(HEAD_S):
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    return event
                if event is not h11.NEED_DATA:
                    return None
                self._http.receive_data(bytes(await self._stream.receive_some(MAX_HEAD_BYTES)))
        return None

    async def _answered(self, request: h11.Request) -> bool:
        """Answer one request. Return whether the next one may come."""
        if request.http_version not in _SPOKEN:
            await self._refuse(505)
            return False
        names = {name for name, _ in request.headers}
        if not request.target.startswith(b"/") or names >= {b"content-length", b"transfer-encoding"}:
            await self._refuse(400)  # of two lengths a proxy may believe the other
            return False
        exchange = _Exchange(self, request)
        try:
            await exchange.run(self._app, self._scope_of(request))
        except* Exception:
            # Logged, but the node goes on. The path is the client's: it is shortened, and escaped as a Python literal.
            _LOG.exception("no answer to %r", request.target[:100])
        if self._broken:
            raise trio.BrokenResourceError("the reader does not read")
        await self._refuse(500)  # if nothing was said
        return await self._begins_anew()

    async def _begins_anew(self) -> bool:
        with trio.move_on_after(LINGER_S):
            while self._http.our_state is h11.DONE and self._http.their_state is h11.SEND_BODY:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self.receive_unasked())
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._unasked = 0
        return True

    async def _refuse(self, status: int) -> None:
        """Send an empty answer, the last one; send nothing where an answer has begun."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            headers = [("content-length", "0"), ("connection", "close"), ("date", formatdate(usegmt=True))]
            self._until = trio.current_time() + ANSWER_S
            await self.write(h11.Response(status_code=status, headers=headers), h11.EndOfMessage())

    async def _linger(self) -> None:
        with trio.move_on_after(LINGER_S):
            if isinstance(self._stream, HalfCloseableStream):
                await self._stream.send_eof()
            while await self.receive_unasked():
                pass

    def _scope_of(self, request: h11.Request) -> dict[str, Any]:
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii"),
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": self._client,
            "server": None,
            "state": self._state,
        }

    # -- for an exchange

    @property
    def takes_bodies(self) -> bool:
        """Return whether the application may ask for a request's body."""
        return self._max_body > 0

    def allow(self, seconds: float) -> None:
        """Set the seconds within which everything written from now on must be read."""
        self._until = trio.current_time() + seconds

    async def write(self, *events: h11.Event) -> None:
        """Send events. Writing that has begun ends in bounded time even while the node stops. Raises
        BrokenResourceError when the client has left, or does not read: nothing more can be sent."""
        await trio.lowlevel.checkpoint_if_cancelled()
        data = b"".join(self._http.send(event) or b"" for event in events)
        self._broken = True
        with trio.CancelScope(shield=True) as self._writing:
            for start in range(0, len(data), CHUNK_BYTES):
                self._writing.deadline = min(self._until, trio.current_time() + STALL_S)
                await self._stream.send_all(data[start : start + CHUNK_BYTES])
            self._broken = False
        if self._broken:
            raise trio.BrokenResourceError("the reader does not read")

    def body(self) -> "_Body":
        """Return the body of the request that has come."""
        return _Body(self, self._max_body)

    async def next_of_body(self, until: float) -> h11.Data | h11.EndOfMessage | None:
        """Return the next event of a body; None where it breaks off, or does not come in time."""
        with trio.CancelScope(deadline=until):
            if self._http.they_are_waiting_for_100_continue:
                await self.write(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                while (event := self._http.next_event()) is h11.NEED_DATA:
                    self._http.receive_data(bytes(await self._stream.receive_some(CHUNK_BYTES)))
            except h11.RemoteProtocolError:
                return None
            return event if isinstance(event, h11.Data | h11.EndOfMessage) else None
        return None

    async def receive_unasked(self) -> bytes:
        """Return data that arrives outside requests; empty when the client has left, or sends too much."""
        data = bytes(await self._stream.receive_some(CHUNK_BYTES))
        self._unasked += len(data)
        return data if self._unasked <= MAX_UNASKED_BYTES else b""

    async def until_gone(self) -> None:
        """Wait until the client has left."""
        try:
            while data := await self.receive_unasked():
                self._http.receive_data(data)  # a next request, which has to wait
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


class _Body:
    """A request's body, in parts as they come."""

    def __init__(self, connection: Http1Connection, most: int) -> None:
        self._connection = connection
        self._left = most
        self._fresh = 0
        self._until = trio.current_time() + STALL_S

    async def part(self) -> bytes | None:
        """Return the next part, empty at the end; None where the body is longer than it may be, comes too slowly, or
        does not end."""
        event = await self._connection.next_of_body(self._until)
        if event is None or isinstance(event, h11.EndOfMessage):
            return None if event is None else b""
        self._left -= len(event.data)
        self._fresh += len(event.data)
        if self._fresh >= CHUNK_BYTES:
            self._fresh, self._until = 0, trio.current_time() + STALL_S
        return bytes(event.data) if self._left >= 0 else None


class _Exchange:
    """A request and its answer, as the application sees them."""

    def __init__(self, connection: Http1Connection, request: h11.Request) -> None:
        self._connection = connection
        self._has_body = request.method != b"HEAD"
        self._head: h11.Response | None = None
        self._begun = False
        self._goes_on = False
        self._body: _Body | None = None
        self._ended = False
        """Whether nothing more of the body is read."""
        self._scope = trio.CancelScope()

    async def run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        """Let the application answer. Its exceptions pass through."""
        self._scope.deadline = trio.current_time() + ANSWER_S
        self._connection.allow(ANSWER_S)
        with self._scope:
            await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if not self._ended:
            # An answer that has begun has its own deadline, or none: it is left as it is, and no body is read any more.
            part = await self._part() if self._connection.takes_bodies and not self._begun else b""
            self._ended = not part
            if part is not None:
                return {"type": "http.request", "body": part, "more_body": not self._ended}
            return {"type": "http.disconnect"}
        await self._connection.until_gone()
        return {"type": "http.disconnect"}

    async def _part(self) -> bytes | None:
        if self._body is None:
            self._body = self._connection.body()
        self._scope.deadline = NO_LIMIT  # a body has deadlines of its own
        try:
            return await self._body.part()
        finally:  # the application may have cancelled it, to answer
            if not self._begun:
                self._scope.deadline = trio.current_time() + ANSWER_S
                self._connection.allow(ANSWER_S)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin(message)
            return
        events: list[h11.Event] = [] if self._head is None else [self._head]
        self._head = None
        if message.get("body") and self._has_body:
            events.append(h11.Data(data=message["body"]))
        if not message.get("more_body"):
            events.append(h11.EndOfMessage())
        if self._goes_on:
            self._connection.allow(ANSWER_S)
        try:
            await self._connection.write(*events)
        except trio.BrokenResourceError:  # the application just ends: its client is gone
            self._scope.cancel()
            await trio.lowlevel.checkpoint()

    def _begin(self, message: Message) -> None:
        """Keep the head until the first body bytes: until then another answer may replace it."""
        self._begun = True
        headers = [*message.get("headers", ()), (b"date", formatdate(usegmt=True).encode("ascii"))]
        self._goes_on = all(name.lower() != b"content-length" for name, _ in headers)
        if self._goes_on:
            self._scope.deadline = NO_LIMIT
        self._head = h11.Response(status_code=message["status"], headers=headers)
