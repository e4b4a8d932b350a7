"""Whether others can dial us. No node can know that by itself: only a peer that did dial us has shown it.

A hello exchanged with a peer that dialled us proves that our listening address can be reached from where that peer is,
and from nowhere else. Hellos over connections that we dialled prove nothing: perhaps nobody had to dial us. So some
members are asked to dial us back (dialback.py). Each reports what it found, and may lie: the majority is believed.
Neighbours repeat their hellos, so a proof lasts as long as such a connection, and REACH_HOLDS_S beyond it.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from gossip.core.api import Reachability
from gossip.core.backoff import host_of
from gossip.core.ids import PeerId
from gossip.core.networks import network_of
from gossip.reachability.dialback import Sighting

REACH_HOLDS_S: Final = 3600.0
"""Seconds for which a hello or a dial-back is proof. A router that restarts cuts every connection, and after that we
are the ones who dial: an hour later the old proof is gone. With a shorter time a small swarm would lose its proof
whenever a few members are away."""

MISS_HOLDS_S: Final = 600.0
"""Seconds until a member that did not reach us is asked again: the operator may have opened the port meanwhile, or one
of its packets may have been lost. Its answer counts until then and on, so that relays stay. It may be asked twice as
often before it charges for it."""

ASK_PEERS: Final = 3
"""Members that are asked to dial us back: of three, one that lies or is cut off itself is outvoted."""


@dataclass(frozen=True)
class _Vote:
    sighting: Sighting
    customer: str
    until: float
    ask_again_at: float


class ReachabilityTracker:
    """When hellos were last exchanged, when with a peer that had dialled us, and what the asked members found."""

    def __init__(self) -> None:
        self._greeted_until = float("-inf")
        self._reached_until = float("-inf")
        self._votes: dict[PeerId, _Vote] = {}

    def greeted(self, *, dialled_us: bool, now: float) -> None:
        """Note that hellos were exchanged with another peer of our run. `dialled_us`: over a connection that it
        dialled."""
        self._greeted_until = now + REACH_HOLDS_S
        if dialled_us:
            self._reached_until = now + REACH_HOLDS_S

    def dialled_back(self, peer: PeerId, sighting: Sighting, at: str, now: float) -> None:
        """Note the answer of `peer`, whose connection leads to the host of the multiaddr `at`; the newest ASK_PEERS
        answers count."""
        self._votes.pop(peer, None)
        lasts_s = REACH_HOLDS_S if sighting.answered else MISS_HOLDS_S
        self._votes[peer] = _Vote(sighting, _customer_at(at), now + REACH_HOLDS_S, now + lasts_s)
        while len(self._votes) > ASK_PEERS:
            del self._votes[next(iter(self._votes))]

    def forget(self) -> None:
        """Forget all answers, since our addresses have changed."""
        self._votes.clear()

    def asked(self, now: float) -> frozenset[PeerId]:
        """Return the peers that need not be asked again yet: a miss is asked about again while it counts."""
        return frozenset(peer for peer, vote in self._votes.items() if now <= vote.ask_again_at)

    def sightings(self, now: float) -> tuple[Sighting, ...]:
        """Return the answers that count now."""
        return tuple(vote.sighting for vote in self._votes.values() if now <= vote.until)

    def answering(self, now: float) -> tuple[str, ...]:
        """Return addresses of ours (without `/p2p/`) where more than half of the asked members reached us."""
        votes = self.sightings(now)
        times = Counter(address for vote in votes for address in vote.answered)
        return tuple(address for address, count in times.items() if 2 * count > len(votes))

    def confirmed(self, now: float, mapped: Collection[str], liars: int) -> tuple[str, ...]:
        """Return those of them that may be passed on: where a router says that it forwards, or where peers of more
        customers than there are `liars` reached us. Fewer could make us send others to any address, and keys are
        free."""
        return tuple(it for it in self.answering(now) if it in mapped or len(self._customers(it, now)) > liars)

    def _customers(self, address: str, now: float) -> set[str]:
        """Return who has the hosts of the peers that say they reached us there."""
        votes = self._votes.values()
        return {vote.customer for vote in votes if now <= vote.until and address in vote.sighting.answered}

    def unreachable(self, now: float) -> bool:
        """Return whether it is certain, and not only likely, that nobody can dial us."""
        votes = self.sightings(now)
        misses = sum(not vote.answered for vote in votes)
        return now > self._reached_until and 2 * misses > len(votes)

    def state(self, now: float) -> Reachability:
        """Return what is known now. Members see us at different addresses, as on loopback and the local network, so it
        counts who reached us anywhere; for one address to be passed on, more than half must name that one."""
        hits = sum(bool(vote.answered) for vote in self.sightings(now))
        if now <= self._reached_until or 2 * hits > len(self.sightings(now)):
            return "reached"
        return "outbound" if now <= self._greeted_until or self.sightings(now) else "unknown"


def _customer_at(address: str) -> str:
    """Return a name for who has the host: an address of IPv4, or of IPv6 the whole /48 that one site is given."""
    host = host_of(address)
    return network_of(address) or host if host.startswith("ip6/") else host
