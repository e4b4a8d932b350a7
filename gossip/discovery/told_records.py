"""The records that a peer was sent, so that it is not sent them again in every hello."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from gossip.core.digests import digest_of
from gossip.core.ids import Digest

MAX_TOLD: Final = 512
"""Records that are not sent again: twice as many as there are at a time."""


class ToldRecords:
    """Digests of the last MAX_TOLD records that one peer was sent."""

    def __init__(self) -> None:
        self._told: OrderedDict[Digest, None] = OrderedDict()

    def __contains__(self, digest: object) -> bool:
        return digest in self._told

    def __len__(self) -> int:
        return len(self._told)

    def add(self, records: Iterable[bytes]) -> None:
        """Note that the peer is sent these records."""
        for raw in records:
            self._told[digest_of(raw)] = None
        while len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
