"""A recorded swarm for the tests of what shows one: four nodes, one of which dies."""

from collections.abc import Iterator

from node.events.event_types import Record

ROUNDS = 10
PEER = "12D3KooWBqR1mAqEDv1Gd8S1bMbM1iV9pJ2YzPCf7oY8Zf7M8cV"


def node_events(index: int, *, began: float = 1000.0, rounds: int = ROUNDS) -> Iterator[Record]:
    """What node `index` tells from its start to the end of `rounds`."""
    yield {
        "ts": began,
        "event": "started",
        "peer_id": f"{PEER}{index}",
        "addresses": [f"/ip4/127.0.0.1/tcp/{4000 + index}/p2p/{PEER}{index}"],
        "metrics_url": f"http://127.0.0.1:{9400 + index}",
        "parameters": 459_776,
        "device": "cpu",
        "task": "byte-lm",
        "aggregator": "trimmed_mean",
        "compressor": "q2",
        "f": 1,
        "robust_margin": 1,
    }
    yield {"ts": began + 1, "event": "evaluated", "round": 0, "eval_loss": 5.5}
    for done in range(1, rounds + 1):
        yield round_event(done, ts=began + 1 + 3 * done, index=index)
    yield {"ts": began + 40, "event": "evaluated", "round": rounds, "eval_loss": 2.5}


def round_event(done: int, *, ts: float, index: int = 0, rounds: int = ROUNDS) -> Record:
    """The event of closed round `done`."""
    return {
        "ts": ts,
        "event": "round",
        "round": done,
        "rounds": rounds,
        "train_loss": 5.5 - 0.3 * done,
        "steps": 20,
        "tokens": 20_480 * done,
        "tokens_per_s": 6_800.0,
        "neighbours": 3,
        "members": 4,
        "fresh": 3,
        "updates_in_time": 0.97,
        "exchange_s": 0.3,
        "closed_by": "quorum",
        "payload_bytes_sent": 120_000 * done,
        "payload_bytes_received": 360_000 * done,
        "bytes_sent": 125_000 * done,
        "bytes_received": 375_000 * done,
        "sent_bits": 0.109,
        "published_bits": 0.035,
        "accepted": 3 * done,
        "rejected": index,
        "rejected_by_reason": {"stale": index} if index else {},
        "snapshot_bytes_sent": 0,
        "snapshot_bytes_received": 1_871_232 * 3,
        "skipped_steps": 0,
        "peers_known": 5,
        "consensus_distance": 1.25,
        "robust_margin": 1,
        "round_s": 3.0,
        "close_s": 0.4,
        "step_s": 0.14,
        "compute_s": 2.8 * done,
        "late_steps": 2,
        "utilization": 0.94,
        "staleness": {f"{PEER}{other}": other for other in range(3)},
        "weights": {f"{PEER}{other}": 0.25 for other in range(3)},
    }
