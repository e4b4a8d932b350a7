"""Visitors over HTTP: `/v1/visit` says what there is to do, `/v1/model` gives a model, `/v1/difference` takes what a
visitor left.

It is served by the page's own HTTP (node/page/http1.py), on a port of its own. A difference is refused by the request's
head, before a byte of its body is read, or by the body's first 136 bytes. A transfer that is agreed to keeps its
connection, and has a time for the whole. A browser names the origin of the web page that asks. None is answered that is
not set, so that a page in the operator's browser cannot use an address that only this machine reaches.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

import trio
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.config.visits_section import VisitsConfig
from node.page.guard import HEADERS, MAX_QUERY, is_loopback_name
from node.page.serving import SEND_BUFFER_BYTES, Transfers, serve
from node.page.status_server import bind
from node.system.errors import RunError, UsageError
from node.system.page_token import is_loopback, load_or_create, matches
from node.visits.difference_head import HEAD_BYTES
from node.visits.refusals import Refusal, RefusedVisitError
from node.visits.tls_certificate import LOOK_S, RenewedCertificate, certificate_of
from node.visits.visit_bounds import Place
from node.visits.visitors import ModelAnswer, Offload, Visitors

ANY: Final = "*"
ALLOWED: Final = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "600",
}
"""What a page of an allowed origin may send."""
EXPOSED: Final = "p2ptrain-form, p2ptrain-round, p2ptrain-model"
DIGITS: Final = 64
"""Of a digest and of a key, in hex."""
TRANSFER_S: Final = 60.0
"""Seconds that any model or difference may take on its way."""
TRANSFER_BYTES_PER_S: Final = 1 << 16
"""So many bytes have one second more: half a megabit a second, a bad mobile link."""


class VisitGuard:
    """Wraps the application: callers without the token, names that are not loopback's on a loopback address, and web
    pages of origins that are not allowed are refused."""

    def __init__(self, app: ASGIApp, config: VisitsConfig, token: str) -> None:
        self._app = app
        self._token = token
        self._origins = frozenset(config.origins)
        self._loopback = is_loopback(config.host) and not token
        """Whether only names of loopback are answered: a web page can make its own name lead here (DNS rebinding)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = origin is not None and not self._origins.isdisjoint((origin, ANY))
        refusal = self._refusal(scope, headers, origin, allowed=allowed)
        if self._token and refusal is None and "admit" in scope.get("state", {}):
            scope["state"]["admit"]()

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                head = MutableHeaders(raw=message.setdefault("headers", []))
                head.update({**HEADERS, "cache-control": "no-store"})
                if allowed and origin is not None:
                    more = {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED}
                    head.update({**more, "vary": "origin", "cross-origin-resource-policy": "cross-origin"})
            await send(message)

        await (self._app if refusal is None else refusal)(scope, receive, send_safely)

    def _refusal(self, scope: Scope, headers: Headers, origin: str | None, *, allowed: bool) -> Response | None:
        if self._loopback and not is_loopback_name(headers.get("host", "")):
            return told(421, "wrong_host", "ask for 127.0.0.1 or localhost: other names are not answered here")
        if origin is not None and not allowed:
            return told(403, "origin", "web pages of this origin may not visit: its operator sets visits.origins")
        if scope["method"] == "HEAD":
            return told(405, "method", "ask with GET", {"allow": "GET"})
        if scope["method"] == "OPTIONS" and allowed:
            return Response(status_code=204, headers=ALLOWED)
        if self._token:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not matches(self._token, given.strip()):
                return told(401, "token", "a token is needed, as a bearer token", {"www-authenticate": "Bearer"})
        return None


class VisitServer:
    """Serves a node's visitors. `offload`: runs what computes in a thread. `warn`: tells the operator something."""

    def __init__(
        self,
        config: VisitsConfig,
        visitors: Visitors,
        offload: Offload[Any],
        warn: Callable[[str], object] = lambda message: None,
    ) -> None:
        """Raises UsageError for a certificate or a token file that cannot be used."""
        self._config = config
        self._visitors = visitors
        self._offload = offload
        self._warn = warn
        self._token = "" if config.token_file is None else load_or_create(config.token_file)
        self._certificate = certificate_of(config)

    def secrets(self) -> tuple[str, ...]:
        """Return the secrets that no log may show."""
        return (self._token,) if self._token else ()

    def app(self) -> ASGIApp:
        """Return the application."""
        routes = [
            Route("/v1/visit", self._visit),
            Route("/v1/model", self._model),
            Route("/v1/difference", self._difference, methods=["POST"]),
        ]
        handlers: Any = {RefusedVisitError: _refused}
        return VisitGuard(Starlette(routes=routes, exception_handlers=handlers), self._config, self._token)

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started with the URL. UsageError when the port is taken."""
        config = self._config
        try:
            listener = bind(config.host, config.port, name="visitors' port", setting="visits.listen")
        except RunError as error:
            raise UsageError(error.message, "choose another with visits.listen") from error
        with listener:
            task_status.started(f"http{'' if self._certificate is None else 's'}://{config.listen}")
            transfers = Transfers(
                max_body=self._visitors.body_bytes, most=config.most_a_round, of_network=config.most_of_network
            )
            async with trio.open_nursery() as nursery:
                certificate = self._certificate
                if certificate is None:
                    await serve(self.app(), listener, transfers=transfers)
                else:
                    nursery.start_soon(self._renew, certificate)
                    await serve(self.app(), listener, tls=lambda: certificate.context, transfers=transfers)

    async def _renew(self, certificate: RenewedCertificate) -> None:
        while True:
            if why := certificate.refused_why(datetime.now(UTC)):
                self._warn(f"visitors refuse the certificate {self._config.certificate}: it {why}; renew it")
            await trio.sleep(LOOK_S)
            try:
                await trio.to_thread.run_sync(certificate.look, abandon_on_cancel=True)
            except UsageError as error:
                self._warn(f"visitors are shown the certificate of before: {error.message}")

    async def _visit(self, request: Request) -> Response:
        if key := _digits_of(request.scope, "key"):
            self._visitors.check_turn(key, _host(request))
        return JSONResponse(self._visitors.describe(key))

    async def _model(self, request: Request) -> Response:
        return _model_response(
            await self._visitors.model_for(
                _digits_of(request.scope, "have"), _host(request), self._offload, _hold(request)
            )
        )

    async def _difference(self, request: Request) -> Response:
        visitors, host = self._visitors, _host(request)
        try:
            with visitors.expect(_length(request.headers), host) as place:
                _hold(request)()
                await visitors.take(await self._body(request, place), place, self._offload)
        except ClientDisconnect:
            visitors.refused(Refusal.TOO_SLOW)
            return _answer(Refusal.TOO_SLOW)
        except RefusedVisitError as error:
            visitors.refused(error.refusal)
            raise
        return JSONResponse({"accepted": True})

    async def _body(self, request: Request, place: Place) -> bytes:
        """Return a difference's body. Raises ClientDisconnect, and RefusedVisitError once its first bytes are enough to
        refuse it."""
        body, is_checked = bytearray(), False
        with trio.move_on_after(transfer_s(self._visitors.body_bytes)):
            async with aclosing(request.stream()) as parts:
                async for part in parts:
                    body += part
                    if not is_checked and len(body) >= HEAD_BYTES:
                        self._visitors.check_head(bytes(body[:HEAD_BYTES]), place)
                        is_checked = True
            return bytes(body)
        raise RefusedVisitError(Refusal.TOO_SLOW)


class _PartedResponse(Response):
    """A model in parts, each of which has an answer's time of its own, and all of them together a transfer's."""

    def __init__(self, payload: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers, media_type="application/octet-stream")
        del self.headers["content-length"]
        self._payload = payload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; what is not sent in time is left out, and the connection ends."""
        with trio.move_on_after(transfer_s(len(self._payload))):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, len(self._payload), SEND_BUFFER_BYTES):
                part = self._payload[start : start + SEND_BUFFER_BYTES]
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body"})


def transfer_s(size: int) -> float:
    """Return the seconds that so many bytes may take."""
    return TRANSFER_S + size / TRANSFER_BYTES_PER_S


def _model_response(answer: ModelAnswer) -> Response:
    headers = {
        "p2ptrain-form": answer.form,
        "p2ptrain-round": str(answer.version.round),
        "p2ptrain-model": answer.version.digest.hex(),
    }
    if len(answer.payload) <= SEND_BUFFER_BYTES:
        return Response(answer.payload, media_type="application/octet-stream", headers=headers)
    return _PartedResponse(answer.payload, headers)


def _hold(request: Request) -> Callable[[], None]:
    """Return what keeps the request's connection until it is answered."""
    hold: Callable[[], None] = request.scope.get("state", {}).get("hold", lambda: None)
    return hold


def told(status: int, reason: str, words: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal as JSON."""
    body = json.dumps({"error": words, "reason": reason}) + "\n"
    return Response(body, status, media_type="application/json", headers=headers)


def _answer(refusal: Refusal) -> Response:
    return told(refusal.value.status, refusal.label, refusal.value.words)


async def _refused(_: Request, error: RefusedVisitError) -> Response:
    return _answer(error.refusal)


def _length(headers: Headers) -> int:
    """Return what Content-Length says; -1 where it says nothing: such a body has no size known in advance."""
    if "transfer-encoding" in headers:
        return -1
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < len(str(1 << 60)) else -1


def _digits_of(scope: Scope, name: str) -> bytes:
    """Return a digest or a key in the query; empty where there is none."""
    query = scope["query_string"]
    given = QueryParams(query).get(name, "") if len(query) <= MAX_QUERY else ""
    try:
        return bytes.fromhex(given) if len(given) == DIGITS else b""
    except ValueError:
        return b""


def _host(request: Request) -> str:
    return "" if request.client is None else request.client.host
