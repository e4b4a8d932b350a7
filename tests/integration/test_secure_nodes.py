"""Secure sums between real processes over libp2p: members come to them apart, and wait for each other."""

from pathlib import Path

import pytest
from processes_harness import DIGITS, up

SECURE = ("--set", "sync.strategy=secure_average", "--set", "sync.compressor=none")


@pytest.mark.thorough
def test_four_processes_open_their_sums(tmp_path: Path) -> None:
    """Phases of a step, so that a sum outlasts them. In the first rounds they may not all have met."""
    with up(tmp_path, *DIGITS, "--nodes", 4, "--rounds", 6, "--inner-steps", 1, *SECURE) as program:
        assert program.end() == 0, program.stderr
        for number in range(4):
            told = program.heard("secure_round", node=f"node-{number}")
            assert len(told) == 6
            opened = [fields["survivors"] for fields in told if fields["result"] == "opened"]
            assert len(opened) >= 3, [fields.get("why") for fields in told]
            assert 4 in opened
