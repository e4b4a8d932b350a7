"""`node.region = "auto"` with real nodes: chosen by round trips, told, kept in the folder, and not chosen twice."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from sim_swarm import DEFAULTS, Member, Swarm, key_of, swarm

from gossip.regions.region_survey_task import SurveyedRun
from gossip.transport.memory.network import LinkQuality
from node.config.schema import Config, from_raw
from node.config.sections import AUTO_REGION
from node.events.event_types import Event, RegionChosen
from node.events.lines import describe
from node.roles.own_region import keep_region, scope_of, with_chosen_region, with_kept_region
from node.system.errors import RunError, UsageError
from node.system.run_dir import CHECKPOINTS, REGION

LABELS = ("east", "west")


def auto(*peers: str) -> Config:
    """The settings of a newcomer."""
    raw: dict[str, Any] = {**DEFAULTS, "sync": {"regions": list(LABELS)}}
    config = from_raw({**raw, "node": {**raw["node"], "region": AUTO_REGION}})
    return config.model_copy(update={"network": replace(config.network, peers=peers)})


def words_of(event: Event) -> str:
    """What the operator reads."""
    return " ".join(line.plain for line in describe(event))


async def two_sites(it: Swarm) -> list[Member]:
    """Two members of each region, 100 ms from those of the other."""
    members: list[Member] = []
    for number in range(4):
        label, name = LABELS[number % 2], f"n{number}"
        for other in members:
            near = other.node.config.node.region == label
            quality = LinkQuality(latency_s=0.001 if near else 0.05)
            it.network.set_link(key_of(name).peer_id, other.transport.peer_id, quality)
        sections = {"sync": {"regions": list(LABELS)}, "node": {"region": label}, "train": {"rounds": 400}}
        members.append(await it.start(name, step_seconds=0.5, **sections))  # what is looked at are hellos, not rounds
    await trio.sleep(30.0)
    return members


async def test_a_newcomer_finds_its_region_and_trains_in_it(autojump_clock, tmp_path: Path) -> None:
    async with swarm(tmp_path) as it:
        members = await two_sites(it)
        newcomer, told = key_of("new"), list[Event]()
        for each in members:
            far = each.node.config.node.region != "west"
            it.network.set_link(newcomer.peer_id, each.transport.peer_id, LinkQuality(latency_s=0.05 if far else 0.001))
        config = auto(members[0].transport.addresses[0])
        node = members[0].node
        run = SurveyedRun(scope=node.service._engine.scope, genesis=node.service._run_info.genesis)
        assert run.scope == scope_of(config, node.service._run_info, None)
        chosen = await with_chosen_region(
            config,
            run,
            transport=it.network.attach(newcomer.peer_id),
            private=None,
            rng=random.Random(1),
            node_dir=tmp_path,
            emit=told.append,
        )
        assert chosen.node.region == "west"
        (event,) = [each for each in told if isinstance(each, RegionChosen)]
        assert (event.why, event.members) == ("nearest", {"east": 2, "west": 2})
        assert event.round_trips_ms == {"east": pytest.approx(100.0), "west": pytest.approx(2.0)}
        assert "node.region is west: the nearest: east 100.0 ms (2 members), west 2.0 ms (2 members)" in words_of(event)
        assert with_kept_region(config, tmp_path) == chosen, "at the second start nobody is asked"
        sections = {"sync": {"regions": list(LABELS)}, "node": {"region": chosen.node.region}, "train": {"rounds": 400}}
        new = await it.start("new", step_seconds=0.5, peers=config.network.peers, **sections)
        await trio.sleep(10.0)
        west = {each.transport.peer_id for each in members if each.node.config.node.region == "west"}
        assert set(new.node.service.neighbour_ids) == west
        for each in (*members, new):
            each.kill()


async def test_who_is_given_no_peer_begins_the_first_region(autojump_clock, tmp_path: Path) -> None:
    told: list[Event] = []
    async with swarm(tmp_path) as it:
        member = await it.start("n0", sync={"regions": list(LABELS)}, node={"region": "east"})
        service, key = member.node.service, key_of("new")
        chosen = await with_chosen_region(
            auto(),
            SurveyedRun(scope=service._engine.scope, genesis=service._run_info.genesis),
            transport=it.network.attach(key.peer_id),
            private=None,
            rng=random.Random(1),
            node_dir=tmp_path,
            emit=told.append,
        )
        member.kill()
    assert (chosen.node.region, trio.current_time()) == ("east", 0.0)
    assert json.loads((tmp_path / REGION).read_text()) == {
        "region": "east",
        "why": "nobody",
        "round_trips_ms": {},
        "members": {},
    }
    assert "the first that the run names, as no member of any has answered" in words_of(told[-1])


async def test_the_first_node_of_a_region_begins_although_its_peers_are_of_another(
    autojump_clock, tmp_path: Path
) -> None:
    """Its peers answer, and are no neighbours: after the wait it goes on alone."""
    async with swarm(tmp_path) as it:
        regions = {"sync": {"regions": list(LABELS)}, "train": {"rounds": 30}}
        await it.start("n0", node={"region": "east"}, **regions)
        first = await it.start("n1", wait_for=1, node={"region": "west"}, **regions)
        await it.finished()
    assert first.told("warning")[0]["message"] == "going on with 0 of 1 awaited neighbours"
    assert first.node.state.finished


def test_what_was_chosen_is_taken_again_as_long_as_the_run_has_it(tmp_path: Path) -> None:
    config = auto()
    assert with_kept_region(config, tmp_path) == config, "the first start"
    (tmp_path / REGION).write_text('{"region": "west"}')
    assert with_kept_region(config, tmp_path).node.region == "west"
    (tmp_path / REGION).write_text('{"region": "north"}')
    assert with_kept_region(config, tmp_path) == config, "of another run in this folder"
    named = config.model_copy(update={"node": replace(config.node, region="east")})
    (tmp_path / REGION).write_text('{"region": "west"}')
    assert with_kept_region(named, tmp_path) == named, "who names one means it"


def test_a_choice_that_nobody_answered_is_made_anew_until_something_came_of_it(tmp_path: Path) -> None:
    """Its network was down, so that the first start ended with nobody met."""
    (tmp_path / REGION).write_text('{"region": "east", "why": "nobody", "round_trips_ms": {}, "members": {}}')
    assert with_kept_region(auto(), tmp_path) == auto()
    (tmp_path / CHECKPOINTS / "round-000001").mkdir(parents=True)
    assert with_kept_region(auto(), tmp_path).node.region == "east", "no node changes its region in the midst of a run"


def test_a_region_that_was_named_is_kept_for_a_later_start_that_is_to_choose(tmp_path: Path) -> None:
    named = auto().model_copy(update={"node": replace(auto().node, region="east")})
    keep_region(named, tmp_path)
    assert with_kept_region(auto(), tmp_path) == named
    west = named.model_copy(update={"node": replace(named.node, region="west")})
    keep_region(west, tmp_path)
    assert with_kept_region(auto(), tmp_path) == west
    (tmp_path / REGION).write_text("{")
    keep_region(named, tmp_path)
    assert with_kept_region(auto(), tmp_path) == named
    keep_region(auto().model_copy(update={"node": replace(named.node, region="")}), tmp_path)
    assert with_kept_region(auto(), tmp_path) == named


def test_a_node_that_has_trained_in_a_region_that_nothing_tells_does_not_choose_one(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).mkdir()
    assert with_kept_region(auto(), tmp_path) == auto()
    (tmp_path / CHECKPOINTS / "round-000001").touch()
    with pytest.raises(UsageError, match=r"no region\.json"):
        with_kept_region(auto(), tmp_path)


@pytest.mark.parametrize("damaged", ["", "{}", "[]", "null", "[" * 60_000, '{"region"', "\x00"])
def test_a_damaged_file_is_said_to_be_one(tmp_path: Path, damaged: str) -> None:
    (tmp_path / REGION).write_text(damaged)
    with pytest.raises(RunError, match=r"region\.json is damaged"):
        with_kept_region(auto(), tmp_path)
