"""`node.region=auto` with real processes: the choice is told, kept, and taken again at the next start."""

import json
from pathlib import Path

import pytest
from processes_harness import PACED, Program, node, ran

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
        named = json.loads((tmp_path / "1" / "run" / "node" / "region.json").read_text())
        assert named == {"region": "west"}, "a later start with auto stays there"
        first.interrupt()
        assert first.end() == 130


def test_a_node_that_is_given_no_peer_begins_the_first_region(tmp_path: Path) -> None:
    with node(tmp_path / "1", *PACED, "--rounds", 400, *REGIONS, "--set", "node.region=auto") as alone:
        assert alone.hear("region")["region"] == "east"
        assert alone.heard("region")[0]["why"] == "nobody"
        alone.interrupt()
        assert alone.end() == 130


def test_in_a_private_swarm_it_asks_as_a_member_and_a_certificate_goes_before(tmp_path: Path) -> None:
    lab, no_key = tmp_path / "lab", "--no-passphrase"
    task = ("--task", "paced_digits:create", "--inner-steps", 20, "--rounds", 400)
    made = ran(tmp_path, "swarm", "create", "lab", "--out", lab, no_key, *task, *REGIONS, "--set", "node.region=west")
    assert made.code == 0, made.err
    bound = ran(tmp_path, "swarm", "invite", lab, "--region", "east", "--out", tmp_path / "east.txt")
    assert bound.code == 0, bound.err

    def member(name: str, *words: object) -> Program:
        consent = ("--task", "paced_digits:create", "--set", "train.threads=1")
        return Program(tmp_path / name, "node", "--json", *consent, "--run-dir", tmp_path / name / "run", *words)

    with Program(tmp_path, "node", "--json", "--swarm", lab, "--set", "train.threads=1") as founder:
        me = founder.hear("started")["peer_id"]
        auto = ("--set", "node.region=auto")
        with member("a", "--invite", lab / "invite.txt", *auto) as near:
            assert near.hear("region")["members"] == {"west": 1}
            near.hear("neighbour_up", peer=me)
            with member("b", "--invite", tmp_path / "east.txt", *auto, "--set", "node.wait_timeout_s=3") as east:
                east.hear("round", count=2)
                assert not east.heard("region")
                assert not east.heard("neighbour_up"), "both others are of west"
                east.interrupt()
                assert east.end() == 130
            near.interrupt()
            assert near.end() == 130
        assert not founder.heard("rejected")
        founder.interrupt()
        assert founder.end() == 130
