"""Who may ask: nothing but reading, and only for those whom it is meant for.

On loopback, a page of the internet in the same machine's browser is the danger: it can make its own name lead to
127.0.0.1 and read as its own (DNS rebinding). It cannot choose the Host header, so only names that are loopback's own
are answered. With a token, whoever has it is answered, whatever name it uses. What is sent says to browsers: no scripts
but our own, no frame around us, no address of ours to others.
"""

from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.page.token import cookie_of, is_loopback, matches

POLICY = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    )
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Of every answer."""

OPEN_TO_ALL = frozenset({"/healthz"})
"""Says that the process lives, and nothing else: whoever restarts things has no token."""

MAX_QUERY = 1024
"""A query is a token at most."""


class Guard:
    """Stands before the application. `token` empty: loopback alone, and no token is asked for."""

    def __init__(self, app: ASGIApp, *, token: str = "", port: int = 0) -> None:
        self._app = app
        self._token = token
        self._cookie = f"p2ptrain-{port}"
        """Nodes on one host have one cookie jar."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":  # no websockets here, and nothing to do at start and end
            return
        refusal, welcome = self._judge(scope)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
                if welcome:
                    headers.append("set-cookie", welcome)
            await send(message)

        await (self._app if refusal is None else refusal)(scope, receive, send_safely)

    def _judge(self, scope: Scope) -> tuple[Response | None, str]:
        """What to refuse with, if at all; and the cookie for whoever has just shown the token."""
        headers = Headers(scope=scope)
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("read only\n", 405, {"allow": "GET, HEAD"}), ""
        if not self._token:
            known = is_loopback(_host_in(headers.get("host", "")))
            words = "ask for 127.0.0.1 or localhost: other names are not answered here\n"
            return (None if known else PlainTextResponse(words, 421)), ""
        if scope["path"] in OPEN_TO_ALL or self._has_shown(headers):
            return None, ""
        if any(matches(self._token, given) for given in _in_query(scope["query_string"])):
            return None, f"{self._cookie}={cookie_of(self._token)}; Path=/; HttpOnly; SameSite=Strict"
        words = "a token is needed: open this page once with ?token=TOKEN, or send it as a bearer token\n"
        return PlainTextResponse(words, 401, {"www-authenticate": "Bearer"}), ""

    def _has_shown(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and matches(self._token, given.strip()):
            return True
        return any(matches(cookie_of(self._token), value) for value in _cookies(headers, self._cookie))


def _host_in(header: str) -> str:
    """Without the port; `[::1]:80` is an address in brackets."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def _in_query(query: bytes) -> list[str]:
    if len(query) > MAX_QUERY:
        return []
    return parse_qs(query.decode("latin-1"), max_num_fields=None).get("token", [])


def _cookies(headers: Headers, name: str) -> Iterable[str]:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return []
    return [] if morsel is None else [morsel.value]
