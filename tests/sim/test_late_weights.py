"""The mean of late weights in a node: what is evaluated, saved and exported; training does not see it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from sim_swarm import STEP_SECONDS, Member, Swarm, swarm
from sizes import thorough_but

from node.training import model_file
from node.training.checkpoint import Checkpoint, CheckpointStore
from node.training.evaluation import load_run
from node.training.node import Node
from p2ptrain.saved.models import AVERAGE, VECTOR, models_of
from p2ptrain.training.late_average import LateAverage

ROUNDS = 6
SETTINGS: dict[str, Any] = {"train": {"rounds": ROUNDS, "eval_every": 1}, "node": {"checkpoint_every": 1}}


def with_average(share: float, **train: Any) -> dict[str, Any]:
    return {**SETTINGS, "train": {**SETTINGS["train"], "late_average": share, **train}}


def newest(member: Member) -> Checkpoint:
    found = CheckpointStore(member.folder / "checkpoint").newest()
    assert found is not None
    return found


@pytest.fixture
def anchors(monkeypatch: pytest.MonkeyPatch) -> dict[int, torch.Tensor]:
    """What was noted of a node alone, by round: of the newest run."""
    seen: dict[int, torch.Tensor] = {}
    add = LateAverage.add

    def record(late: LateAverage, phi_d: torch.Tensor, *, round: int, rounds: int) -> None:
        seen[round] = phi_d.clone()
        add(late, phi_d, round=round, rounds=rounds)

    monkeypatch.setattr(LateAverage, "add", record)
    return seen


async def ended(members: Swarm, name: str = "alone", **settings: Any) -> Member:
    member = await members.start(name, **settings)
    await members.finished(name)
    return member


async def test_the_mean_of_the_last_rounds_is_evaluated_saved_and_exported(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, anchors: dict[int, torch.Tensor]
) -> None:
    async with swarm(tmp_path) as members:
        member = await ended(members, **with_average(0.5))
    mean_d = torch.stack([anchors[round] for round in (4, 5, 6)]).mean(0)
    kept = newest(member).tensors
    torch.testing.assert_close(kept[AVERAGE], mean_d)
    assert torch.equal(kept[VECTOR], anchors[ROUNDS]), "from which training goes on"
    loaded = load_run(member.folder)
    assert torch.equal(loaded.vector_d, kept[AVERAGE])
    losses = [fields["eval_loss"] for fields in member.told("evaluated")][-ROUNDS:]
    assert losses[2] == loaded.evaluate(anchors[3]), "not in the window"
    assert losses[4] == pytest.approx(loaded.evaluate(torch.stack([anchors[4], anchors[5]]).mean(0)))
    assert losses[5] == loaded.evaluate() == member.eval_loss != loaded.evaluate(anchors[ROUNDS])
    exported = model_file.state_of(models_of(member.folder))
    flat_d = torch.cat([value.flatten() for value in exported.values()])
    assert torch.equal(flat_d.sort().values, kept[AVERAGE].sort().values)


@pytest.mark.parametrize("strategy", thorough_but({"streaming"}, ["tracked_gossip", "allreduce", "streaming"]))
async def test_training_does_not_see_it(tmp_path: Path, autojump_clock: trio.testing.MockClock, strategy: str) -> None:
    sync = {"strategy": strategy, "f": 0, "aggregator": "mean"}
    found = []
    for share in (0.0, 0.5):
        folder = tmp_path / str(share)
        folder.mkdir()
        async with swarm(folder) as members:
            found.append(newest(await ended(members, sync=sync, **with_average(share))).tensors)
    plain, averaged = found
    assert set(averaged) - set(plain) == {AVERAGE, "late.rounds"}
    assert all(torch.equal(value, averaged[name]) for name, value in plain.items())
    assert not torch.equal(averaged[AVERAGE], averaged[VECTOR])


async def stopped_after(members: Swarm, round: int, **settings: Any) -> Member:
    member = await members.start("alone", **settings)
    while len(member.told("checkpoint")) < round:  # noqa: ASYNC110
        await trio.sleep(STEP_SECONDS)
    member.kill()
    await member.done.wait()
    return member


async def test_a_run_that_was_cut_off_in_the_window_goes_on_bit_for_bit(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    ends = []
    for name, cut in (("whole", None), ("cut", 5)):
        (tmp_path / name).mkdir()
        async with swarm(tmp_path / name) as members:
            if cut is not None:
                first = await stopped_after(members, cut, **with_average(0.7))
                assert 3 <= newest(first).round < ROUNDS
                assert AVERAGE in newest(first).tensors
            ends.append(newest(await ended(members, **with_average(0.7))).tensors)
    whole, cut_off = ends
    assert torch.equal(whole[VECTOR], cut_off[VECTOR])
    assert torch.equal(whole[AVERAGE], cut_off[AVERAGE])
    assert torch.equal(whole["late.rounds"], cut_off["late.rounds"])


async def test_a_run_without_one_is_given_one_and_more_rounds_begin_it_anew(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, anchors: dict[int, torch.Tensor]
) -> None:
    async with swarm(tmp_path) as members:
        first = await ended(members, **SETTINGS)
        assert AVERAGE not in newest(first).tensors
        second = await ended(members, **with_average(0.3, rounds=8))
        assert newest(second).tensors["late.rounds"].tolist() == [7, 8]
        third = await ended(members, **with_average(0.3, rounds=10))
    assert third.resumed
    assert newest(third).tensors["late.rounds"].tolist() == [9, 10], "the window is 8 to 10, and 7 was in the mean"


async def test_weights_that_diverge_in_the_window_end_the_node(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    def breaks(node: Node) -> None:
        measure: Callable[..., Any] = node.inner.trainer.evaluate
        judged = node.inner.trainer.judge

        def judge(x_d: torch.Tensor, round: int) -> float:
            return float("nan") if node.state.round == 4 else judged(x_d, round)

        def evaluate(x_d: torch.Tensor | None = None) -> float:
            return float("nan") if node.state.round == 4 else measure(x_d)

        node.inner.trainer.judge = judge  # type: ignore[method-assign]
        node.inner.trainer.evaluate = evaluate  # type: ignore[method-assign]

    settings = with_average(1.0)
    async with swarm(tmp_path, keep_errors=True) as members:
        member = await members.start("alone", **settings, change=breaks)
        await members.finished()
    assert "training has diverged in round 5" in repr(member.error)
    assert newest(member).round == 4, "none of weights that could not be gone on from"
