"""Which region a member is of: what its record says, and where its certificate names one, that alone.

A record's label is its signer's claim. An admin of a private swarm may bind a membership to a region: then a record
with another label is not taken in, and what was taken in before the certificate was known is read by the certificate.
"""

from collections.abc import Callable

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.statements import PeerRecord
from gossip.updates.peer_score import PeerScores


def bound_to_none(peer: PeerId) -> frozenset[str]:
    """Return no region: without certificates everybody may be of any."""
    return frozenset()


class RegionLabels:
    """`said`: the label in a member's record, None where none is known. `bound`: the regions that its certificates
    allow, none where they allow all."""

    def __init__(
        self,
        said: Callable[[PeerId], str | None],
        bound: Callable[[PeerId], frozenset[str]],
        peer_scores: PeerScores,
    ) -> None:
        self._said = said
        self._bound = bound
        self._peer_scores = peer_scores

    def region_of(self, peer: PeerId) -> str | None:
        """Return which region a member is of, "" where it names none; None where nothing is known of it."""
        said, bound = self._said(peer), self._bound(peer)
        return said if not bound or said in bound else min(bound)

    def takes(self, record: PeerRecord) -> bool:
        """Return whether a record may be kept and passed on. One whose label contradicts its signer's certificate may
        not, and is counted; it is not charged, as a new certificate may not have come here yet."""
        bound = self._bound(record.peer)
        if not bound or record.region in bound:
            return True
        wrong = (
            f"a record of region {record.region or '(none)'}, where its certificate names {', '.join(sorted(bound))}"
        )
        self._peer_scores.refuse(record.peer, RemoteError(Reason.PROTOCOL, wrong))
        return False
