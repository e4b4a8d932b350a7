"""Who may ask: nothing but reading, and only for those whom it is meant for.

On loopback, a page of the internet in the same machine's browser is the danger: it can make its own name lead to
127.0.0.1 and read as its own (DNS rebinding). It cannot choose the Host header, so only names that are loopback's own
are answered. With a token, whoever has it is answered, whatever name it uses. What is sent says to browsers: no scripts
but our own, no frame around us, no address of ours to others.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.system.page_token import cookie_of, matches

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


_HOST: Final = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[0-9A-Za-z.]{1,15}))(?::[0-9]{1,5})?")
"""A Host header that may be loopback's: an address, or `localhost`, and a port (of a tunnel, it may be any)."""


_LOOPBACK_6: Final = ipaddress.IPv6Address("::1")
"""There is one. Whether `::ffff:127.0.0.1` is another depends on Python's release; no browser asks for it."""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    refusal: Response | None = None
    cookie: str = ""
    """For whoever has just shown the token."""
    admits: bool = False
    """Whether the client has shown that it may ask: so far the connection was a stranger's (serving.py)."""


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
        verdict = self._judge(scope)
        if verdict.admits and "admit" in scope.get("state", {}):
            scope["state"]["admit"]()

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
                if verdict.cookie:
                    headers.append("set-cookie", verdict.cookie)
            await send(message)

        await (self._app if verdict.refusal is None else verdict.refusal)(scope, receive, send_safely)

    def _judge(self, scope: Scope) -> _Verdict:
        headers = Headers(scope=scope)
        if scope["method"] not in {"GET", "HEAD"}:
            return _Verdict(refusal=PlainTextResponse("read only\n", 405, {"allow": "GET, HEAD"}))
        if not self._token:
            if is_loopback_name(headers.get("host", "")):
                return _Verdict(admits=True)
            words = "ask for 127.0.0.1 or localhost: other names are not answered here\n"
            return _Verdict(refusal=PlainTextResponse(words, 421))
        if self._has_shown(headers):
            return _Verdict(admits=True)
        if any(matches(self._token, given) for given in _in_query(scope["query_string"])):
            cookie = f"{self._cookie}={cookie_of(self._token)}; Path=/; HttpOnly; SameSite=Strict"
            return _Verdict(cookie=cookie, admits=True)
        if scope["path"] in OPEN_TO_ALL:
            return _Verdict()
        words = "a token is needed: open this page once with ?token=TOKEN, or send it as a bearer token\n"
        return _Verdict(refusal=PlainTextResponse(words, 401, {"www-authenticate": "Bearer"}))

    def _has_shown(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and matches(self._token, given.strip()):
            return True
        return any(matches(cookie_of(self._token), value) for value in _cookies(headers, self._cookie))


def is_loopback_name(header: str) -> bool:
    """Whether a Host header is `localhost` or an address of loopback, as RFC 9112 has it, and nothing beside."""
    parts = _HOST.fullmatch(header)
    if parts is None:
        return False
    if parts["name"] is not None and parts["name"].lower() == "localhost":
        return True
    try:
        if parts["ipv6"] is not None:
            return ipaddress.IPv6Address(parts["ipv6"]) == _LOOPBACK_6
        return ipaddress.IPv4Address(parts["name"]).is_loopback
    except ValueError:
        return False


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
