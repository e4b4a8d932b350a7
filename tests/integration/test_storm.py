"""Ten thousand hostile connections, streams and frames against a node that trains: it does not notice."""

from pathlib import Path
from statistics import median

import pytest
import storm
from processes_harness import PACED, Event, Program, up

HOSTILE = 10_000
CALM_ROUNDS = 30


@pytest.mark.soak
def test_a_node_that_trains_bears_ten_thousand_hostile_frames(tmp_path: Path) -> None:
    """Paced steps leave a core mostly idle, so that what a round takes longer is the storm's doing and not only the
    second attacker's share of the processor."""
    with up(tmp_path, "--nodes", 4, "--rounds", 3000, *PACED) as swarm:
        swarm.hear_round(10, node="node-0")
        began = swarm.hear_round(10 + CALM_ROUNDS, node="node-0")
        address = swarm.hear("started", node="node-0")["addresses"][0]
        with Program(tmp_path / "storm", address, HOSTILE, 1, run=[storm.__file__]) as attack:
            over = attack.hear("over", within_s=600)
        rounds = swarm.heard("round", node="node-0")
    calm = [event for event in rounds if 10 < event["round"] <= began["round"]]
    during = [event for event in rounds if began["ts"] < event["ts"] <= began["ts"] + over["seconds"]]
    print(f"{over['sent']} in {over['seconds']:.0f} s")
    print(f"round {length(calm):.3f} s, {length(during):.3f} s during it ({len(during)} rounds)")
    print(f"rss {calm[-1]['rss_bytes'] >> 20} -> {rounds[-1]['rss_bytes'] >> 20} MiB")
    assert sum(over["sent"].values()) >= HOSTILE
    assert min(over["sent"].values()) > HOSTILE // 100, "some of every kind"
    assert length(during) < 1.5 * length(calm)
    assert rounds[-1]["rss_bytes"] < 1.2 * calm[-1]["rss_bytes"]
    honest = {event["peer_id"] for event in swarm.heard("started")}
    for kind in ("rejected", "banned", "neighbour_lost"):
        assert not [event for event in swarm.heard(kind) if event["peer"] in honest], kind
    assert median(event["members"] for event in during) == 4


def length(rounds: list[Event]) -> float:
    """Median seconds of a round."""
    return median(event["round_s"] for event in rounds)
