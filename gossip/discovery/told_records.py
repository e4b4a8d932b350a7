"""The records that a peer has, as it was sent them or has sent them itself: they are not in every hello again.

A node keeps that for each peer that it is connected to, and each may have hundreds. So a record is named by eight bytes
of its digest, in an array: a digest as an object in a table takes twenty times as much. Two records of one name are one
in 10^14 among those of a swarm, and who makes one on purpose gains that a peer hears of another member by others.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from gossip.core.digests import digest_of
from gossip.core.ids import Digest, PeerId

MAX_TOLD: Final = 512
"""Records that are not sent again: twice as many as there are at a time. 4 KiB."""

MAX_TOLD_PEERS: Final = 64
"""Connected peers of which that is remembered: twice the neighbours and bridges of a usual node."""

_NAME_BYTES: Final = 8


class RecordNames:
    """Some records, by digest."""

    def __init__(self, names: Iterable[int]) -> None:
        self._names = frozenset(names)

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, bytes) and _name_of(Digest(digest)) in self._names


class ToldRecords:
    """The last MAX_TOLD records that one peer was sent, or has sent."""

    def __init__(self) -> None:
        self._names = array("Q")

    def __len__(self) -> int:
        return len(self._names)

    def names(self) -> RecordNames:
        """Return the records as they are now."""
        return RecordNames(self._names)

    def add(self, records: Iterable[bytes]) -> None:
        """Note that the peer has these records."""
        come = dict.fromkeys(_name_of(digest_of(raw)) for raw in records)
        known = set(self._names) if come else set()
        self._names.extend(name for name in come if name not in known)
        if len(self._names) > MAX_TOLD:
            self._names = self._names[-MAX_TOLD:]


class ToldPeers:
    """What each of the last MAX_TOLD_PEERS connected peers that said hello has."""

    def __init__(self) -> None:
        self._told: OrderedDict[PeerId, ToldRecords] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told)

    def of(self, peer: PeerId) -> ToldRecords:
        """Return what a peer has, as far as that is remembered."""
        told = self._told.setdefault(peer, ToldRecords())
        self._told.move_to_end(peer)
        while len(self._told) > MAX_TOLD_PEERS:
            self._told.popitem(last=False)
        return told

    def forget(self, peer: PeerId) -> None:
        """Forget a peer whose connection is lost: when it is back, it may be another process, which has nothing."""
        self._told.pop(peer, None)


def _name_of(digest: Digest) -> int:
    return int.from_bytes(digest[:_NAME_BYTES], "big")
