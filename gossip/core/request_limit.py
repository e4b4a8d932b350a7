"""How many requests are answered: for each peer, and for all strangers together.

A neighbour has its own share whatever others ask: there are `degree` of them, and a few listeners. Everybody else who
may ask in an open swarm (a newcomer's hello, a find request) is a stranger, whose key was free: each has a small share,
and all of them together have one. When that is spent a stranger waits, and is refused when too many wait. So questions
of strangers cost a node a tenth of a core at most, from any number of keys and connections. The cost of such a flood is
that some newcomers have to ask again.
"""

from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket, TokenBucket

REQUESTS_BURST: Final = 40
REQUESTS_PER_S: Final = 40.0
"""Requests of a neighbour that are answered at once, except whole chunks, which the link paces: twice the updates that
anyone takes from us. Each costs 0.5 ms, and one stream of them would take half of a core."""

STRANGER_BURST: Final = 16
STRANGER_PER_S: Final = 1.0
"""The same for a stranger: as many hellos as are read (hellos/hello.py: HELLO_BURST), and as many find requests. A
newcomer says hello once or twice, looks itself up, and then is a neighbour, or gone."""

STRANGERS_BURST: Final = 400
STRANGERS_PER_S: Final = 100.0
"""The same for all strangers together: 5% of a core, twice that where each request is a hello with a record to check.
Fifty newcomers at once send some three hundred in their first seconds. Chosen."""

MAX_WAIT_S: Final = 5.0
"""A stranger's request that would have to wait longer is refused: half of the time that a peer waits for the first byte
of an answer (network.request_timeout_s)."""

SMALL_CHUNK_BYTES: Final = 64 * 1024
"""A smaller chunk counts as a request. Only the last chunk of a blob is so small, or a chunk that is not here."""


class RequestLimit:
    """The request limits of one node."""

    def __init__(self) -> None:
        self._known = KeyedTokenBucket(burst=REQUESTS_BURST, per_s=REQUESTS_PER_S)
        self._stranger = KeyedTokenBucket(burst=STRANGER_BURST, per_s=STRANGER_PER_S)
        self._strangers = TokenBucket(burst=STRANGERS_BURST, per_s=STRANGERS_PER_S)

    def reserve(self, peer: PeerId, now: float, *, known: bool) -> float:
        """Count one more request; return the seconds to wait before it is answered. `known`: from a neighbour or a
        listener, or from a member where keys are not free. Raises RemoteError(UNAVAILABLE), which is no offence and
        takes no share."""
        if known:
            return self._known.reserve(peer, now)
        if self._strangers.pause(now) > MAX_WAIT_S:
            raise RemoteError(Reason.UNAVAILABLE, "too many strangers ask; try another member")
        return max(self._stranger.reserve(peer, now), self._strangers.reserve(1, now))
