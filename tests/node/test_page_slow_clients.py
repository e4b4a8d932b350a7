"""Clients that are slow, silent or speak HTTP/2 hold nothing for long, and keep nobody else out.

What takes time is asked of one connection in memory, under a virtual clock; who keeps whom out, over real sockets.
"""

import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import h11
import httpx
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from page_harness import PATIENCE_S, Listener, Served, ask, listening, served
from sizes import examples
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from node.page import http1
from node.page.http1 import ANSWER_S, CHUNK_BYTES, HEAD_S, LINGER_S, MAX_HEAD_BYTES, STALL_S, Http1Connection
from node.page.serving import (
    MAX_CONNECTIONS,
    MAX_STRANGERS,
    MAX_STRANGERS_OF_ADDRESS,
    Connections,
    Transfers,
    network_of,
)

TOKEN = "a-token-of-the-test"
CROWD = 64
"""As many as the page took connections at all, when they held it for ever."""

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


# -- time: one connection, a virtual clock


async def long_answer(scope: Scope, receive: Receive, send: Send) -> None:
    """A scrape of 320 kB, beyond what any has."""
    await PlainTextResponse("x" * 20 * CHUNK_BYTES)(scope, receive, send)


@asynccontextmanager
async def connected(app: ASGIApp) -> AsyncIterator[tuple[trio.StapledStream, trio.Event]]:
    """A client whose every byte is waited for, and an event for the connection's end."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    ended = trio.Event()

    async def serve() -> None:
        await Http1Connection(app, theirs, client=("127.0.0.1", 1), admit=lambda: None).run()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield ours, ended
        nursery.cancel_scope.cancel()


async def lasts(client: Callable[[trio.StapledStream], Awaitable[None]], app: ASGIApp = long_answer) -> float:
    """Seconds for which a client that never ends holds its connection."""
    began = trio.current_time()
    async with connected(app) as (stream, ended), trio.open_nursery() as nursery:

        async def talk() -> None:
            try:
                await client(stream)
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                await trio.sleep_forever()

        nursery.start_soon(talk)
        await ended.wait()
        nursery.cancel_scope.cancel()
    return trio.current_time() - began


async def test_a_client_that_says_nothing_is_cut(autojump_clock: trio.testing.MockClock) -> None:
    async def silent(_: trio.StapledStream) -> None:
        await trio.sleep_forever()

    assert await lasts(silent) == pytest.approx(HEAD_S)


@pytest.mark.parametrize("gap_s", [0.5, 4.9])
async def test_a_head_that_comes_byte_by_byte_is_cut(gap_s: float, autojump_clock: trio.testing.MockClock) -> None:
    async def slow(stream: trio.StapledStream) -> None:
        for byte in b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + b"x-more: and more\r\n" * 100:
            await stream.send_all(bytes([byte]))
            await trio.sleep(gap_s)

    assert await lasts(slow) == pytest.approx(HEAD_S)


@pytest.mark.parametrize("more", [b"", b"G"], ids=["silent", "byte by byte"])
async def test_a_next_head_has_no_longer(more: bytes, autojump_clock: trio.testing.MockClock) -> None:
    async def slow(stream: trio.StapledStream) -> None:
        await stream.send_all(SCRAPE)
        http = h11.Connection(h11.CLIENT)
        http.send(h11.Request(method="GET", target="/metrics", headers=[("Host", "localhost")]))
        http.send(h11.EndOfMessage())
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(CHUNK_BYTES))
        while True:
            if more:
                await stream.send_all(more)
            await trio.sleep(1.0)

    assert await lasts(slow) == pytest.approx(HEAD_S)


@pytest.mark.parametrize(
    ("size", "gap_s", "held_s"),
    [
        (0, 0.0, STALL_S),  # reads nothing
        (1, 60.0, STALL_S),  # a byte a minute
        (1, 0.1, STALL_S),  # a byte now and then: a chunk is never through
        (CHUNK_BYTES, STALL_S - 1.0, ANSWER_S),  # each chunk just in time: 20 of them would take three minutes
    ],
)
async def test_a_slow_reader_of_an_answer_is_cut(
    size: int, gap_s: float, held_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    async def slow(stream: trio.StapledStream) -> None:
        await stream.send_all(SCRAPE)
        while size:
            await stream.receive_some(size)
            await trio.sleep(gap_s)
        await trio.sleep_forever()

    assert STALL_S <= await lasts(slow) <= held_s + 0.1


async def test_a_reader_in_time_has_its_answer(autojump_clock: trio.testing.MockClock) -> None:
    received = 0

    async def brisk(stream: trio.StapledStream) -> None:
        nonlocal received
        await stream.send_all(SCRAPE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        while data := await stream.receive_some(CHUNK_BYTES):
            received += len(data)
            await trio.sleep(1.0)

    assert await lasts(brisk) < ANSWER_S
    assert received > 20 * CHUNK_BYTES


async def stream_of_events(scope: Scope, receive: Receive, send: Send) -> None:
    """A message of 80 kB every ten seconds, without end."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 5 * CHUNK_BYTES, "more_body": True})
        await trio.sleep(10.0)


async def test_a_page_stays_open_as_long_as_it_reads(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(stream_of_events) as (stream, ended):
        await stream.send_all(SCRAPE)
        until = trio.current_time() + 20 * ANSWER_S
        while trio.current_time() < until:
            with trio.move_on_after(60.0):
                assert await stream.receive_some(2 * CHUNK_BYTES)
            await trio.sleep(1.0)
        assert not ended.is_set()


@pytest.mark.parametrize(("gap_s", "held_s"), [(1e9, STALL_S), (STALL_S - 1.0, ANSWER_S)])
async def test_a_page_that_reads_no_more_or_too_slowly_is_cut(
    gap_s: float, held_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    async def slow(stream: trio.StapledStream) -> None:
        await stream.send_all(SCRAPE)
        while True:
            await stream.receive_some(CHUNK_BYTES)
            await trio.sleep(gap_s)

    assert STALL_S <= await lasts(slow, stream_of_events) <= held_s + 0.1


async def test_a_page_that_is_closed_ends_its_stream(autojump_clock: trio.testing.MockClock) -> None:
    gone = trio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with connected(waits) as (stream, ended):
        await stream.send_all(SCRAPE)
        await stream.receive_some(CHUNK_BYTES)
        await stream.aclose()
        await gone.wait()
        await ended.wait()
        assert trio.current_time() < HEAD_S


async def test_one_that_sends_without_end_while_it_listens_is_cut(autojump_clock: trio.testing.MockClock) -> None:
    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    sent = 0

    async def floods(stream: trio.StapledStream) -> None:
        nonlocal sent
        await stream.send_all(SCRAPE)
        await stream.receive_some(CHUNK_BYTES)
        while True:
            await stream.send_all(b"x" * 1000)
            sent += 1000

    assert await lasts(floods, waits) < 1.0
    assert sent <= http1.MAX_UNASKED_BYTES + 2 * CHUNK_BYTES


async def test_an_application_that_never_answers_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep_forever()

    heard = b""

    async def reads(stream: trio.StapledStream) -> None:
        nonlocal heard
        await stream.send_all(SCRAPE)
        while data := await stream.receive_some(CHUNK_BYTES):
            heard += data

    assert await lasts(reads, hangs) <= ANSWER_S + LINGER_S
    assert heard.startswith(b"HTTP/1.1 500 ")


async def test_a_fault_of_the_application_costs_the_answer(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[logging.LogRecord] = []
    monkeypatch.setattr(http1._LOG, "handle", told.append)

    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery():
            raise ZeroDivisionError

    async with connected(fails) as (stream, ended):
        await stream.send_all(b"GET /\x7e%0a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await stream.receive_some(CHUNK_BYTES)).startswith(b"HTTP/1.1 500 ")
        await ended.wait()
    (record,) = told
    assert "no answer to b'/~%0a'" in record.getMessage()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", 505),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"G\xff /  HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * (2 * MAX_HEAD_BYTES), 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
    ],
)
async def test_what_is_no_http_1_1_for_us_is_refused_at_once(
    request_bytes: bytes, status: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(long_answer) as (stream, ended), trio.open_nursery() as nursery:

        async def say() -> None:
            try:
                await stream.send_all(request_bytes)
            except trio.BrokenResourceError:
                return

        nursery.start_soon(say)
        heard = b""
        while data := await stream.receive_some(CHUNK_BYTES):
            heard += data
        assert heard.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"connection: close" in heard.lower()
        await ended.wait()
        assert trio.current_time() <= LINGER_S + 0.01


WORDS = [b"GET ", b"/", b" HTTP/1.1", b" HTTP/2.0", b"\r\n", b"Host: localhost\r\n", b"\r\n\r\n", b"\n", SCRAPE]
WORDS += [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"5\r\nabcde\r\n"]


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(pieces=st.lists(st.sampled_from(WORDS) | st.binary(max_size=20), max_size=12))
def test_whatever_is_said_ends_in_time_and_is_no_fault_of_ours(pieces: list[bytes]) -> None:
    async def short(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("plain")(scope, receive, send)

    async def main() -> float:
        async def says(stream: trio.StapledStream) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reads, stream)
                for piece in pieces:
                    await stream.send_all(piece)

        async def reads(stream: trio.StapledStream) -> None:
            while await stream.receive_some(CHUNK_BYTES):
                pass

        return await lasts(says, short)

    with pytest.MonkeyPatch.context() as patch:
        faults: list[object] = []
        patch.setattr(http1._LOG, "exception", lambda *words: faults.append(words))
        held_s = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not faults
    assert held_s <= HEAD_S + 2 * LINGER_S


@pytest.mark.parametrize(
    "headers",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAQAAAAA\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    ],
    ids=["h2c", "websocket"],
)
async def test_no_upgrade_is_taken(headers: bytes, autojump_clock: trio.testing.MockClock) -> None:
    async def short(scope: Scope, receive: Receive, send: Send) -> None:
        assert (scope["type"], scope["http_version"]) == ("http", "1.1")
        await PlainTextResponse("plain")(scope, receive, send)

    async with connected(short) as (stream, _):
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n")
        heard = await stream.receive_some(CHUNK_BYTES)
        assert heard.startswith(b"HTTP/1.1 200 ")
        assert b"101" not in heard
        assert b"upgrade" not in heard.lower()


async def test_one_connection_takes_one_request_after_the_other(autojump_clock: trio.testing.MockClock) -> None:
    """Also such as come at once, with bodies that nobody reads, and as HEAD."""

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(f"{scope['method']} {scope['path']} {scope['query_string']!r}")(scope, receive, send)

    async with connected(echo) as (stream, ended):
        http = h11.Connection(h11.CLIENT)
        for method, target, body in (
            ("GET", "/a%20b?c=d", b""),
            ("POST", "/post", b"z" * 1000),
            ("HEAD", "/head", b""),
            ("GET", "/last", b""),
        ):
            fields = [("Host", "localhost"), ("Content-Length", str(len(body)))]
            request = h11.Request(method=method, target=target, headers=fields)
            data = [http.send(request), http.send(h11.Data(data=body)) if body else b"", http.send(h11.EndOfMessage())]
            heard, told = b"", []

            async def send(whole: bytes) -> None:
                await stream.send_all(whole)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, b"".join(each or b"" for each in data))
                while not isinstance(event := http.next_event(), h11.EndOfMessage):
                    if event is h11.NEED_DATA:
                        http.receive_data(await stream.receive_some(CHUNK_BYTES))
                    elif isinstance(event, h11.Data):
                        heard += event.data
                    else:
                        told.append(event)
            assert told[0].status_code == 200
            path = target.partition("?")[0].replace("%20", " ")
            assert heard.decode() == (
                "" if method == "HEAD" else f"{method} {path} {target.partition('?')[2].encode()!r}"
            )
            http.start_next_cycle()
        assert not ended.is_set()


# -- places: who keeps whom out, over real sockets


def http2_hello() -> bytes:
    """The preface, settings that open no window, and a request for the page, as HTTP/2 has it."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    settings = struct.pack(">HI", 4, 0)  # INITIAL_WINDOW_SIZE
    # HPACK: GET, http, /, and an authority that is not indexed.
    request = b"\x82\x86\x84\x41\x09localhost"
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + frame(1, 5, 1, request)


CROWDS = {
    "HTTP/2, a window of 0": http2_hello(),
    "HTTP/2, an upgrade": SCRAPE[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAQAAAAA\r\n\r\n",
    "nothing": b"",
    "half a head": SCRAPE[:-2],
    "a request, and no reading": SCRAPE,
    "a websocket": SCRAPE[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    "a body that never comes": b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
}


@asynccontextmanager
async def crowd(page: Served, words: bytes, host: str = "127.0.0.1") -> AsyncIterator[list[trio.SocketStream]]:
    """CROWD clients from `host`, without a token, that have said `words` and read nothing."""
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(CROWD):
            client = trio.socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await client.bind((host, 0))
            await client.connect(("127.0.0.1", page.port))
            streams.append(await stack.enter_async_context(trio.SocketStream(client)))
            if words:
                await streams[-1].send_all(words)
        yield streams


async def scrape(page: Served) -> httpx.Response:
    with trio.fail_after(PATIENCE_S):
        return await ask(f"{page.url}/metrics", headers={"authorization": f"Bearer {TOKEN}"})


@pytest.mark.slow
@pytest.mark.parametrize("words", CROWDS.values(), ids=list(CROWDS))
async def test_a_crowd_without_a_token_keeps_nobody_out(words: bytes) -> None:
    async with served(token=TOKEN) as page, crowd(page, words):
        for _ in range(3):
            assert (await scrape(page)).status_code == 200
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
            assert (await client.get(f"{page.url}/?token={TOKEN}")).status_code == 200


async def test_a_crowd_of_http_2_is_gone_at_once() -> None:
    async with served(token=TOKEN) as page, crowd(page, http2_hello()) as streams:
        with trio.fail_after(PATIENCE_S):
            answered = 0
            for stream in streams:
                heard = b""
                try:
                    while data := await stream.receive_some(CHUNK_BYTES):
                        heard += data
                except trio.BrokenResourceError:
                    pass
                assert heard == b"" or heard.startswith(b"HTTP/1.1 505 ")
                answered += bool(heard)
        assert answered


@pytest.mark.slow
async def test_an_open_page_outlasts_a_crowd() -> None:
    headers = [("Host", "localhost"), ("Authorization", f"Bearer {TOKEN}")]
    async with served(token=TOKEN) as page, await trio.open_tcp_stream("127.0.0.1", page.port) as stream:
        messages = Listener(stream)
        assert (await messages.begin(headers)).status_code == 200
        await messages.next()
        async with crowd(page, b""), crowd(page, SCRAPE):
            page.tell({"ts": 1.0, "event": "warning", "message": "still here"})
            while not any("still here" in text for _, _, text in (await messages.next())["log"]["lines"]):
                pass


async def test_a_crowd_of_one_address_does_not_reach_those_of_another() -> None:
    """Not even one that has only just connected."""
    async with served(token=TOKEN) as page, await trio.open_tcp_stream("127.0.0.1", page.port) as stream:
        await ask(f"{page.url}/healthz")  # so that it is registered
        async with crowd(page, b"", host="127.0.0.2"):
            await stream.send_all(SCRAPE[:-2] + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode())
            with trio.fail_after(PATIENCE_S):
                assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 200 ")


async def test_where_no_token_is_asked_for_a_crowd_keeps_nobody_out_either() -> None:
    async with served() as page, crowd(page, b""), crowd(page, http2_hello()), listening(page.url) as messages:
        assert await messages.next()
        assert (await ask(f"{page.url}/metrics")).status_code == 200


# -- places: the decision alone


class Client:
    """Stands for a connection."""


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7/32"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_an_address_is_what_one_machine_has(host: str, network: str) -> None:
    assert network_of(host) == network


def test_transfers_are_bounded_in_all_and_by_network_and_give_no_way() -> None:
    places = Connections(Transfers(most=3, of_network=2))
    addresses = ("192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1", "203.0.113.1")
    clients = [Client() for _ in addresses]
    for one, address in zip(clients, addresses, strict=True):
        places.enter(one, address)  # type: ignore[arg-type]
        places.hold(one, address)  # type: ignore[arg-type]
    cut = [places.enter(Client(), "10.0.0.1") for _ in range(MAX_STRANGERS)]  # type: ignore[arg-type]
    cut += [places.enter(Client(), f"10.0.{number}.1") for number in range(MAX_STRANGERS)]  # type: ignore[arg-type]
    assert [one for one in clients if one in cut] == [clients[2], clients[4]]
    replaced = places.release(clients[0], addresses[0])  # type: ignore[arg-type]
    assert replaced is not None, "it is a stranger again"
    places.hold(clients[0], addresses[0])  # type: ignore[arg-type]
    assert places.release(clients[4], addresses[4]) is None  # type: ignore[arg-type]


@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["enter", "admit", "leave"]), st.integers(0, 5), st.integers(0, 200)), max_size=300
    )
)
def test_the_bounds_hold_and_nobody_who_is_admitted_makes_room(moves: list[tuple[str, int, int]]) -> None:
    places = Connections()
    strangers: list[tuple[Client, str]] = []
    admitted: list[Client] = []
    for move, host, which in moves:
        address = f"192.0.2.{host}"
        if move == "enter":
            one = Client()
            out = places.enter(one, address)  # type: ignore[arg-type]
            strangers.append((one, address))
            if out is not None:
                assert out in [each for each, _ in strangers]
                strangers = [(each, its) for each, its in strangers if each is not out]
        elif move == "admit" and strangers:
            one, _ = strangers[which % len(strangers)]
            places.admit(one)  # type: ignore[arg-type]
            if len(admitted) < MAX_CONNECTIONS:
                strangers = [(each, its) for each, its in strangers if each is not one]
                admitted.append(one)
        elif move == "leave" and admitted:
            places.leave(admitted.pop(which % len(admitted)))  # type: ignore[arg-type]
        assert len(strangers) <= MAX_STRANGERS
        assert len(admitted) <= MAX_CONNECTIONS
        for address in {its for _, its in strangers}:
            assert sum(its == address for _, its in strangers) <= MAX_STRANGERS_OF_ADDRESS


def test_the_crowd_makes_room_and_not_the_lonely() -> None:
    places = Connections()
    lonely = [Client() for _ in range(10)]
    for number, one in enumerate(lonely):
        assert places.enter(one, f"192.0.2.{number}") is None  # type: ignore[arg-type]
    gone = [places.enter(Client(), "198.51.100.1") for _ in range(1000)]  # type: ignore[arg-type]
    assert not set(gone) & set(lonely)
    assert gone[MAX_STRANGERS_OF_ADDRESS] is not None


def test_whoever_leaves_gives_its_place_to_the_next() -> None:
    places = Connections(Transfers(most=1, of_network=1))
    for _ in range(MAX_CONNECTIONS + 1):
        admitted, holds, stranger = Client(), Client(), Client()
        for one in (admitted, holds, stranger):
            assert places.enter(one, "192.0.2.1") is None  # type: ignore[arg-type]
        places.admit(admitted)  # type: ignore[arg-type]
        places.hold(holds, "192.0.2.1")  # type: ignore[arg-type]
        crowd = {places.enter(Client(), f"10.0.{number}.1") for number in range(2 * MAX_STRANGERS)}  # type: ignore[arg-type]
        assert (admitted in crowd, holds in crowd, stranger in crowd) == (False, False, True)
        for one in list(places._all):
            places.leave(one)
        assert not places._all, "whom nobody tells any more that the node stops"
