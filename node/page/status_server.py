"""The node's own page at its status address: `/` for people, /metrics for Prometheus, /status for programs, /events for
the page itself, /healthz for supervisors that restart processes.

It binds its port itself, so that a port in use is one clear error at the start. It listens on loopback by default,
since what it shows (losses, peers, addresses) is private; on other addresses it wants a token.
"""

import errno
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.config.sections import NodeConfig
from node.events.log import to_line
from node.metrics.node_metrics import Metrics
from node.page.feed import Feed
from node.page.guard import Guard
from node.page.serving import limit_buffers, serve
from node.page.stream import Streams
from node.page.swarm_feed import SwarmFeed
from node.system.errors import RunError, UsageError
from node.system.page_token import check_exposure, cookie_of, load_or_create

SHARED = {
    "/page.css": ("page.css", "text/css"),
    "/words.js": ("words.js", "text/javascript"),
    "/live.js": ("live.js", "text/javascript"),
    "/chart.js": ("chart.js", "text/javascript"),
    "/uplot.js": ("uplot.js", "text/javascript"),
    "/uplot.css": ("uplot.css", "text/css"),
    "/uplot.LICENSE": ("uplot.LICENSE", "text/plain"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Files of a node's page and of a swarm's, by path."""

STATIC = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/graph.js": ("graph.js", "text/javascript"),
    **SHARED,
}
"""Every file of the page, by path; no other file can be requested."""

FOLDER = Path(__file__).parent / "static"


SWARM_STATIC = {
    "/": ("swarm.html", "text/html"),
    "/swarm.js": ("swarm.js", "text/javascript"),
    "/exchanges.js": ("exchanges.js", "text/javascript"),
    **SHARED,
}
"""Every file of a swarm's page."""


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a page is served. An empty `token` means loopback only. `name`, `setting`: the port's name and its setting,
    for error messages."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    name: str = "metrics port"
    setting: str = "--set node.metrics_port=..."

    def __post_init__(self) -> None:
        check_exposure(self.host, self.token or None)

    async def serve(self, routes: list[Route], task_status: trio.TaskStatus[str]) -> None:
        """Serve until cancelled; started with the page's URL. RunError when the port is taken."""
        listener = bind(self.host, self.port, name=self.name, setting=self.setting)
        host, port = listener.getsockname()[:2]
        with listener:
            task_status.started(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            await serve(Guard(Starlette(routes=routes), token=self.token, port=port), listener)


class SwarmServer:
    """Serves the page of a whole swarm, with the same access control as a node's page."""

    def __init__(self, feed: SwarmFeed, at: Listening) -> None:
        self._feed = feed
        self._at = at

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started with the page's URL. RunError when the port is taken."""
        routes = [
            Route("/status", self._serve_status),
            Route("/healthz", _healthz),
            Route("/events", Streams(self._feed)),
            *(Route(path, _file_of(SWARM_STATIC)) for path in SWARM_STATIC),
        ]
        await self._at.serve(routes, task_status)

    async def _serve_status(self, _: Request) -> Response:
        await self._feed.replay()
        return Response(to_line(self._feed.status()), media_type="application/json")


class StatusServer:
    """Serves one node's page, metrics and state. An empty `token` means loopback only."""

    def __init__(
        self, metrics: Metrics, feed: Feed, *, host: str = "127.0.0.1", port: int = 0, token: str = ""
    ) -> None:
        """Raises UsageError for an address that others can reach, without a token."""
        self._metrics = metrics
        self._feed = feed
        self._at = Listening(host=host, port=port, token=token)

    def secrets(self) -> tuple[str, ...]:
        """Return the secrets that open the page, which no log may show; empty where no token is asked for."""
        token = self._at.token
        return (token, cookie_of(token)) if token else ()

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started with the page's URL. RunError when the port is taken."""
        routes = [
            Route("/metrics", self._serve_metrics),
            Route("/status", self._serve_status),
            Route("/healthz", _healthz),
            Route("/events", Streams(self._feed)),
            *(Route(path, _file_of(STATIC)) for path in STATIC),
        ]
        await self._at.serve(routes, task_status)

    async def _serve_metrics(self, _: Request) -> Response:
        return Response(self._metrics.exposition(), media_type=self._metrics.content_type)

    async def _serve_status(self, _: Request) -> Response:
        return Response(to_line(self._feed.status()), media_type="application/json")  # paths and NaN are no JSON


def server_of(config: NodeConfig, metrics: Metrics, feed: Feed) -> StatusServer | None:
    """Return the server that the settings ask for, if any. Raises UsageError or RunError for an unusable token file."""
    if config.metrics_port < 0:
        return None
    token = "" if config.status_token_file is None else load_or_create(config.status_token_file)
    return StatusServer(metrics, feed, host=config.metrics_host, port=config.metrics_port, token=token)


async def _healthz(_: Request) -> Response:
    return JSONResponse({"ok": True})


def _file_of(files: Mapping[str, tuple[str, str]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        name, kind = files[request.url.path]
        # Some 100 kB in all, so browsers may fetch it each time: after an upgrade no page mixes two versions.
        return Response((FOLDER / name).read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})

    return answer


def bind(host: str, port: int, *, name: str, setting: str) -> socket.socket:
    """Return a socket that listens. RunError where the port is taken, UsageError for an address that is none of this
    machine's; `name` and `setting` are the port's name and its setting, for these."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        limit_buffers(listener)
        listener.bind((host, port))
        listener.listen(16)  # for a few scrapers
    except OSError as error:
        listener.close()
        raise _bind_error(error, f"{host}:{port}", name, setting) from error
    return listener


def _bind_error(error: OSError, address: str, name: str, setting: str) -> Exception:
    if error.errno == errno.EADDRINUSE:
        hint = f"choose another with {setting}, or 0 for any free one"
        return RunError(f"the {name} {address} is in use", hint)
    return UsageError(f"cannot listen on {address}: {error.strerror}", f"the {name} is chosen by {setting}")
