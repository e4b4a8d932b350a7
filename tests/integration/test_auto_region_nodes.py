"""`node.region=auto` with real processes: the choice is told, kept, and taken again at the next start."""

import json
from pathlib import Path

import pytest
from processes_harness import PACED, node

pytestmark = [pytest.mark.paired, pytest.mark.thorough]

REGIONS = ("--set", 'sync.regions=["east", "west"]')


def test_a_node_joins_the_only_region_that_answers_and_stays_in_it(tmp_path: Path) -> None:
    auto = (*PACED, "--rounds", 400, "--seed", 5, *REGIONS, "--set", "node.region=auto")
    with node(tmp_path / "1", *PACED, "--rounds", 400, "--seed", 5, *REGIONS, "--set", "node.region=west") as first:
        peer = ("--peer", first.hear("started")["addresses"][0])
        with node(tmp_path / "2", *auto, *peer) as second:
            told = second.hear("region")
            assert (told["region"], told["why"], told["members"]) == ("west", "nearest", {"west": 1})
            assert 0 < told["round_trips_ms"]["west"] < 1000
            second.hear("neighbour_up", peer=first.hear("started")["peer_id"])
            second.interrupt()
            assert second.end() == 130
        kept = json.loads((tmp_path / "2" / "run" / "node" / "region.json").read_text())
        assert kept["region"] == "west"
        with node(tmp_path / "2", *auto, *peer) as again:
            again.hear("neighbour_up", peer=first.hear("started")["peer_id"])
            assert not again.heard("region")
            again.interrupt()
            assert again.end() == 130
        assert not first.heard("rejected")
        first.interrupt()
        assert first.end() == 130


def test_a_node_that_is_given_no_peer_begins_the_first_region(tmp_path: Path) -> None:
    with node(tmp_path / "1", *PACED, "--rounds", 400, *REGIONS, "--set", "node.region=auto") as alone:
        assert alone.hear("region")["region"] == "east"
        assert alone.heard("region")[0]["why"] == "nobody"
        alone.interrupt()
        assert alone.end() == 130
