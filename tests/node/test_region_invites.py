"""`swarm invite --region`: who joins by it is of that region, without naming it, and of no other."""

import json
from pathlib import Path

import pytest
from swarm_harness import DIGITS, founded, joined, line_of, mistake, said

from gossip.core.errors import LocalError
from gossip.membership import Role
from node.config.schema import from_raw
from node.roles.assembly import check_runnable
from node.swarm.accept_invite import membership, read_invite
from node.swarm.create import CreatedSwarm
from node.swarm.folder import SwarmFolder, membership_of
from node.swarm.inviting import Wish, give
from node.system.errors import UsageError

REGIONS = {**DIGITS, "sync": {"regions": ["east", "west"]}}


@pytest.fixture
def lab(tmp_path: Path) -> CreatedSwarm:
    return founded(tmp_path / "lab", REGIONS)


def test_the_region_is_taken_from_the_certificate(lab: CreatedSwarm, tmp_path: Path) -> None:
    member = joined(tmp_path / "a" / "node", line_of(lab.folder, region="east"))
    assert member.raw["node"]["region"] == "east"
    check_runnable(from_raw(member.raw))
    certificate = membership_of(tmp_path / "a" / "node").load_certificate()
    assert certificate is not None
    assert certificate.region == "east"
    again = membership(tmp_path / "a" / "node", {}, None)
    assert again is not None
    assert again.raw == member.raw, "without the line, too"
    assert "region" not in (tmp_path / "a" / "node" / "local.toml").read_text()


def test_a_certificate_goes_before_what_a_node_would_find_out(lab: CreatedSwarm, tmp_path: Path) -> None:
    member = joined(tmp_path / "a" / "node", line_of(lab.folder, region="west"), {"node": {"region": "auto"}})
    assert member.raw["node"]["region"] == "west"


def test_a_short_line_has_it_too(lab: CreatedSwarm) -> None:
    short = read_invite(line_of(lab.folder, region="west", full=False))
    assert short.invite.region == "west"


@pytest.mark.parametrize("started", [False, True])
def test_another_region_is_refused_and_nothing_is_written(lab: CreatedSwarm, tmp_path: Path, started: bool) -> None:
    folder, line = tmp_path / "a" / "node", line_of(lab.folder, region="east")
    if started:
        joined(folder, line, {"node": {"region": "east"}})
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"node.region='west' contradicts the certificate, which is of region east"):
        membership(folder, {"node": {"region": "west"}}, None if started else read_invite(line))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_command_says_so_in_one_line(lab: CreatedSwarm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = line_of(lab.folder, region="east")
    wrong = ("node", "--invite", line, "--run-dir", tmp_path / "run", "--set", "node.region=west")
    assert "node.region='west' contradicts the certificate" in mistake(capsys, *wrong)
    assert not (tmp_path / "run" / "node" / "membership").exists()


def test_without_a_region_an_invite_is_as_it_was(lab: CreatedSwarm, tmp_path: Path) -> None:
    member = joined(tmp_path / "a" / "node", line_of(lab.folder), {"node": {"region": "west"}})
    assert member.raw["node"]["region"] == "west"
    assert "region" not in joined(tmp_path / "b" / "node", line_of(lab.folder)).raw["node"]


def test_an_invite_is_for_a_region_that_the_swarm_has(lab: CreatedSwarm, tmp_path: Path) -> None:
    flat = founded(tmp_path / "flat")
    for folder, wish, why in (
        (lab.folder, Wish(region="mars"), "none of the swarm's regions: they are east, west"),
        (flat.folder, Wish(region="east"), "none of the swarm's regions: it has none"),
        (lab.folder, Wish(region="east", role=Role.OBSERVER), "role observer is of no region"),
    ):
        with pytest.raises((UsageError, LocalError), match=why):
            give(folder, folder.authority(None), wish)


def test_what_is_shown_of_an_invite_names_the_region(
    lab: CreatedSwarm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, file = lab.folder.path, tmp_path / "line.txt"
    assert said(capsys, "swarm", "invite", path, "--region", "east", "--full", "--out", file)[0] == 0
    assert "of region east alone" in said(capsys, "swarm", "show", file)[1]
    assert "of region east alone" in said(capsys, "swarm", "show", path)[1]
    assert [each.region for each in SwarmFolder(path).given()] == ["", "east"]
    joined(tmp_path / "a" / "node", file.read_text())
    _, out, _ = said(capsys, "swarm", "members", tmp_path / "a", "--json")
    rows = json.loads(out)["members"]
    assert {row["name"]: row["region"] for row in rows} == {"": "east"}
    assert "east" in said(capsys, "swarm", "members", tmp_path / "a")[1]
