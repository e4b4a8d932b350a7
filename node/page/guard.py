"""Access control of the page: requests can only read, and only permitted clients are answered.

On loopback the danger is a web page in the same machine's browser: it can make its own name resolve to 127.0.0.1 and
then read our answers as its own (DNS rebinding). It cannot choose the Host header, so only names of loopback are
answered. With a token, any client that has it is answered, under any name. The headers of an answer tell browsers: no
scripts but our own, no frame around the page, no address of ours to other sites.
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
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
"""Headers of every answer."""

OPEN_TO_ALL = frozenset({"/healthz"})
"""Paths that need no token. They say only that the process is alive: a supervisor that restarts it has no token."""

MAX_QUERY = 1024
"""Most bytes of a query, which holds at most a token."""


_HOST: Final = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[0-9A-Za-z.]{1,15}))(?::[0-9]{1,5})?")
"""A Host header that may be loopback's: an address, or `localhost`, and a port (of a tunnel, it may be any)."""


_LOOPBACK_6: Final = ipaddress.IPv6Address("::1")
"""The only IPv6 loopback address accepted. Whether `::ffff:127.0.0.1` is one depends on Python's release, and no
browser uses it."""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    refusal: Response | None = None
    cookie: str = ""
    """Cookie for a client that has just shown the token."""
    admits: bool = False
    """Whether the client has shown that it may ask: so far the connection was a stranger's (serving.py)."""


class Guard:
    """Wraps the application. An empty `token` means loopback only, where no token is asked for."""

    def __init__(self, app: ASGIApp, *, token: str = "", port: int = 0) -> None:
        self._app = app
        self._token = token
        self._cookie = f"p2ptrain-{port}"
        """Name of the cookie, by port: nodes on one host share a browser's cookie jar."""

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
    """Return whether a Host header is exactly `localhost` or an address of loopback, by RFC 9112."""
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


def _cookies(headers: Headers, name: str) -> Iterator[str]:
    """Yield the values of the cookie `name`. Cookies know no port: those of other programs of the host come along, and
    `http.cookies` gives up at the first that is not by its book."""
    for header in headers.getlist("cookie"):
        for pair in header.split(";"):
            key, _, value = pair.partition("=")
            if key.strip() == name:
                yield value.strip()
