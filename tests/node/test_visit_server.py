"""Visitors over HTTP and HTTPS: what is answered to whom, and that a body is refused by its head or read in time."""

import datetime
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives import serialization
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send
from visit_harness import VisitedHost, certificate, here, noise, settings

from node.config.schema import from_raw
from node.config.visits_section import VisitsConfig
from node.page.http1 import ANSWER_S, CHUNK_BYTES, STALL_S, Http1Connection
from node.page.serving import MAX_STRANGERS
from node.roles.assembly import check_runnable
from node.system.errors import UsageError
from node.visits import visit_server
from node.visits.difference_head import HEAD_BYTES
from node.visits.tls_certificate import RenewedCertificate
from node.visits.visit_server import VisitGuard, VisitServer
from p2ptrain.visits.model_versions import apply_difference

TOKEN = "a-token-of-the-test"
PAGE = "https://example.org"


@pytest.fixture
def host() -> VisitedHost:
    host = VisitedHost()
    host.close_round()
    host.close_round()
    return host


def host_with(**changes: object) -> VisitedHost:
    host = VisitedHost(**changes)
    host.close_round()
    host.close_round()
    return host


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["reason"]


async def test_a_visit_from_the_first_question_to_the_difference(host: VisitedHost) -> None:
    async with host.client() as client:
        visit = (await client.get("/v1/visit")).json()
        assert visit["parameters"] == [{"name": "w", "shape": [3, 500]}]
        assert (visit["round"], visit["steps"], visit["run"]) == (2, 5, (b"r" * 16).hex())
        whole = await client.get("/v1/model")
        assert whole.headers["p2ptrain-form"] == "whole"
        assert whole.headers["p2ptrain-model"] == visit["model"]
        body = host.left_by("one").to_bytes()
        assert len(body) == visit["difference_bytes"]
        assert (await client.post("/v1/difference", content=body)).json() == {"accepted": True}
        host.close_round()
        change = await client.get("/v1/model", params={"have": visit["model"]})
        assert change.headers["p2ptrain-form"] == "difference"
        assert apply_difference(whole.content, change.content, 1500) == host.newest().payload
        same = await client.get("/v1/model", params={"have": change.headers["p2ptrain-model"]})
        assert (same.headers["p2ptrain-form"], same.content) == ("same", b"")


async def test_a_visitor_that_names_its_key_is_told_whether_it_may_leave_a_difference(host: VisitedHost) -> None:
    left = host.left_by("one")
    async with host.client() as client:
        assert (await client.get("/v1/visit", params={"key": left.key.hex()})).json()["round"] == 2
        await client.post("/v1/difference", content=left.to_bytes())
        assert told(await client.get("/v1/visit", params={"key": left.key.hex()})) == (409, "second")
        for other in ("", "zz", "f" * 64, "ä" * 64, "0" * 5000):
            assert (await client.get("/v1/visit", params={"key": other})).status_code == 200
    assert host.visitors.counts["second"] == 0, "nothing was left"


@pytest.mark.parametrize("have", ["", "zz", "f" * 64, "g" * 64, "ä" * 64, "0" * 5000])
async def test_a_digest_that_is_none_gets_the_whole_model(have: str, host: VisitedHost) -> None:
    async with host.client() as client:
        answer = await client.get("/v1/model", params={"have": have})
        assert answer.headers["p2ptrain-form"] == "whole"


async def test_refusals_are_json_with_a_status_and_are_counted() -> None:
    host = host_with(listen=f"127.0.0.1:{free_port()}")
    body = host.left_by("one").to_bytes()
    async with VisitedHost().client() as client:
        for path in ("/v1/visit", "/v1/model"):
            assert told(await client.get(path)) == (503, "no_model")
    async with served(host) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        assert told(await client.post("/v1/difference", content=body[:-1])) == (413, "wrong_size")
        assert told(await client.post("/v1/difference", content=bytes(len(body)))) == (409, "unknown_model")
        await client.post("/v1/difference", content=body)
        assert told(await client.post("/v1/difference", content=body)) == (409, "second")
        assert (await client.get("/v1/difference")).status_code == 405
        assert (await client.get("/metrics")).status_code == 404
    assert {name: count for name, count in host.visitors.counts.items() if count} == {
        "accepted": 1,
        "wrong_size": 1,
        "unknown_model": 1,
        "second": 1,
    }


async def test_a_body_without_a_length_is_refused(host: VisitedHost) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield host.left_by("one").to_bytes()

    async with host.client() as client:
        assert told(await client.post("/v1/difference", content=parts())) == (413, "wrong_size")


async def test_a_body_in_chunks_is_refused_even_with_a_length(host: VisitedHost) -> None:
    body = host.left_by("one").to_bytes()
    headers = {"transfer-encoding": "chunked", "content-length": str(len(body))}
    async with host.client() as client:
        assert told(await client.post("/v1/difference", content=body, headers=headers)) == (413, "wrong_size")


async def test_a_head_is_no_model_sent(host: VisitedHost) -> None:
    async with host.client() as client:
        for _ in range(20):
            assert (await client.head("/v1/model")).status_code == 405
        assert (await client.get("/v1/model")).status_code == 200


async def test_with_a_token_nobody_else_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    host = host_with(token_file=file)
    assert host.server.secrets() == (TOKEN,)
    async with host.client() as client:
        assert told(await client.get("/v1/visit")) == (401, "token")
        assert told(await client.get("/v1/visit", headers={"authorization": "Bearer wrong"})) == (401, "token")
        assert (await client.get("/v1/visit", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 200


@pytest.mark.parametrize(("token", "given", "times"), [("t" * 20, "t" * 20, 1), ("t" * 20, "x", 0), ("", "", 0)])
async def test_who_shows_no_token_stays_a_stranger(token: str, given: str, times: int) -> None:
    admitted: list[int] = []

    async def answered(*_: object) -> None:
        return None

    guard = VisitGuard(answered, VisitsConfig(listen="127.0.0.1:8443"), token)
    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {given}".encode())]
    state = {"admit": lambda: admitted.append(1)}
    await guard({"type": "http", "method": "GET", "headers": headers, "state": state}, answered, answered)
    assert len(admitted) == times


async def test_on_loopback_a_name_that_a_stranger_chose_is_not_answered(host: VisitedHost) -> None:
    async with host.client() as client:
        assert told(await client.get("/v1/visit", headers={"host": "evil.example"})) == (421, "wrong_host")
    async with host_with(listen="192.0.2.1:80", plain=True).client() as client:
        assert (await client.get("/v1/visit", headers={"host": "a.example"})).status_code == 200


async def test_web_pages_visit_only_from_origins_that_are_set(host: VisitedHost) -> None:
    async with host.client() as client:
        assert told(await client.get("/v1/visit", headers={"origin": PAGE})) == (403, "origin")
        assert told(await client.options("/v1/difference", headers={"origin": PAGE})) == (403, "origin")
    async with host_with(origins=(PAGE,)).client() as client:
        answer = await client.get("/v1/model", headers={"origin": PAGE})
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "p2ptrain-form" in answer.headers["access-control-expose-headers"]
        asked = await client.options("/v1/difference", headers={"origin": PAGE})
        assert (asked.status_code, asked.headers["access-control-allow-methods"]) == (204, "GET, POST")
        assert told(await client.get("/v1/visit", headers={"origin": "https://evil.example"})) == (403, "origin")
    async with host_with(origins=("*",)).client() as client:
        assert (await client.get("/v1/visit", headers={"origin": "null"})).status_code == 200


# -- a body, under a virtual clock


async def reads_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the size of the body."""
    try:
        body = await Request(scope, receive).body()
    except ClientDisconnect:
        await PlainTextResponse("none", 408)(scope, receive, send)
        return
    await PlainTextResponse(str(len(body)))(scope, receive, send)


async def answer_to(head: bytes, parts: list[tuple[float, bytes]], *, max_body: int = 1 << 20) -> tuple[bytes, float]:
    """Send a head and a body in parts, each after some seconds; return what comes back, and when."""
    ours, theirs = trio.testing.memory_stream_pair()
    connection = Http1Connection(reads_body, theirs, client=("127.0.0.1", 1), admit=lambda: None, max_body=max_body)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)

        async def say() -> None:
            try:
                await ours.send_all(head)
                for seconds, part in parts:
                    await trio.sleep(seconds)
                    await ours.send_all(part)
            except trio.BrokenResourceError:
                return

        nursery.start_soon(say)
        heard = b""
        while b"\r\n\r\n" not in heard or heard.startswith(b"HTTP/1.1 100"):
            more = await ours.receive_some()
            if not more:
                break
            heard = heard.removeprefix(b"HTTP/1.1 100 \r\n\r\n") + more
        when = trio.current_time()
        nursery.cancel_scope.cancel()
    return heard, when


def head_of(size: int, more: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n" % (size, more)


async def test_a_body_in_parts_is_read_whole(autojump_clock: trio.testing.MockClock) -> None:
    heard, _ = await answer_to(head_of(1000), [(1.0, bytes(400)), (1.0, bytes(600))])
    assert heard.startswith(b"HTTP/1.1 200")
    assert heard.endswith(b"1000")


async def test_a_client_that_waits_to_be_told_is_told(autojump_clock: trio.testing.MockClock) -> None:
    heard, _ = await answer_to(head_of(5, b"Expect: 100-continue\r\n"), [(0.1, b"hello")])
    assert heard.endswith(b"5")


async def test_a_long_body_over_a_slow_link_may_take_minutes(autojump_clock: trio.testing.MockClock) -> None:
    heard, when = await answer_to(head_of(20 * CHUNK_BYTES), [(STALL_S - 1, bytes(CHUNK_BYTES))] * 20)
    assert heard.endswith(str(20 * CHUNK_BYTES).encode())
    assert when > 2 * 60


async def test_a_body_that_comes_byte_by_byte_is_cut(autojump_clock: trio.testing.MockClock) -> None:
    heard, when = await answer_to(head_of(1 << 16), [(1.0, b"x")] * 1000)
    assert heard.startswith(b"HTTP/1.1 408")
    assert when == pytest.approx(STALL_S, abs=0.1)


async def test_an_application_that_reads_no_further_answers_in_bounded_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        with trio.move_on_after(1):
            await receive()
        await trio.sleep_forever()

    ours, theirs = trio.testing.memory_stream_pair()
    connection = Http1Connection(hangs, theirs, client=("127.0.0.1", 1), admit=lambda: None, max_body=1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await ours.send_all(head_of(1000))
        assert (await ours.receive_some()).startswith(b"HTTP/1.1 500")
        assert trio.current_time() == pytest.approx(1 + ANSWER_S, abs=0.1)
        nursery.cancel_scope.cancel()


async def test_a_body_longer_than_the_application_may_ask_for(autojump_clock: trio.testing.MockClock) -> None:
    heard, _ = await answer_to(head_of(1000), [(0.0, bytes(1000))], max_body=999)
    assert heard.startswith(b"HTTP/1.1 408")


async def test_two_lengths_of_a_body_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    heard, _ = await answer_to(head_of(5, b"Transfer-Encoding: chunked\r\n"), [(0.1, b"5\r\nhello\r\n0\r\n\r\n")])
    assert heard.startswith(b"HTTP/1.1 400")


async def test_a_body_of_broken_chunks(autojump_clock: trio.testing.MockClock) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    heard, _ = await answer_to(head, [(0.0, b"zz\r\n")])
    assert heard.startswith(b"HTTP/1.1 408")


# -- sockets


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def served(host: VisitedHost) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        url: str = await nursery.start(host.server.run)
        yield url.replace("127.0.0.1", "localhost")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("https", [False, True])
async def test_over_a_real_socket(https: bool, tmp_path: Path) -> None:
    files = certificate(tmp_path) if https else (None, None)
    host = host_with(listen=f"127.0.0.1:{free_port()}", certificate=files[0], key=files[1])
    context = ssl.create_default_context(cafile=files[0]) if https else True
    async with served(host) as url, httpx.AsyncClient(trust_env=False, verify=context) as client:
        assert url.startswith("https://" if https else "http://")
        left = host.left_by("one", 0.1 * noise(3))
        answer = await client.post(f"{url}/v1/difference", content=left.to_bytes())
        assert answer.json() == {"accepted": True}
        again = await client.post(f"{url}/v1/difference", content=left.to_bytes()[:-1])
        assert told(again) == (413, "wrong_size")
    assert host.close_round() is not None


async def test_a_renewed_certificate_is_shown_and_a_broken_one_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit_server, "LOOK_S", 0.05)
    files, told = certificate(tmp_path), trio.Event()
    port, messages = free_port(), []
    host = host_with(listen=f"127.0.0.1:{port}", certificate=files[0], key=files[1])

    def warn(message: str) -> None:
        messages.append(message)
        told.set()

    host.server._warn = warn

    async def shown() -> str:
        return await trio.to_thread.run_sync(ssl.get_server_certificate, ("127.0.0.1", port))

    async def shown_in_time(wanted: str) -> bool:
        for _ in range(100):
            if await shown() == wanted:
                return True
            await trio.sleep(0.05)
        return False

    async with served(host):
        assert await shown() == files[0].read_text()
        certificate(tmp_path)
        renewed = files[0].read_text()
        assert await shown_in_time(renewed)
        key = files[1].read_bytes()
        certificate(tmp_path)
        files[1].write_bytes(key)  # of another certificate
        with trio.fail_after(5):
            await told.wait()
        await trio.sleep(0.3)
        assert await shown() == renewed, "the one before stays whole"
        certificate(tmp_path)
        assert await shown_in_time(files[0].read_text())
    assert len(messages) == 1
    assert "KEY_VALUES_MISMATCH" in messages[0]


def shown_by(context: ssl.SSLContext) -> str:
    """The certificate of a handshake, without a socket."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = anybody.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True) or b"")


def test_a_renewed_certificate_takes_nothing_from_connections_that_come_meanwhile(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    renewed = RenewedCertificate(*files)
    before, of_before = renewed.context, files[0].read_text()
    certificate(tmp_path)
    assert [renewed.look(), renewed.look()] == [False, True]
    assert shown_by(renewed.context) == files[0].read_text()
    assert shown_by(before) == of_before, "its certificate and key are not replaced one after the other"


def test_a_certificate_that_runs_out_is_told_once_and_again_when_the_next_one_does(tmp_path: Path) -> None:
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    renewed = RenewedCertificate(*certificate(tmp_path))
    assert [renewed.refused_why(now + ahead * day) for ahead in (0, 0.9)] == [None, None]
    assert renewed.refused_why(now + 2 * day) == f"has run out on {now + day:%Y-%m-%d %H:%M} UTC"
    assert renewed.refused_why(now + 3 * day) is None, "it was said"
    certificate(tmp_path, days_off=3)
    assert [renewed.look(), renewed.look()] == [False, True]
    assert renewed.refused_why(now + 3 * day) is None, "nothing is wrong with the new one"
    assert renewed.refused_why(now + 5 * day) is not None
    why = renewed.refused_why(now)
    assert why is not None
    assert why.startswith(f"holds from {now + 2 * day:%Y-%m-%d %H:%M} UTC on, and this machine's clock says"), why


async def test_a_host_says_at_its_start_that_visitors_will_refuse_its_certificate(tmp_path: Path) -> None:
    files = certificate(tmp_path, days_off=-3)
    host = host_with(listen=f"127.0.0.1:{free_port()}", certificate=files[0], key=files[1])
    messages: list[str] = []
    host.server._warn = messages.append
    async with served(host):
        await trio.testing.wait_all_tasks_blocked()
    assert [each.split(" on ")[0] for each in messages] == [
        f"visitors refuse the certificate {files[0]}: it has run out"
    ]


def post_of(body: bytes) -> bytes:
    return b"POST /v1/difference HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)


async def test_newer_connections_cut_no_transfer_that_was_agreed_to() -> None:
    port = free_port()
    host = host_with(listen=f"127.0.0.1:{port}", most_of_network=1)
    first, second = (host.left_by(name).to_bytes() for name in ("one", "two"))
    async with served(host), AsyncExitStack() as open_until_the_end:

        async def connected() -> trio.SocketStream:
            return await open_until_the_end.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))

        upload = await connected()
        await upload.send_all(post_of(first) + first[:100])
        await trio.sleep(0.1)
        for _ in range(2 * MAX_STRANGERS):
            await connected()
        await trio.sleep(0.1)
        await upload.send_all(first[100:])
        with trio.fail_after(5):
            assert (await upload.receive_some()).startswith(b"HTTP/1.1 200")
        await upload.send_all(post_of(second) + second)
        with trio.fail_after(5):
            assert b"network_full" in await upload.receive_some(), "a stranger again"


async def test_a_body_is_refused_by_its_first_bytes() -> None:
    port = free_port()
    host = host_with(listen=f"127.0.0.1:{port}")
    body = host.left_by("one", model=bytes(32)).to_bytes()
    async with served(host), await trio.open_tcp_stream("127.0.0.1", port) as upload:
        await upload.send_all(post_of(body) + body[:HEAD_BYTES])
        with trio.fail_after(5):
            assert b"unknown_model" in await upload.receive_some()


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_transfer_ends_in_time(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit_server, "TRANSFER_S", 0.5)
    monkeypatch.setattr(visit_server, "SEND_BUFFER_BYTES", 100)
    host = host_with()
    body = host.left_by("one").to_bytes()
    messages = iter(range(0, len(body), 10))

    async def receive() -> Message:
        await trio.sleep(0.1)
        at = next(messages)
        return {"type": "http.request", "body": body[at : at + 10], "more_body": True}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        await trio.sleep(0.1)
        sent.append(message)

    method, path = ("POST", "/v1/difference") if way == "up" else ("GET", "/v1/model")
    headers = [(b"host", b"localhost"), (b"content-length", b"%d" % (len(body) if way == "up" else 0))]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    with trio.fail_after(5):
        await host.server.app()({**scope, "client": ("127.0.0.1", 1)}, receive, send)
    assert sent[0]["status"] == (408 if way == "up" else 200)
    assert way == "up" or sent[-1]["more_body"], "it does not seem whole"


async def test_plain_words_to_an_https_port_end_the_connection(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    port = free_port()
    async with served(host_with(listen=f"127.0.0.1:{port}", certificate=files[0], key=files[1])):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"GET /v1/visit HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with trio.fail_after(5):
                assert b"HTTP/1.1 200" not in await stream.receive_some()


async def test_a_port_in_use_is_a_mistake_of_the_settings() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        host = host_with(listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(UsageError) as wrong:
            await host.server.run()
    assert "the visitors' port" in wrong.value.line()
    assert "choose another with visits.listen" in wrong.value.line()


def test_a_certificate_that_is_none_is_one_line(tmp_path: Path) -> None:
    good = certificate(tmp_path)
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    for files, words in (
        ((tmp_path / "none.pem", good[1]), "no file"),
        ((good[0], tmp_path / "none.pem"), "no file"),
        ((junk, good[1]), "cannot be used"),
        ((good[0], junk), "cannot be used"),
    ):
        config = settings(certificate=files[0], key=files[1])
        with pytest.raises(UsageError) as wrong:
            VisitServer(config, VisitedHost().visitors, here)
        assert words in wrong.value.line()


def test_an_encrypted_key_is_one_line_and_not_a_question_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    load = ssl.SSLContext.load_cert_chain

    def noted(context: ssl.SSLContext, certfile: Path, keyfile: Path, password: object = None) -> None:
        given.append(password)
        load(context, certfile, keyfile, password=password or "")  # type: ignore[arg-type]

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", noted)
    files = certificate(tmp_path, serialization.BestAvailableEncryption(b"secret"))
    with pytest.raises(UsageError) as wrong:
        VisitServer(settings(certificate=files[0], key=files[1]), VisitedHost().visitors, here)
    assert "cannot be used" in wrong.value.line()
    assert given != [None], "OpenSSL would ask on the terminal"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"node": {"role": "observer"}}, "observer"),
        ({"train": {"drift": "scaffold"}}, "drift"),
        ({"sync": {"strategy": "mime"}}, "mime"),
        ({"train": {"step_normalization": "fednova"}}, "step_normalization"),
        (
            {"node": {"region": "east"}, "sync": {"regions": ["east", "west"], "residency": {"west": "nothing"}}},
            "residency",
        ),
    ],
)
def test_what_visitors_do_not_go_with(raw: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(UsageError) as wrong:
        check_runnable(from_raw({"visits": {"listen": "127.0.0.1:8443"}, **raw}))
    assert "[visits] does not go with" in wrong.value.line()
    assert words in wrong.value.line()


def test_a_certificate_that_is_not_there_is_found_before_the_settings_are_kept(tmp_path: Path) -> None:
    here = {"listen": "127.0.0.1:8443", "certificate": str(tmp_path / "no.pem"), "key": str(tmp_path / "no.key")}
    with pytest.raises(UsageError) as wrong:
        check_runnable(from_raw({"visits": here}))
    assert "no file" in wrong.value.line()


def test_answers_are_plain_json(host: VisitedHost) -> None:
    assert json.loads(json.dumps(host.visitors.describe())) == host.visitors.describe()
