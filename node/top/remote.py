"""A node's status over HTTP, for `p2ptrain status` and `top`."""

import http.client
import json
import math
import socket
import threading
import time
import tomllib
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from node.events.progress import NodeProgress
from node.system import text
from node.system.errors import P2PTrainError, RunError
from node.system.page_token import load

TIMEOUT_S = 5.0
"""A status page on the same network answers in milliseconds."""

MAX_BYTES = 1 << 20
"""A node's state is a few kilobytes, and 300 bytes for each peer."""

MAX_DIGITS = 24
"""Most digits of a whole number: more than any count has, and no fp64 overflows."""


def fetch(url: str, token: str = "", *, timeout_s: float = TIMEOUT_S) -> NodeProgress:
    """Return the state of the node whose page is at `url`. Raises RunError when no node answers there, or it has not
    answered whole in `timeout_s` seconds."""
    begun = time.monotonic()
    base = url.rstrip("/").removesuffix("/status").removesuffix("/metrics")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{base}/status", headers=headers)
        with open_page(request, timeout=timeout_s) as answer:
            raw: Any = json.loads(answer.read(MAX_BYTES), parse_constant=_none, parse_float=_number, parse_int=_whole)
        return TypeAdapter(NodeProgress).validate_python(_shown(raw))  # a pydantic ValidationError is a ValueError
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 401:
            what = "takes another token than this" if token else "wants its token"
            raise RunError(f"the node at {base} {what}", "give its file with --token-file") from error
        raise RunError(f"no node answers at {base} ({error})", "a node names its address when it starts") from error
    except (OSError, ValueError, http.client.HTTPException, RecursionError) as error:
        # Another program may have the port by now, which speaks no HTTP, or the network's own port was given.
        late = time.monotonic() - begun >= timeout_s and not isinstance(error, TimeoutError | urllib.error.URLError)
        why = "it is too slow" if late else error if isinstance(error, OSError) else "it says something else"
        raise RunError(f"no node answers at {url} ({why})", "a node names its address when it starts") from error


class _Timed(http.client.HTTPConnection):
    """A connection that ends when its time is over, not only where nothing comes for so long: else a page that sends
    a byte now and then would hold up a screen for hours."""

    def connect(self) -> None:
        """Connect, and begin to count."""
        super().connect()
        timer = threading.Timer(self.timeout or TIMEOUT_S, _end, [self.sock])
        timer.daemon = True
        timer.start()


class _TimedPages(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Timed, req)


open_page = urllib.request.build_opener(_TimedPages).open
"""As `urlopen`, with a timeout for the whole answer; by https it is one for each piece."""


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # it was closed meanwhile, which is usual
        connection.shutdown(socket.SHUT_RDWR)


def _none(name: str) -> None:
    """Return None for `NaN` and `Infinity`: a node says null in their place, and nothing here counts with them."""


def _number(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) <= MAX_DIGITS else None


def _shown(value: Any) -> Any:
    """Return JSON values without characters that a terminal would act on: they are another machine's claims."""
    if isinstance(value, str):
        return text.printable(value)
    if isinstance(value, dict):
        return {text.printable(key): _shown(each) for key, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, list) else value


def token_in(file: Path | None) -> str:
    """Return the token in a file that the user named; empty for None. Raises UsageError or RunError for an unusable
    file."""
    return "" if file is None else load(file)


def token_of(settings: Path) -> str:
    """Return the token of a node on this machine, by its `config.toml`; empty where there is none, or we may not read
    it."""
    try:
        section = tomllib.loads(settings.read_text(encoding="utf-8")).get("node")
        file = section.get("status_token_file") if isinstance(section, dict) else None
        return load(Path(file)) if isinstance(file, str) else ""
    except (OSError, ValueError, P2PTrainError):
        return ""
