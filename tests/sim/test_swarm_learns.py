"""Swarms of real nodes over the in-memory network, under the virtual clock: learning, leaving, coming back."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from sim_swarm import STEP_SECONDS, Swarm, swarm

from node.training.checkpoint import CheckpointStore
from node.training.joining import TELL_S
from node.training.node import Node
from node.training.run_watch import SETTLED_ROUNDS
from p2ptrain.sync import ModelAveraging, RoundResult


def spread(members: Swarm) -> float:
    """Root mean square distance of the members' models to their mean."""
    models = torch.stack([member.node.inner.trainer.vector() for member in members.members.values()])
    return float((models - models.mean(0)).square().sum(1).mean().sqrt())


async def test_four_nodes_learn_one_model(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        for number in range(4):
            await members.start(f"n{number}", wait_for=3)
        await members.finished()
        for member in members.members.values():
            rounds = member.told("round")
            assert [fields["round"] for fields in rounds] == list(range(1, 9))
            assert rounds[-1]["members"] == 4
            assert not member.told("rejected")
            assert member.eval_loss < 0.6 * member.node.journal.first["eval_loss"]
            last, steps = rounds[-1], sum(fields["steps"] for fields in rounds)
            assert last["bytes_sent"] > last["payload_bytes_sent"] > 0, "announcements and hellos too"
            assert last["bytes_received"] > last["payload_bytes_received"]
            assert last["sent_bits"] == pytest.approx(8 * last["bytes_sent"] / member.node.inner.trainer.numel / steps)
            assert last["sent_bits"] > 3 * last["published_bits"], "a copy for each neighbour, and overhead"
        assert spread(members) < 0.2, "without averaging it is 0.8"


async def test_a_node_tells_its_strategy_degrees_and_what_its_drift_correction_stands(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, dict[str, float]]] = []
    bounds: set[float] = set()
    honest = ModelAveraging.aggregate_

    def record(node: ModelAveraging, theta_d: torch.Tensor, staleness: Any, *, round: int, shares: Any) -> RoundResult:
        told.append((len(staleness), shares))
        bounds.add(node.largest_gamma)
        return honest(node, theta_d, staleness, round=round, shares=shares)

    monkeypatch.setattr(ModelAveraging, "aggregate_", record)
    async with swarm(tmp_path) as members:
        for number in range(3):
            await members.start(f"n{number}", wait_for=2, train={"drift": "scaffold", "drift_strength": 1.0})
        await members.finished()
    assert bounds == {2 / 3}
    assert any(heard == 2 for heard, _ in told)
    assert all(len(shares) == heard for heard, shares in told if heard)
    assert {share for _, shares in told for share in shares.values()} == {1.0}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_models(tmp_path: Path) -> None:
    def run(folder: Path) -> list[torch.Tensor]:
        async def main() -> list[torch.Tensor]:
            async with swarm(folder, seed=7) as members:
                for number in range(3):
                    (folder / f"n{number}").mkdir(parents=True)
                    _identity(folder / f"n{number}", number)
                    await members.start(f"n{number}", wait_for=2)
                await members.finished()
                return [member.node.inner.trainer.vector() for member in members.members.values()]

        trio._core._run._r.seed(3)
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    for ours, theirs in zip(first, second, strict=True):
        assert torch.equal(ours, theirs)


def _identity(folder: Path, number: int) -> None:
    from gossip.core.identity import Identity

    Identity(bytes([number + 1]) * 32).save(folder / "identity.key")


async def test_a_node_alone_trains(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        alone = await members.start("alone")
        await members.finished()
        assert {fields["closed_by"] for fields in alone.told("round")} == {"alone"}
        assert alone.eval_loss < 0.6 * alone.node.journal.first["eval_loss"]


@pytest.mark.slow
async def test_a_late_joiner_takes_model_and_round(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        for number in range(3):
            await members.start(f"n{number}", wait_for=2, train={"rounds": 20})
        await trio.sleep(12 * 5 * STEP_SECONDS)
        late = await members.start("late", wait_for=3, train={"rounds": 20})
        await members.finished()
        (joined,) = late.told("joined")
        assert joined["round"] >= 10
        assert joined["donors"] == 3
        first = late.told("round")[0]
        assert first["round"] == joined["round"] + 1
        assert first["train_loss"] < 0.5 * members.members["n0"].told("round")[0]["train_loss"]
        assert late.eval_loss < 1.05 * members.members["n0"].eval_loss
        assert members.members["n0"].told("round")[-1]["members"] == 4


@pytest.mark.slow
async def test_a_killed_node_resumes_and_catches_up(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    settings: dict[str, Any] = {"train": {"rounds": 30}, "node": {"checkpoint_every": 2}}
    async with swarm(tmp_path) as members:
        for number in range(4):
            await members.start(f"n{number}", wait_for=3, **settings)
        await trio.sleep(12 * 5 * STEP_SECONDS)
        members.members["n3"].kill()
        await members.finished("n3")
        await trio.sleep(8 * 5 * STEP_SECONDS)
        back = await members.start("n3", wait_for=3, **settings)
        assert back.resumed
        await members.finished()
        assert back.told("resumed")[0]["round"] <= 12
        assert back.told("joined"), "eight rounds behind, it takes the neighbours' model"
        others = [members.members[f"n{number}"].eval_loss for number in range(3)]
        assert back.eval_loss < 1.05 * sum(others) / 3
        assert not any(member.told("equivocation") for member in members.members.values())


@pytest.mark.thorough
@pytest.mark.slow
async def test_a_short_absence_needs_no_new_model(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        for number in range(4):
            await members.start(f"n{number}", wait_for=3, train={"rounds": 30}, node={"checkpoint_every": 1})
        await trio.sleep(12 * 5 * STEP_SECONDS)
        members.members["n3"].kill()
        await members.finished("n3")
        back = await members.start("n3", wait_for=3, train={"rounds": 30}, node={"checkpoint_every": 1})
        await members.finished()
        assert back.told("resumed")
        assert not back.told("joined")
        assert members.members["n0"].told("round")[-1]["members"] == 4


@pytest.mark.thorough
@pytest.mark.slow
async def test_a_stopped_node_holds_nobody_up_and_catches_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        for number in range(4):
            await members.start(f"n{number}", wait_for=3, train={"rounds": 60})
        await trio.sleep(10 * 5 * STEP_SECONDS)
        stopped = members.members["n3"]
        members.network.stall(stopped.transport.peer_id)
        began = trio.current_time()
        await trio.sleep(20 * 5 * STEP_SECONDS)
        for number in range(3):
            during = [fields for fields in members.members[f"n{number}"].told("round") if fields["at"] > began]
            assert len(during) >= 15, "the others go on at their pace"
            assert max(fields["round_s"] for fields in during) < 3 * 5 * STEP_SECONDS
        members.network.unstall(stopped.transport.peer_id)
        await members.finished()
        assert stopped.told("round")[-1]["round"] == 60
        assert stopped.told("round")[-1]["members"] == 4
        assert stopped.eval_loss < 1.05 * members.members["n0"].eval_loss


@pytest.mark.thorough
@pytest.mark.slow
async def test_the_slow_do_less_a_round_and_keep_up(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        for number in range(3):
            await members.start(
                f"n{number}",
                wait_for=2,
                step_seconds=STEP_SECONDS * (2 if number == 2 else 1),
                train={"rounds": 30, "inner_steps": 8},
            )
        await members.finished()
        fast, slow = members.members["n0"], members.members["n2"]
        lag = max(fields["at"] for fields in slow.told("round")) - max(fields["at"] for fields in fast.told("round"))
        assert lag < 6 * 8 * STEP_SECONDS, "after 30 rounds at half the speed it would be 15 rounds late"
        assert slow.node.inner.steps < 0.8 * fast.node.inner.steps
        assert all(fields["members"] == 3 for fields in fast.told("round")[5:-1])


async def test_a_checkpoint_cut_in_half_is_passed_over(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        first = await members.start("n0", train={"rounds": 6}, node={"checkpoint_every": 2})
        await members.finished()
        store = CheckpointStore(first.folder / "checkpoint")
        newest = sorted(store.folder.iterdir())[-1] / "state.safetensors"
        newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
        again = await members.start("n0", train={"rounds": 8})
        await members.finished()
        assert [Path(str(fields["path"])).name for fields in again.told("checkpoint_skipped")] == ["round-00000006"]
        assert again.told("resumed")[0]["round"] == 4
        assert again.told("round")[-1]["round"] == 8


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.5])
async def test_lost_announcements_cost_time_not_members(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, loss: float
) -> None:
    from gossip.transport.memory.link_quality import LinkQuality

    async with swarm(tmp_path) as members:
        members.network._default = LinkQuality(loss=loss, latency_s=0.02)
        for number in range(4):
            await members.start(f"n{number}", wait_for=3, train={"rounds": 20})
        await members.finished()
        for member in members.members.values():
            counts = [fields["members"] for fields in member.told("round")]
            assert sum(counts) / len(counts) > 3.5, "a lost announcement makes a neighbour stale, not absent"
            assert not member.told("rejected")


async def test_an_interrupted_node_writes_a_checkpoint_and_goes_on_from_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        settings = {"train": {"rounds": 12}}
        first = await members.start("n0", **settings)
        await trio.sleep(5.4 * 5 * STEP_SECONDS)
        first.scope.cancel()
        await members.finished()
        assert [fields["round"] for fields in first.told("checkpoint")] == [5]
        again = await members.start("n0", **settings)
        await members.finished()
        assert [fields["round"] for fields in again.told("round")] == list(range(6, 13))


@pytest.mark.slow
async def test_nodes_that_know_nothing_of_each_other_draw_different_data(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        for number in range(2):
            await members.start(f"n{number}", wait_for=1)
        one, other = (member.node.inner.trainer for member in members.members.values())
        assert one.data_seed != other.data_seed
        await members.finished()


@pytest.mark.slow
async def test_a_swarm_too_small_for_f_says_so(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        for number in range(2):
            await members.start(f"n{number}", wait_for=1, sync={"f": 1}, train={"rounds": SETTLED_ROUNDS + 2})
        await members.finished()
        for member in members.members.values():
            (warning,) = member.told("warning")
            assert "2 members here" in warning["message"]
            assert "sync.f = 1 is withstood from 3 on" in warning["message"]
            assert member.told("round")[-1]["robust_margin"] == -1


@pytest.mark.slow
async def test_a_healthy_start_has_no_warning_of_too_few_members(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        await members.start("alone", sync={"f": 1}, train={"rounds": SETTLED_ROUNDS + 2})
        await members.finished()
        for number in range(3):  # one after the other: at first there are too few
            await members.start(f"n{number}", wait_for=min(number, 1), sync={"f": 1}, train={"rounds": 12})
            await trio.sleep(2 * 5 * STEP_SECONDS)
        await members.finished()
        for member in members.members.values():
            assert not [it for it in member.told("warning") if "f = 1" in it["message"]]


@pytest.mark.slow
async def test_a_lost_neighbours_estimate_is_freed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        for number in range(3):
            await members.start(f"n{number}", wait_for=2, train={"rounds": 20})
        await trio.sleep(5 * 5 * STEP_SECONDS)
        members.members["n2"].kill()
        await members.finished()
        assert len(members.members["n0"].node.strategy.estimates) <= 1


@pytest.mark.slow
async def test_a_plain_mean_promises_nothing_and_says_so(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        for number in range(4):
            await members.start(f"n{number}", wait_for=3, sync={"aggregator": "mean", "f": 1})
        await members.finished()
        for member in members.members.values():
            assert "withstands no liar" in member.told("warning")[0]["message"]
            assert {fields["robust_margin"] for fields in member.told("round")} == {-1}


@pytest.mark.thorough
async def test_a_joiner_whose_only_donor_dies_trains_on_its_own(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        donor = await members.start("donor", train={"rounds": 40})
        await trio.sleep(20 * 5 * STEP_SECONDS)

        def die_when_met(node: Node) -> None:
            met = node.service.wait_for_neighbours

            async def then(count: int, timeout_s: float) -> int:
                found = await met(count, timeout_s)
                members.network.stall(donor.transport.peer_id)
                return found

            node.service.wait_for_neighbours = then  # type: ignore[method-assign]

        late = await members.start("late", wait_for=1, change=die_when_met, train={"rounds": 40})
        await members.finished("late")
        assert late.told("joined") == []
        assert late.told("round")[-1]["round"] == 40
        donor.kill()


@pytest.mark.thorough
@pytest.mark.slow
async def test_one_of_a_sixteenth_of_the_speed_closes_every_round(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        settings = {"train": {"rounds": 30, "inner_steps": 16}}
        for number in range(3):
            await members.start(f"n{number}", wait_for=2, **settings)
        slow = await members.start("slow", wait_for=3, step_seconds=16 * STEP_SECONDS, **settings)
        await members.finished()
        assert not slow.told("joined"), "no dense model has to travel for it"
        assert slow.told("round")[-1]["round"] == 30
        assert slow.node.service.stats.snapshot_bytes_sent == 0


async def test_no_more_is_pulled_than_the_model_can_need(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        alone = await members.start("alone")
        dense = 4 * alone.node.inner.trainer.numel
        assert dense <= alone.node.service._context.config.max_payload_bytes < 4 * dense
        await members.finished()


@pytest.mark.slow
async def test_who_waits_for_others_says_so_at_once_and_goes_on_saying_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        await members.start("first", wait_for=2, node={"wait_timeout_s": 12.0})
        await trio.sleep(6)
        await members.start("second")
        await members.finished()
        waits = [(it["at"], it["message"]) for it in members.members["first"].told("waiting")]
        assert [message for _, message in waits][:2] == [
            "waiting for 2 neighbours, 12 s at most: 0 here so far",
            "waiting for 2 neighbours, 7 s at most: 0 here so far",
        ]
        assert waits[2][1].endswith("1 here so far")
        assert all(later[0] - earlier[0] <= TELL_S + 0.5 for earlier, later in pairwise(waits))
