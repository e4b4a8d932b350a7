"""The node's own page at its status address: `/` for people, /metrics for Prometheus, /status for programs, /events for
the page itself, /healthz for whoever restarts things.

It binds its port itself, so that a port in use is one clear error at the start, and listens on loopback unless told
otherwise: what it shows (losses, peers, addresses) is nobody else's business by default, and elsewhere wants a token.
"""

import errno
import socket
from pathlib import Path

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.errors import RunError, UsageError
from node.events import to_line
from node.metrics import Metrics
from node.page.feed import Feed
from node.page.guard import Guard
from node.page.serving import limit_buffers, serve
from node.page.stream import Streams
from node.page.token import check_exposure, cookie_of, load_or_create
from node.sections import NodeConfig

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
"""Every file of the page, by path; there is no other way to a file."""

FOLDER = Path(__file__).parent / "page" / "static"


class StatusServer:
    """Serves one node's page, metrics and state. `token` empty: loopback alone."""

    def __init__(
        self, metrics: Metrics, feed: Feed, *, host: str = "127.0.0.1", port: int = 0, token: str = ""
    ) -> None:
        """UsageError for an address that others reach, without a token."""
        check_exposure(host, token or None)
        self._metrics = metrics
        self._feed = feed
        self._host = host
        self._port = port
        self._token = token

    def secrets(self) -> tuple[str, ...]:
        """What opens the page, and no log may show; nothing where no token is asked for."""
        return (self._token, cookie_of(self._token)) if self._token else ()

    def app(self, port: int = 0) -> Guard:
        """The ASGI application; `port` is the one that it is served at."""
        routes = [
            Route("/metrics", self._serve_metrics),
            Route("/status", self._serve_status),
            Route("/healthz", _healthz),
            Route("/events", Streams(self._feed)),
            *(Route(path, _file) for path in STATIC),
        ]
        return Guard(Starlette(routes=routes), token=self._token, port=port)

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started with the page's URL. RunError when the port is taken."""
        listener = _bind(self._host, self._port)
        host, port = listener.getsockname()[:2]
        with listener:
            task_status.started(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            await serve(self.app(port), listener)

    async def _serve_metrics(self, _: Request) -> Response:
        return Response(self._metrics.exposition(), media_type=self._metrics.content_type)

    async def _serve_status(self, _: Request) -> Response:
        return Response(to_line(self._feed.status()), media_type="application/json")  # paths and NaN are no JSON


def server_of(config: NodeConfig, metrics: Metrics, feed: Feed) -> StatusServer | None:
    """The server that the settings ask for, if any. UsageError or RunError on a token file that is of no use."""
    if config.metrics_port < 0:
        return None
    token = "" if config.status_token_file is None else load_or_create(config.status_token_file)
    return StatusServer(metrics, feed, host=config.metrics_host, port=config.metrics_port, token=token)


async def _healthz(_: Request) -> Response:
    return JSONResponse({"ok": True})


async def _file(request: Request) -> Response:
    name, kind = STATIC[request.url.path]
    # Some 100 kB in all, so that it may be asked for anew each time: after an upgrade no page is of two versions.
    return Response((FOLDER / name).read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        limit_buffers(listener)
        listener.bind((host, port))
        listener.listen(16)  # scrapers, not crowds
    except OSError as error:
        listener.close()
        raise _bind_error(error, host, port) from error
    return listener


def _bind_error(error: OSError, host: str, port: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        hint = "choose another with --set node.metrics_port=..., or 0 for any free one"
        return RunError(f"the metrics port {host}:{port} is in use", hint)
    return UsageError(
        f"cannot listen for metrics on {host}:{port}: {error.strerror}", "see node.metrics_host and _port"
    )
