"""The records that a peer has, as it was sent them or has sent them itself: they are not in every hello again."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from gossip.core.digests import digest_of
from gossip.core.ids import Digest, PeerId

MAX_TOLD: Final = 512
"""Records that are not sent again: twice as many as there are at a time."""

MAX_TOLD_PEERS: Final = 64
"""Connected peers of which that is remembered: twice the neighbours and bridges of a usual node."""


class ToldRecords:
    """Digests of the last MAX_TOLD records that one peer was sent, or has sent."""

    def __init__(self) -> None:
        self._told: OrderedDict[Digest, None] = OrderedDict()

    def __contains__(self, digest: object) -> bool:
        return digest in self._told

    def __len__(self) -> int:
        return len(self._told)

    def add(self, records: Iterable[bytes]) -> None:
        """Note that the peer has these records."""
        for raw in records:
            self._told[digest_of(raw)] = None
        while len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)


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
