"""Broadcasts that were found valid: they are not checked again, and not passed on again at once."""

from itertools import takewhile
from math import inf
from typing import Final

from gossip.core.ids import Digest, PeerId

REPEAT_S: Final = 0.5
"""A link that was passed on less than this many seconds ago is not passed on again: its signer repeats it every two
seconds, and anybody else could flood the swarm with it, since a repeated broadcast is a new message to gossipsub."""

NAME_BYTES: Final = 12
"""Bytes of a digest by which a broadcast is remembered: nobody finds another one that begins with the same, and who
makes two of its own alike keeps one of them from being heard."""


class Seen:
    """The newest `most` valid broadcasts, by digest: who signed each, and whether it was passed on just now."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._signers: dict[bytes, PeerId] = {}
        self._lately: dict[bytes, float] = {}
        """When those of the last REPEAT_S were passed on, the oldest first: of no other the time matters."""

    def __len__(self) -> int:
        return len(self._signers)

    def signer(self, name: Digest) -> PeerId | None:
        """Return who signed a broadcast; None when it is unknown."""
        return self._signers.get(name[:NAME_BYTES])

    def add(self, name: Digest, signer: PeerId, now: float) -> None:
        """Remember a new broadcast."""
        self._signers[name[:NAME_BYTES]] = signer
        self._passed_on(name[:NAME_BYTES], now)
        while len(self._signers) > self._most:
            oldest = next(iter(self._signers))
            del self._signers[oldest]
            self._lately.pop(oldest, None)

    def passes_again(self, name: Digest, now: float) -> bool:
        """Return whether to pass on a known broadcast; if so, note that it was passed on."""
        again = now >= self._lately.get(name[:NAME_BYTES], -inf) + REPEAT_S
        if again:
            self._passed_on(name[:NAME_BYTES], now)
        return again

    def _passed_on(self, name: bytes, now: float) -> None:
        self._lately.pop(name, None)
        self._lately[name] = now
        for old in [each for each, at in takewhile(lambda it: now >= it[1] + REPEAT_S, self._lately.items())]:
            del self._lately[old]
