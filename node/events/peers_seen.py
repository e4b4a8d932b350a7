"""A node's peers by its events: which are connected, how stale, in how many averages, and what was refused."""

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
"""Most peers kept: as many as the network counts by name (gossip.core.api.MAX_COUNTED_PEERS). Those that left longest
ago are dropped first."""

Peers = dict[str, dict[str, Any]]
"""By peer id: `here`, `staleness` (rounds, at the newest average), `weight`, `averages` (rounds in which its model was
averaged), `rejected` (by reason) and `banned`. A running node adds its current values (`moment` in round_report.py):
among them `paused`, where it says so, and `returns_at` (Unix seconds; None: unknown)."""


def observe(peers: Peers, event: Event) -> None:
    """Apply one event; events without a peer are ignored."""
    match event:
        case Started():
            peers.clear()
        case RoundClosed():
            weights = event.weights if isinstance(event, RoundTrained) else None
            _averaged(peers, event.staleness or {}, weights or {})
        case NeighbourUp(peer=peer) | NeighbourLost(peer=peer) if peer:
            seen(peers, peer)["here"] = isinstance(event, NeighbourUp)
            peers[peer] = peers.pop(peer)  # who came or left last is dropped last
        case Rejected(peer=peer) if peer:
            refused = seen(peers, peer)["rejected"]
            reason = event.reason or "?"
            refused[reason] = refused.get(reason, 0) + 1
        case Banned(peer=peer) | Equivocation(peer=peer) if peer:
            seen(peers, peer)["banned"] = True


def seen(peers: Peers, peer: str) -> dict[str, Any]:
    """Return the entry of a peer, which the caller may change."""
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
