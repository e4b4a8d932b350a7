"""A payload that several peers published alike: as many signatures on one address certify what a group came to.

A link names its payload by its digest, and is signed. Peers that computed the same bytes so sign the same address, with
no message beside their links. With more signers than a group has liars, one of them is honest, and the payload is what
it computed; whose bytes are pulled does not matter then, as the address verifies them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gossip.core.ids import Digest, PeerId
from gossip.core.statements import UpdateHeader


@dataclass(frozen=True, kw_only=True)
class PayloadQuorum:
    """What is to be certified: the payload of a round that `threshold` of these peers publish alike, read by `codec`,
    of exactly `size` bytes."""

    peers: Collection[PeerId]
    round: int
    codec: str
    size: int
    threshold: int


class CertifiedPayload:
    """Counts the signatures on the payloads of one round. A peer signs once: its first link of the round counts, as a
    second one is an equivocation or a later state."""

    def __init__(self, wanted: PayloadQuorum) -> None:
        self.wanted = wanted
        self._signed: dict[PeerId, Digest] = {}
        self._passed: set[PeerId] = set()
        """Who is in a later round, and has not signed: its link of this one is not seen any more."""

    def learn(self, links: Mapping[PeerId, UpdateHeader | None]) -> None:
        """Take the newest link of each peer. Those of other rounds, codecs, sizes and peers count for nothing."""
        for peer in self.wanted.peers:
            link = links.get(peer)
            if link is not None and self._fits(link):
                self._signed.setdefault(peer, link.address)
            elif link is not None and self._is_beyond(link):
                self._passed.add(peer)

    @property
    def signers(self) -> dict[Digest, list[PeerId]]:
        """Return who signed each address that enough peers signed, in the order of their names; of several that is the
        one with the most signers first."""
        found: dict[Digest, list[PeerId]] = {}
        for peer, address in sorted(self._signed.items()):
            found.setdefault(address, []).append(peer)
        ordered = sorted(found.items(), key=lambda it: (-len(it[1]), it[0]))
        return {address: peers for address, peers in ordered if len(peers) >= self.wanted.threshold}

    def is_hopeless(self, here: Collection[PeerId]) -> bool:
        """Return whether too few peers are left to sign one alike, of those that are still `here` and those that
        have."""
        counts: dict[Digest, int] = {}
        for address in self._signed.values():
            counts[address] = counts.get(address, 0) + 1
        may_sign = set(here) - self._signed.keys() - self._passed
        silent = sum(peer in may_sign for peer in self.wanted.peers)
        return max(counts.values(), default=0) + silent < self.wanted.threshold

    def _is_beyond(self, link: UpdateHeader) -> bool:
        """Whether nothing of the round follows this link: a chain's base names the round that its author enters."""
        closed = link.body.round if link.body.kind == "delta" else link.body.round - 1
        return closed >= self.wanted.round

    def _fits(self, link: UpdateHeader) -> bool:
        body = link.body
        return (body.round, body.kind, body.codec, body.size) == (
            self.wanted.round,
            "delta",
            self.wanted.codec,
            self.wanted.size,
        )
