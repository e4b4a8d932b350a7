"""Three real nodes for thousands of rounds: resident memory levels off once the caches are full."""

from pathlib import Path

import pytest
from processes_harness import DIGITS, read_log, up

ROUNDS = 6_000
FULL_AFTER = 3_000
"""Rounds in which what has a bound fills: 4,096 broadcasts are remembered, of three a round, and 1,024 points of two
curves; libp2p's messages of two minutes, while rounds grow no shorter."""

KB = 1000
MOST_PER_ROUND = 0.25 * KB
"""Resident bytes that a round may add. Before: 0.8 kB in 17,149 rounds. Measured since: 0.07, of pages that wander."""


@pytest.mark.alone
@pytest.mark.soak
def test_resident_memory_levels_off(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", 3, "--rounds", ROUNDS, "--inner-steps", 2, *DIGITS) as program:
        assert program.end(3600.0) == 0
    for number in range(3):
        rounds = [event for event in read_log(tmp_path / "run" / f"node-{number}") if event["event"] == "round"]
        held = {event["round"]: event["rss_bytes"] for event in rounds}
        assert len(held) > 0.5 * ROUNDS, "it was hardly there: too busy a machine"
        begin = min(round_ for round_ in held if round_ >= FULL_AFTER)
        grown = held[max(held)] - held[begin]
        assert grown < MOST_PER_ROUND * (max(held) - begin), f"{grown / (max(held) - begin):.0f} bytes a round"
