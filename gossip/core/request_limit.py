"""How many requests are answered: of each peer, and of all strangers together.

A neighbour has its own share whatever others ask: there are `degree` of them, and a few listeners. Everybody else who
may ask in an open swarm (a newcomer's hello, a question for a member) is a stranger, whose key was free: each has a
small share, and all of them one together. Who comes when that is spent waits, and is refused when too many wait. So
questions of strangers cost a node a tenth of a core at the most, from however many keys and connections they come; what
a flood of them costs is that some newcomers have to ask again.
"""

from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket, TokenBucket

REQUESTS_BURST: Final = 40
REQUESTS_PER_S: Final = 40.0
"""Requests of a neighbour that are answered at once, but for whole chunks, which the link paces: twice the updates that
anyone takes of us. Each costs 0.5 ms, and one stream of them would take a core's half."""

STRANGER_BURST: Final = 16
STRANGER_PER_S: Final = 1.0
"""The same of a stranger: as many hellos as are looked at (engine.py: HELLO_BURST), and as many questions for others. A
newcomer says hello once or twice, looks itself up, and is a neighbour then, or gone."""

STRANGERS_BURST: Final = 400
STRANGERS_PER_S: Final = 100.0
"""Of all strangers: 5% of a core, twice that where each is a hello with a record to check. Fifty newcomers at once ask
some three hundred times in their first seconds. Chosen."""

MAX_WAIT_S: Final = 5.0
"""A stranger's request that would have to wait longer is refused: half of anybody's patience for the first byte of an
answer (network.request_timeout_s)."""

SMALL_CHUNK_BYTES: Final = 64 * 1024
"""A chunk that carries less counts as a request: of a blob that is the last one at most, or one that is not here."""


class RequestLimit:
    """Of one node."""

    def __init__(self) -> None:
        self._known = KeyedTokenBucket(burst=REQUESTS_BURST, per_s=REQUESTS_PER_S)
        self._stranger = KeyedTokenBucket(burst=STRANGER_BURST, per_s=STRANGER_PER_S)
        self._strangers = TokenBucket(burst=STRANGERS_BURST, per_s=STRANGERS_PER_S)

    def reserve(self, peer: PeerId, now: float, *, known: bool) -> float:
        """Take up one more request; seconds to wait before it is answered. `known`: of a neighbour or a listener, or of
        a member where keys are not free. Raises RemoteError(UNAVAILABLE): no offence, and no part of the share."""
        if known:
            return self._known.reserve(peer, now)
        pause = self._stranger.reserve(peer, now)
        if self._strangers.pause(now) > MAX_WAIT_S:
            raise RemoteError(Reason.UNAVAILABLE, "too many strangers ask; try another member")
        return max(pause, self._strangers.reserve(1, now))
