"""The address of a node's page, as printed for people: a link to click, and how to add the token.

The token itself is never printed, since terminals and logs are copied into issues. Its file is named instead.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from node.events.progress import NodeProgress

_WILDCARDS: Final = (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:"))
"""Wildcard addresses that a browser cannot open, and what replaces them: a reader here is on the same machine."""

MAX_LISTED: Final = 8
"""Most pages that are listed one by one. Chosen: more would push the table off the screen."""


def page_of(url: str) -> str:
    """Return the page's address for the `metrics_url` of the event `started`."""
    for wildcard, loopback in _WILDCARDS:
        url = url.replace(wildcard, loopback)
    return f"{url.rstrip('/')}/"


def page_words(url: str, token_file: object = None) -> str:
    """Return the page's address, and the file of the token where one is wanted."""
    page = page_of(url)
    return f"{page}  (once with ?token= and what {token_file} says)" if token_file else page


def page_lines(nodes: Iterable[NodeProgress]) -> Iterator[str]:
    """Yield a line for each node that has not ended and serves a page, for the first MAX_LISTED of them."""
    living = [node for node in nodes if node.metrics_url and not node.over]
    for node in living[:MAX_LISTED]:
        yield f"page of {node.name}: {page_words(node.metrics_url or '', node.token_file)}"
    if len(living) > MAX_LISTED:
        yield f"and {len(living) - MAX_LISTED} pages more; p2ptrain page RUN shows all nodes on one"
