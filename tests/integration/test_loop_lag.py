"""The event loop answers within 50 ms while a node trains and moves 256 MiB both ways at once."""

from pathlib import Path

import busy_end
import pytest
from processes_harness import Event, Program

MIB, TIMES = 256, 3
LAG_S = 0.05


@pytest.mark.soak
def test_the_loop_stays_quick_while_training_and_moving_a_blob_both_ways(tmp_path: Path) -> None:
    with Program(tmp_path / "one", MIB, TIMES, run=[busy_end.__file__]) as one:
        address = one.hear("started")["address"]
        with Program(tmp_path / "other", MIB, TIMES, address, run=[busy_end.__file__]) as other:
            other.hear("done", count=TIMES, within_s=300)
            one.hear("done", count=TIMES, within_s=300)
    for end in (one, other):
        for event in end.heard("done"):
            print(f"{event['size'] >> 20} MiB in {event['seconds']:.1f} s, {event['steps']} steps beside it")
            print(f"lag p50 {late(event, 0.5):.4f} s, p99 {late(event, 0.99):.4f} s, most {late(event, 1):.4f} s")
    events = one.heard("done") + other.heard("done")
    assert all(event["size"] == MIB << 20 and event["steps"] > 0 for event in events)
    assert max(late(event, 0.99) for event in events) < LAG_S


def late(event: Event, quantile: float) -> float:
    """Seconds; that share of the wakings was no later."""
    lags = sorted(event["lags"])
    return float(lags[min(len(lags) - 1, int(quantile * len(lags)))])
