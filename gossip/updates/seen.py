"""Broadcasts that were found valid: they are not checked again, and not passed on again at once."""

from collections import OrderedDict
from typing import Final

from gossip.core.ids import Digest, PeerId

REPEAT_S: Final = 0.5
"""A link that was passed on less than this many seconds ago is not passed on again: its signer repeats it every two
seconds, and anybody else could flood the swarm with it, since a repeated broadcast is a new message to gossipsub."""


class Seen:
    """The newest `most` valid broadcasts, by digest: who signed each, and when it was last passed on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._passed_at: OrderedDict[Digest, float] = OrderedDict()
        self._signers: dict[Digest, PeerId] = {}

    def __len__(self) -> int:
        return len(self._passed_at)

    def signer(self, name: Digest) -> PeerId | None:
        """Return who signed a broadcast; None when it is unknown."""
        return self._signers.get(name)

    def add(self, name: Digest, signer: PeerId, now: float) -> None:
        """Remember a new broadcast."""
        self._passed_at[name] = now
        self._signers[name] = signer
        while len(self._passed_at) > self._most:
            oldest, _ = self._passed_at.popitem(last=False)
            del self._signers[oldest]

    def passes_again(self, name: Digest, now: float) -> bool:
        """Return whether to pass on a known broadcast; if so, note that it was passed on."""
        again = now >= self._passed_at[name] + REPEAT_S
        if again:
            self._passed_at[name] = now
        return again
