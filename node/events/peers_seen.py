"""What a node's events tell of its peers: who is here, how stale, in how many averages, what was refused of whom."""

from typing import Any

from node.events.event_types import (
    Banned,
    Equivocation,
    Event,
    NeighbourLost,
    NeighbourUp,
    Rejected,
    RoundClosed,
    RoundTrained,
    Started,
)

MAX_PEERS = 256
"""As many as the network counts by name (gossip.core.api.MAX_COUNTED_PEERS); those that left long ago go first."""

Peers = dict[str, dict[str, Any]]
"""By peer id: `here`, `staleness` (rounds, as of the newest average), `weight`, `averages` (rounds in which its model
was averaged), `rejected` (by reason) and `banned`. A running node adds what it knows of the moment: `record.peers`."""


def observe(peers: Peers, event: Event) -> None:
    """Take up one event; those that are about nobody are passed over."""
    match event:
        case Started():
            peers.clear()
        case RoundClosed():
            weights = event.weights if isinstance(event, RoundTrained) else None
            _averaged(peers, event.staleness or {}, weights or {})
        case NeighbourUp(peer=peer) | NeighbourLost(peer=peer) if peer:
            seen(peers, peer)["here"] = isinstance(event, NeighbourUp)
        case Rejected(peer=peer) if peer:
            refused = seen(peers, peer)["rejected"]
            reason = event.reason or "?"
            refused[reason] = refused.get(reason, 0) + 1
        case Banned(peer=peer) | Equivocation(peer=peer) if peer:
            seen(peers, peer)["banned"] = True


def seen(peers: Peers, peer: str) -> dict[str, Any]:
    """What is known of a peer, to be added to."""
    if peer not in peers and len(peers) >= MAX_PEERS:
        gone = next((name for name, it in peers.items() if not it["here"]), next(iter(peers)))
        del peers[gone]
    return peers.setdefault(
        peer, {"here": False, "staleness": None, "weight": None, "averages": 0, "rejected": {}, "banned": False}
    )


def _averaged(peers: Peers, staleness: dict[str, int], weights: dict[str, float]) -> None:
    for it in peers.values():
        it["staleness"] = it["weight"] = None
    for peer, rounds in staleness.items():
        it = seen(peers, peer)
        it["averages"] += 1
        it["staleness"], it["weight"] = rounds, weights.get(peer)
