"""When a member's node is to stop, as it is no member any more: it would train alone, and nobody would ever take that.

By what it knows itself it stops at once: a revocation that an admin signed, an end date by its own clock, a manifest.
What others say without such a proof is a hint: one of them may lie. It stops by it only where nobody lets it in, and
those who say so are more than the liars that it is to withstand, members by its own roster; or, when it has never been
in, all whom it was told to begin at. docs/decisions/0043 has the reasons.
"""

from collections.abc import Callable, Collection
from typing import Final

from gossip.core.ids import PeerId
from gossip.membership import MembershipAdmission
from gossip.membership.refusal import ASK, Refusal, claim_words
from node.system.errors import RunError

CLAIM_LASTS_S: Final = 600.0
"""How long after it was last made a claim counts. Chosen: above the pause between two dials of one address, so that
those who refuse us at each are counted together, and old claims do not wait for a network that fails."""

ALONE_S: Final = 20.0
"""For so long nobody has let us in before claims end anything. Chosen: news of a member reaches a swarm within seconds,
and who has not heard of us yet may say that all uses are taken."""

MAX_CLAIMS: Final = 1024
"""Peers whose claims are remembered: as many as there are addresses that were tried."""


class Outside:
    """What one node knows of its being out. `named`: whom its operator and its swarm told it to begin at; `liars`: how
    many neighbours may lie. Every `now`: seconds of one clock. `told` is called with each new claim."""

    def __init__(
        self,
        admission: MembershipAdmission,
        *,
        named: Collection[PeerId],
        liars: int,
        told: Callable[[PeerId, str], None],
    ) -> None:
        self._admission = admission
        self._named = frozenset(named)
        self._liars = liars
        self._told = told
        self._claims: dict[PeerId, tuple[str, float]] = {}
        self._inside_at: float | None = None

    def refused(self, peer: PeerId, refusal: Refusal, signed: bool, now: float) -> None:
        """A peer does not let us in, and says why."""
        if signed:
            return  # the gate has it, and says so itself
        words = claim_words(refusal.reason)
        if self._claims.pop(peer, (None, 0.0))[0] != words:
            self._told(peer, words)
        self._claims[peer] = words, now
        if len(self._claims) > MAX_CLAIMS:
            del self._claims[next(iter(self._claims))]

    def why(self, now: float, neighbours: Collection[PeerId], *, resumed: bool) -> RunError | None:
        """Why the node is to stop now; None while it may be a member. `resumed`: it was inside before."""
        ended = self._admission.ended()
        if ended is not None:
            return RunError(ended, ASK)
        if neighbours or self._inside_at is None:
            self._inside_at = now
        if neighbours:
            self._named = frozenset()
            for peer in neighbours:
                self._claims.pop(peer, None)
            return None
        if now < self._inside_at + ALONE_S:
            return None
        lately = {peer for peer, (_, at) in self._claims.items() if now < at + CLAIM_LASTS_S}
        if len(self._admission.members_among(lately)) > self._liars or (
            not resumed and self._named and self._named <= lately
        ):
            return RunError(f"no member lets this node in: {self._say(lately)}", ASK)
        return None

    def _say(self, peers: Collection[PeerId]) -> str:
        words = sorted({self._claims[peer][0] for peer in peers})
        return f"{len(peers)} of them {'says' if len(peers) == 1 else 'say'} that {', or that '.join(words)}"
