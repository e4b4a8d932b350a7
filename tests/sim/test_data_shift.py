"""Real nodes of which some have data that shift: who tells it, where, and what is done about it."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from sim_swarm import Member, Swarm, played

from node.training.checkpoint import CheckpointStore
from node.training.node import Node

pytest.importorskip("river")

STEPS, AT_ROUND, ROUNDS = 3, 30, 40
WATCHED = {"detector": "page_hinkley", "settle": 3, "examples": 128}


def _sections(number: int, which: list[int], **shift: Any) -> dict[str, dict[str, Any]]:
    return {
        "task": {"name": "shifting_digits:create", "at": AT_ROUND * STEPS, "which": which},
        "train": {"rounds": ROUNDS, "inner_steps": STEPS, "eval_every": 1000},
        "node": {"shard_index": number, "shard_count": 5},
        "shift": {**WATCHED, **shift},
    }


def _told(folder: Path, which: list[int], nodes: int = 5, **shift: Any) -> list[Member]:
    async def main(members: Swarm) -> list[Member]:
        for number in range(nodes):
            await members.start(f"n{number}", wait_for=number, **_sections(number, which, **shift))
        await members.finished()
        return list(members.members.values())

    return played(main, folder)


def _where(member: Member) -> list[tuple[str, int]]:
    return [(it["where"], it["round"]) for it in member.told("shift")]


@pytest.mark.thorough
def test_one_whose_data_shift_tells_it_and_nobody_says_everywhere(tmp_path: Path) -> None:
    members = _told(tmp_path, [0])
    assert [_where(it) for it in members] == [[("here", AT_ROUND)], [], [], [], []]
    (told,) = members[0].told("shift")
    assert told["signals"] == ["loss", "moments"]
    assert [it.node.service.shift_claims() for it in members[1:]] == [{}] * 4, "they have parted"


@pytest.mark.thorough
def test_a_shift_at_all_is_told_as_one_everywhere(tmp_path: Path) -> None:
    for member in _told(tmp_path, [0, 1, 2, 3, 4]):
        assert [where for where, _ in _where(member)] == ["here", "everywhere"]
        assert AT_ROUND <= _where(member)[0][1] <= _where(member)[1][1] <= AT_ROUND + 3


@pytest.mark.thorough
def test_two_of_five_that_lie_make_no_shift_everywhere_and_three_of_five_do(tmp_path: Path) -> None:
    async def main(members: Swarm, liars: int) -> list[Member]:
        def lie(node: Node) -> None:
            assert node.shifts is not None
            node.shifts.verdict.note_own(12)

        for number in range(5):
            change = lie if number >= 5 - liars else (lambda node: None)
            sections = _sections(number, []) | {"train": {"rounds": 20, "inner_steps": STEPS, "eval_every": 1000}}
            await members.start(f"n{number}", wait_for=number, change=change, **sections)
        await members.finished()
        return list(members.members.values())

    for liars, told in ((2, set()), (3, {"everywhere"})):
        folder = tmp_path / str(liars)
        folder.mkdir()
        honest = played(partial(main, liars=liars), folder)[: 5 - liars]
        assert {where for member in honest for where, _ in _where(member)} == told


@pytest.mark.thorough
def test_a_liars_model_makes_no_shift_of_predictions(tmp_path: Path) -> None:
    """The honest ones compare their predictions with its model, too."""

    async def main(members: Swarm) -> list[Member]:
        for number in range(5):
            sections = _sections(number, [], signals=["predictions"])
            if number == 0:
                sections["attack"] = {"name": "gaussian", "from_round": AT_ROUND}
            await members.start(f"n{number}", wait_for=number, **sections)
        await members.finished()
        return list(members.members.values())

    honest = played(main, tmp_path)[1:]
    assert [_where(member) for member in honest] == [[]] * 4
    for member in honest:
        assert member.node.shifts is not None
        assert abs(member.node.shifts.watch.deviations["predictions"]) < 6


@pytest.mark.thorough
@pytest.mark.parametrize("local", [(), ("6.*",)])
def test_a_node_that_was_stopped_notices_as_if_it_had_not_been(tmp_path: Path, local: tuple[str, ...]) -> None:
    async def main(members: Swarm) -> Member:
        whole = _sections(0, [0])
        whole["train"]["local"] = local
        before = await members.start("n0", **{**whole, "node": {**whole["node"], "checkpoint_every": 1}})
        while before.node.state.round < AT_ROUND - 3:  # noqa: ASYNC110  # of another's state
            await trio.sleep(0.01)
        before.kill()
        await before.done.wait()
        assert before.told("shift") == []
        after = await members.start("n0", **whole)
        assert after.resumed
        assert after.node.shifts is not None
        assert after.node.shifts.watch.kept_d is not None
        await members.finished("n0")
        return after

    assert _where(played(main, tmp_path)) == [("here", AT_ROUND)]


@pytest.mark.thorough
def test_what_is_no_state_of_detectors_ends_nothing_and_all_is_learned_anew(tmp_path: Path) -> None:
    async def main(members: Swarm) -> Member:
        sections = _sections(0, [])
        short = {**sections, "train": {**sections["train"], "rounds": 8}}
        await members.start("n0", **short)
        await members.finished("n0")
        store = CheckpointStore(members.members["n0"].folder / "checkpoint")
        found = store.newest()
        assert found is not None
        damaged = replace(found, tensors=dict(found.tensors), meta={**found.meta, "shift": {"age": "x"}}, round=9)
        store.save(damaged)
        after = await members.start("n0", **sections)
        assert after.resumed
        await members.finished("n0")
        return after

    after = played(main, tmp_path)
    assert any("learns anew" in it["message"] for it in after.told("warning"))
    assert after.node.state.round == ROUNDS


@pytest.mark.thorough
def test_a_newcomer_whose_data_differ_says_so_before_its_first_round(tmp_path: Path) -> None:
    async def main(members: Swarm) -> tuple[Member, Member]:
        for number in range(3):
            await members.start(f"n{number}", wait_for=number, **_sections(number, [], detector="none"))
        one = members.members["n0"]
        while one.node.state.round < 20:  # noqa: ASYNC110  # of another's state
            await trio.sleep(0.1)
        turned = _sections(4, [4])
        turned["task"]["at"] = 0
        return await members.start("alike", **_sections(3, [])), await members.start("other", **turned)

    async def ended(members: Swarm) -> tuple[Member, Member]:
        both = await main(members)
        await members.finished()
        return both

    alike, other = played(ended, tmp_path)
    assert _where(alike) == []
    (told,) = other.told("shift")
    assert told["where"] == "newcomer"
    assert "moments" in told["signals"]
    assert told["at"] < other.told("round")[0]["at"]


def test_the_learning_rate_is_raised_for_some_rounds_where_that_is_asked(tmp_path: Path) -> None:
    def rates(folder: Path, **shift: Any) -> dict[int, float]:
        folder.mkdir()
        (member,) = _told(folder, [0], nodes=1, **shift)
        return {it["round"] - 1: it["learning_rate"] for it in member.told("round") if "learning_rate" in it}

    raised = rates(tmp_path / "raised", action="learning_rate", rate_factor=3.0, rate_rounds=4)
    usual = rates(tmp_path / "told")
    times = {round_: raised[round_] / usual[round_] for round_ in usual}
    begins = min(round_ for round_, factor in times.items() if factor != pytest.approx(1.0))
    assert AT_ROUND < begins <= AT_ROUND + 2
    assert [times[begins + number] for number in range(-1, 5)] == pytest.approx([1, 3, 3, 3, 3, 1])


def test_where_it_is_off_nothing_is_looked_at_kept_or_said(tmp_path: Path) -> None:
    members = _told(tmp_path, [0, 1], nodes=2, detector="none")
    assert [it.told("shift") for it in members] == [[], []]
    for member in members:
        assert member.node.shifts is None
        checkpoint = CheckpointStore(member.folder / "checkpoint").newest()
        assert checkpoint is not None
        assert "shift" not in checkpoint.meta
        assert not any(name.startswith("shift") for name in checkpoint.tensors)
