"""What an offence costs: points by reason, which decay; at 100 a peer is banned.

The points answer "how sure are we that this was no accident". A forged signature cannot be one: three of them ban. A
timeout is mostly one, and only a peer that never answers collects enough. Equivocation is proved and bans at once,
until we restart. Points halve every five minutes, so that an honest peer's rare mishaps never add up.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from gossip.core.errors import Reason
from gossip.core.ids import PeerId

BAN_AT: Final = 100.0
HALF_LIFE_S: Final = 300.0
BAN_S: Final = 3600.0
"""An hour: a repaired node comes back within a run, and an attacker can do 100 points' worth of harm in an hour."""

MAX_SCORED_PEERS: Final = 1024
"""Peers with points or a ban; beyond it the longest untouched one that is not banned is forgotten, and where all are
banned the longest untouched ban: keys cost nothing, so who has made a thousand needs no old one."""

POINTS: Final[dict[Reason, float]] = {
    Reason.EQUIVOCATION: 1000.0,  # proved
    Reason.FORGED: 50.0,  # no accident: transports do not alter bytes
    Reason.DIGEST_MISMATCH: 34.0,  # the same, but a blob may be replaced while it is served
    Reason.CONTRADICTED: 34.0,  # memory errors could cause it once
    Reason.WRONG_SHAPE: 34.0,  # signed, and useless
    Reason.NONFINITE: 34.0,  # signed, and harmful; an honest node's training may blow up once
    Reason.UNKNOWN_CODEC: 34.0,
    Reason.MALFORMED: 25.0,
    Reason.OVERSIZE: 25.0,
    Reason.PROTOCOL: 20.0,
    # mostly settings that differ at the other end: 13 hellos in the minute for which a newcomer tries, and somebody is
    # about to correct them
    Reason.WRONG_SWARM: 3.0,
    Reason.WRONG_RUN: 3.0,
    Reason.WRONG_MODEL: 3.0,
    Reason.UNKNOWN_KIND: 5.0,  # perhaps a newer version
    Reason.TIMEOUT: 1.0,  # an overloaded node times out every few seconds and stays below half of a ban
    Reason.REPLAYED: 2.0,  # a network reorders
    Reason.STALE: 0.5,
    Reason.WRONG_ROLE: 20.0,  # an invite of the wrong role, at the second start at the latest
    Reason.NO_MEMBER: 0.0,  # a stranger is refused, or disconnected; nothing more is needed
    Reason.EXPIRED: 0.0,
    Reason.REVOKED: 0.0,
    Reason.USED_UP: 0.0,
    Reason.UNAVAILABLE: 0.5,
    # each beyond the rate; a node that wakes up finds some hundreds waiting: see core/announcement_limit.py
    Reason.FLOODED: 0.25,
    Reason.BANNED: 0.0,  # it is banned already
}


@dataclass
class _Record:
    points: float
    at: float
    banned_until: float


class ScoreTable:
    """Points and bans of every peer that offended."""

    def __init__(self) -> None:
        self._records: OrderedDict[PeerId, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def charge(self, peer: PeerId, reason: Reason, now: float) -> bool:
        """Add the offence's points; return whether this banned the peer."""
        record = self._records.setdefault(peer, _Record(0.0, now, 0.0))
        self._records.move_to_end(peer)
        record.points = _decayed(record, now) + POINTS[reason]
        record.at = now
        newly = record.points >= BAN_AT and record.banned_until <= now
        if record.points >= BAN_AT:
            forever = reason is Reason.EQUIVOCATION or record.banned_until == float("inf")
            record.banned_until = float("inf") if forever else now + BAN_S
        self._shrink(peer, now)
        return newly

    def inherit(self, successor: PeerId, peer: PeerId) -> None:
        """Move the points and the ban of `peer` to its successor: a new key is no fresh start."""
        left, held = self._records.pop(peer, None), self._records.get(successor)
        if left is not None and held is not None:
            at = max(left.at, held.at)
            left = _Record(_decayed(left, at) + _decayed(held, at), at, max(left.banned_until, held.banned_until))
        if left is not None:
            self._records[successor] = left

    def points(self, peer: PeerId, now: float) -> float:
        """Return the peer's points now."""
        record = self._records.get(peer)
        return _decayed(record, now) if record else 0.0

    def banned(self, peer: PeerId, now: float) -> bool:
        """Return whether the peer is banned now."""
        record = self._records.get(peer)
        return record is not None and record.banned_until > now

    def _shrink(self, charged: PeerId, now: float) -> None:
        """Forget one peer where there are too many, but not the one just charged: where all others are banned, its
        points would never add up to a ban. Then the longest untouched ban goes."""
        if len(self._records) <= MAX_SCORED_PEERS:
            return
        loose = (peer for peer, it in self._records.items() if it.banned_until <= now and peer != charged)
        del self._records[next(loose, next(iter(self._records)))]


def _decayed(record: _Record, now: float) -> float:
    return record.points * float(0.5 ** ((now - record.at) / HALF_LIFE_S))
