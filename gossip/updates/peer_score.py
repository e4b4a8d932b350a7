"""Counts every refusal by peer and reason, reports it to the observer, and charges the peer at fault."""

from collections import OrderedDict
from typing import Final

from gossip.actions import ActionQueue
from gossip.core.api import GossipStats
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.updates.hash_chain import EquivocationError
from gossip.updates.score_table import ScoreTable

MAX_PROOFS: Final = 64
"""Proofs of equivocation kept; each names a banned key, and 64 are more than a swarm survives."""

LOUD_REFUSALS: Final = 16
"""Refusals of a peer for one reason are all reported up to this number, later ones at powers of two: so floods do not
fill logs."""


class PeerScores:
    """Counters, scores and proofs of all peers."""

    def __init__(self, actions: ActionQueue) -> None:
        self.stats = GossipStats()
        self.scores = ScoreTable()
        self.proofs: OrderedDict[PeerId, tuple[bytes, bytes]] = OrderedDict()
        self._actions = actions

    def refuse(self, peer: PeerId, error: RemoteError) -> None:
        """Count and report a refusal without a charge: the peer may have acted in good faith."""
        self.stats.count_rejection(peer, error.reason)
        count = self.stats.rejected.get((peer, error.reason), 0)
        if count and (count <= LOUD_REFUSALS or count & (count - 1) == 0):
            self._actions.tell("rejected", peer, reason=error.reason, detail=error.detail)

    def charge(self, peer: PeerId, error: RemoteError, now: float) -> bool:
        """Count, report and charge a refusal; return whether the peer is banned, now or already."""
        if isinstance(error, EquivocationError):
            self._keep_proof(peer, error.proof)
        self.refuse(peer, error)
        if self.scores.charge(peer, error.reason, now):
            self._actions.tell("banned", peer, reason=error.reason, detail=error.detail)
        return self.scores.banned(peer, now)

    def _keep_proof(self, peer: PeerId, proof: tuple[bytes, bytes]) -> None:
        if peer not in self.proofs:
            self.proofs[peer] = proof
            self._actions.tell("equivocation", peer, reason=Reason.EQUIVOCATION, detail="signed two histories")
        while len(self.proofs) > MAX_PROOFS:
            self.proofs.popitem(last=False)
