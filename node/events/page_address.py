"""Where a node's page is opened, as it is printed for people: an address to click, and how the token comes into it.

The token itself is never printed: terminals and logs are copied into issues. The file that holds it is named.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from node.events.progress import NodeProgress

_WILDCARDS: Final = (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:"))
"""Addresses to listen on that are none to open; whoever reads them here is on the same machine."""

MAX_LISTED: Final = 8
"""Pages that are named one by one; chosen: more would push the table off the screen."""


def page_of(url: str) -> str:
    """The page's own address, for a `metrics_url` of the event `started`."""
    for wildcard, loopback in _WILDCARDS:
        url = url.replace(wildcard, loopback)
    return f"{url.rstrip('/')}/"


def page_words(url: str, token_file: object = None) -> str:
    """The address, and where a token is wanted the file in which it stands."""
    page = page_of(url)
    return f"{page}  (once with ?token= and what {token_file} says)" if token_file else page


def page_lines(nodes: Iterable[NodeProgress]) -> Iterator[str]:
    """A line for each node that has not ended and serves a page, the first MAX_LISTED of them."""
    living = [node for node in nodes if node.metrics_url and not node.over]
    for node in living[:MAX_LISTED]:
        yield f"page of {node.name}: {page_words(node.metrics_url or '', node.token_file)}"
    if len(living) > MAX_LISTED:
        yield f"and {len(living) - MAX_LISTED} pages more; p2ptrain page RUN shows all nodes on one"
