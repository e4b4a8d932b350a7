"""A private swarm that has trained all its rounds goes on when an admin signs for more, and its members start again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from sim_swarm import Member, Swarm, swarm
from swarm_founding import found_private

from gossip.membership import next_version
from node.swarm import agreed_settings
from node.swarm.admin_actions import Change, rotate
from node.swarm.folder import SwarmFolder, membership_of

ROUNDS, MORE = 4, 7
LEARNING: dict[str, Any] = {"train": {"rounds": ROUNDS, "eval_every": 2}, "sync": {"f": 1}}
KEPT: dict[str, Any] = {**LEARNING, "node": {"checkpoint_every": 2, "wait_timeout_s": 20.0}}
NAMES = ("a", "b", "c")


async def start_all(members: Swarm, *names: str) -> list[Member]:
    return [await members.start(name, wait_for=2, follows=True, **KEPT) for name in names]


def give_more(lab: SwarmFolder, node_dir: Path, rounds: int, at_round: int) -> None:
    """As `swarm rotate` on the machine of one of the members."""
    change = Change(settings={"train.rounds": rounds})
    rotate(lab, lab.authority(None), change, at_round, None, (node_dir,))


async def test_more_rounds_are_trained_by_members_that_had_finished(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lab = found_private(tmp_path, LEARNING, NAMES)
    with trio.fail_after(500):
        async with swarm(tmp_path) as members:
            first = await start_all(members, *NAMES)
            await members.finished()
            assert [it.node.state.round for it in first] == [ROUNDS] * 3
            give_more(lab, tmp_path / "a", MORE, ROUNDS)
            again = await start_all(members, "b", "c", "a")  # those who have not heard wait for the one who has
            await members.finished()
    for it in again:
        assert it.resumed
        assert it.node.state.round == MORE
        assert [fields["round"] for fields in it.told("round")] == [5, 6, 7]
        assert "asking the other members" in it.told("waiting")[0]["message"]
        assert it.told("manifest")[0]["changes"] == {"train.rounds": MORE}
        assert {fields["members"] for fields in it.told("round")} == {3}


async def test_a_round_behind_the_end_that_an_older_release_signed_is_not_waited_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lab = found_private(tmp_path, LEARNING, ("a",))
    with trio.fail_after(500):
        async with swarm(tmp_path) as members:
            await members.start("a", follows=True, **KEPT)
            await members.finished()
            files = membership_of(tmp_path / "a")
            chain, terms = files.load_manifests(), files.load_manifests().newest.terms
            settings = agreed_settings.changed(terms.settings, {"train.rounds": MORE})
            later = next_version(chain.newest, replace(terms, settings=settings), applies_at=ROUNDS + 10)
            chain.accept(later.signed_by(lab.authority(None)))
            files.hand_over(chain.dump())
            again = await members.start("a", follows=True, **KEPT)
            await members.finished()
    assert again.node.state.round == MORE


async def test_one_that_is_given_nothing_more_ends_with_nothing_done(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    found_private(tmp_path, LEARNING, ("a",))
    with trio.fail_after(500):
        async with swarm(tmp_path) as members:
            await members.start("a", follows=True, **KEPT)
            await members.finished()
            began = trio.current_time()
            again = await members.start("a", follows=True, **KEPT)
            await members.finished()
            assert 20 <= trio.current_time() - began < 30
    assert again.node.state.round == ROUNDS
    assert not again.told("round")


@pytest.mark.thorough
async def test_a_newcomer_comes_into_the_added_rounds(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    lab = found_private(tmp_path, LEARNING, (*NAMES, "late"))
    many = 60
    with trio.fail_after(500):
        async with swarm(tmp_path) as members:
            await start_all(members, *NAMES)
            await members.finished()
            give_more(lab, tmp_path / "a", many, ROUNDS)
            again = await start_all(members, *NAMES)
            while again[0].node.state.round < ROUNDS + 20:  # noqa: ASYNC110
                await trio.sleep(0.1)
            late = await members.start("late", wait_for=1, follows=True, **KEPT)
            await members.finished()
    assert late.node.state.round == many
    assert late.told("joined")[0]["round"] > ROUNDS
