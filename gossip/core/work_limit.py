"""How much computing the neighbours' updates may cost: seconds of work, of one neighbour and of all together.

The sender of an update chooses its codec and how often it publishes, and both cost it almost nothing: the slowest codec
takes eighteen times as long to read as the default one, and an update may have a hundred kilobytes for a model of any
size. So the reader measures how long reading took, and pays it from a budget. A neighbour that has spent its budget
waits, and nothing else happens to it: what it published meanwhile is caught up with link by link, or by one snapshot.
It is no offence, for an honest member may have a codec of its own.

There are two sources. **A round of ours** grants each neighbour the time that writing ROUND_UPDATES of our own updates
takes: an honest neighbour publishes once a round, with a codec of the same kind, so that no flood of others ever delays
it. **Time** grants the rest: for newcomers that catch up, members with shorter rounds than ours, costly codecs. That is
shared: PEER_SHARE of a core for each, SHARE for all of them together, in the order of asking. A node that has not
trained yet, or never does (an observer), has nothing that reading could delay, and reads with up to half of a core.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket, TokenBucket

LEAST_WORK_S: Final = 0.005
"""The least cost of an update, whatever its codec: its signature, its pull, a turn of the lock and of a thread. So a
neighbour that publishes more than its rounds is held to PEER_SHARE / LEAST_WORK_S = 5 updates a second beyond those.
Chosen: a node that does little else takes three to five milliseconds of CPU for each."""

ROUND_UPDATES: Final = 2.0
"""One round of ours grants a neighbour, for reading, the time of writing so many of our own updates. Writing includes
reading: a codec that takes twice as long as ours is still followed from round to round."""

ROUNDS_SAVED: Final = 8.0
"""Rounds for which grants accumulate: a neighbour whose link was down catches up with as many links before a snapshot
serves it better (limits.MAX_LINKS)."""

PEER_SHARE: Final = 1 / 40
PEER_BURST_S: Final = 1.0
SHARE: Final = 1 / 10
BURST_S: Final = 4.0
"""Seconds of work per second, and at once: for one neighbour, and for all, beyond what rounds grant. Chosen:
utilization stays above 0.9 whatever eight liars send, and a newcomer's first eight updates never wait for a model of up
to some 25M parameters (0.1 s each)."""

IDLE_PEER_SHARE: Final = 1 / 16
IDLE_PEER_BURST_S: Final = 8.0
IDLE_SHARE: Final = 1 / 2
IDLE_BURST_S: Final = 64.0
"""The same for a node that does not train: half of a core, an eighth of it for each of eight neighbours; at once as
much as a newcomer to a model of 100M parameters needs for eight snapshots and the links after them."""

TOLD_EVERY_S: Final = 600.0
TOLD_BURST: Final = 4
"""Events for a neighbour that is held back: one in ten minutes, and four at once, since it may come and go."""


class _Time:
    """What time grants: each neighbour its part, and all together no more than the whole."""

    def __init__(self, *, peer_burst: float, peer_share: float, burst: float, share: float) -> None:
        self._peer = KeyedTokenBucket(burst=peer_burst, per_s=peer_share)
        self._all = TokenBucket(burst=burst, per_s=share)

    def spend(self, peer: PeerId, seconds: float, now: float) -> None:
        self._peer.spend(peer, seconds, now)
        self._all.spend(seconds, now)

    def pause(self, peer: PeerId, now: float) -> float:
        return max(self._peer.pause(peer, now), self._all.pause(now))


@dataclass
class _Account:
    """One neighbour's account in seconds: what is left of the rounds' grants, its newest update, and all of them."""

    granted: float = 0.0
    newest: float = 0.0
    spent: float = 0.0


class WorkLimit:
    """Seconds of computing that reading the updates of the `neighbours` takes. `total`: since the start."""

    def __init__(self, neighbours: Collection[PeerId]) -> None:
        self.total = 0.0
        self.typical_s: float | None = None
        """Seconds that writing one of our own updates takes; None before the first."""
        self._neighbours = neighbours
        self._accounts: dict[PeerId, _Account] = {}
        self._time = _Time(
            peer_burst=IDLE_PEER_BURST_S, peer_share=IDLE_PEER_SHARE, burst=IDLE_BURST_S, share=IDLE_SHARE
        )
        self._told = KeyedTokenBucket(burst=1, per_s=1 / TOLD_EVERY_S)
        self._told_all = TokenBucket(burst=TOLD_BURST, per_s=TOLD_BURST / TOLD_EVERY_S)

    def __len__(self) -> int:
        return len(self._accounts)

    def spent(self) -> dict[PeerId, float]:
        """Return the seconds by neighbour, since it became one."""
        return {peer: self._account(peer).spent for peer in self._neighbours}

    def trained(self, encode_s: float) -> None:
        """Grant every neighbour its share for a round of ours, whose update took so many seconds to write."""
        if self.typical_s is None:
            self._time = _Time(peer_burst=PEER_BURST_S, peer_share=PEER_SHARE, burst=BURST_S, share=SHARE)
            self.typical_s = max(encode_s, LEAST_WORK_S)
        self.typical_s = max((self.typical_s + encode_s) / 2, LEAST_WORK_S)
        for peer in self._neighbours:
            account = self._account(peer)
            saved = account.granted + ROUND_UPDATES * self.typical_s
            account.granted = min(saved, ROUNDS_SAVED * self.typical_s)

    def spend(self, peer: PeerId, seconds: float, now: float) -> None:
        """Note how long reading an update of `peer` took. It may have left meanwhile."""
        self.total += seconds
        account, cost = self._account(peer), max(seconds, LEAST_WORK_S)
        account.spent, account.newest = account.spent + seconds, cost
        granted = min(account.granted, cost)
        account.granted -= granted
        self._time.spend(peer, cost - granted, now)

    def pause(self, peer: PeerId, now: float) -> float:
        """Return the seconds until the next update of `peer` may be read, if no round of ours ends before; 0: now. The
        last update's cost is taken as the estimate."""
        account = self._account(peer)
        return 0.0 if account.granted >= max(account.newest, LEAST_WORK_S) else self._time.pause(peer, now)

    def complaint(self, peer: PeerId, now: float) -> str | None:
        """Return the message about a neighbour that is held back; None where it was sent lately."""
        if not self._told.has(peer, now) or not self._told_all.take(1, now):
            return None
        self._told.take(peer, now)
        newest, ours = self._account(peer).newest, self.typical_s or 0.0
        return (
            "its updates are read more seldom than it publishes them: the newest took "
            f"{1000 * newest:.1f} ms to read, and ours {1000 * ours:.1f} to write"
        )

    def _account(self, peer: PeerId) -> _Account:
        """Return the account of a neighbour. Only neighbours have one: the debt of a peer that left is in the 1,024
        buckets."""
        if peer not in self._neighbours:
            return _Account()
        if peer not in self._accounts:
            self._accounts = {each: it for each, it in self._accounts.items() if each in self._neighbours}
        return self._accounts.setdefault(peer, _Account())
