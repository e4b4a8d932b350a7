"""When a former member's node stops: it would train alone, and nobody would ever use the result.

It stops by what it can check: a revocation that an admin signed, an end date by its own clock, a manifest. It does so
as soon as its neighbours know that too, for it may be the first to know. What others claim without such a proof is a
hint, for they may lie. It follows claims only while no member accepts it, and only in two cases: more members of its
own roster make them than the liars it has to withstand; or it has never been connected, and all peers that it was given
to start from make them. docs/decisions/0043 and 0148 have the reasons.
"""

from collections.abc import Callable, Collection
from typing import Final

import trio

from gossip.core.errors import Reason
from gossip.core.ids import PeerId
from gossip.membership import MembershipAdmission
from gossip.membership.refusal import ASK, Refusal, claim_words
from node.system.errors import RunError

CLAIM_LASTS_S: Final = 600.0
"""How long a claim counts after it was last made. Chosen: above the pause between two dials of one address, so that
claims made at each dial are counted together, and old claims do not last until the network fails."""

CHECK_CLOCK: Final = (
    "by this machine's clock it holds: set that clock if it is wrong; if it is right, theirs are, or they lie. Who "
    "joined while it was ahead takes an invite up in a fresh folder"
)
"""What the operator can do where members take the time of a membership for another one than we do."""

_OUT_OF_TIME: Final = claim_words(Reason.EXPIRED)

ALONE_S: Final = 20.0
"""How long nobody must have accepted us before claims stop the node. Chosen: news of a member reaches a swarm within
seconds, and a peer that has not heard of us yet may say that all uses of the invite are taken."""

TELL_S: Final = 5.0
"""How long a former member goes on while neighbours still take it for a member. Chosen: a neighbour fetches a manifest
within a second."""

MAX_CLAIMS: Final = 1024
"""Most peers whose claims are remembered: one for each address that was tried."""


class Outside:
    """One node's evidence that it is a former member. `named`: the peers that its operator and its swarm gave it to
    start from; `liars`: how many neighbours may lie. Every `now` is in seconds of one clock. `told` is called with each
    new claim."""

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
        """Note that a peer refused us, and its reason."""
        if signed:
            return  # the admission gate has it, and reports it itself
        words = claim_words(refusal.reason)
        if self._claims.pop(peer, (None, 0.0))[0] != words:
            self._told(peer, words)
        self._claims[peer] = words, now
        if len(self._claims) > MAX_CLAIMS:
            del self._claims[next(iter(self._claims))]

    def why(self, now: float, neighbours: Collection[PeerId], *, resumed: bool) -> RunError | None:
        """Return why the node has to stop now; None while it may be a member. `resumed`: it was connected before."""
        ended = self._admission.ended()
        if ended is not None:
            return RunError(ended, self._admission.advice())
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
            return RunError(f"no member lets this node in: {self._say(lately)}", self._advice(lately))
        return None

    def _advice(self, peers: Collection[PeerId]) -> str:
        """By our own clock the membership holds: where they say that it does not, one of the clocks is wrong."""
        return CHECK_CLOCK if any(self._claims[peer][0] == _OUT_OF_TIME for peer in peers) else ASK

    def _say(self, peers: Collection[PeerId]) -> str:
        words = sorted({self._claims[peer][0] for peer in peers})
        return f"{len(peers)} of them {'says' if len(peers) == 1 else 'say'} that {', or that '.join(words)}"


async def until_told(neighbours: Callable[[], Collection[PeerId]]) -> None:
    """Wait until no neighbour takes us for a member any longer, `TELL_S` at most. What ended our membership may be
    known here first: on the machine of an admin who removed the one that gave its invite."""
    with trio.move_on_after(TELL_S):
        while neighbours():  # noqa: ASYNC110  # each goes when it has read what we know
            await trio.sleep(TELL_S / 50)
