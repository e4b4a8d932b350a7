"""Visitors of one node of a simulated swarm: what they leave is a part of its updates, and of nothing else."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import trio
import trio.testing
from sim_swarm import Member, swarm

from gossip.core.digests import digest_of
from gossip.core.identity import Identity
from node.training.executors import InlineExecutor
from node.visits.difference_head import LeftDifference
from node.visits.visitors import ClosedVisits
from p2ptrain.visits.model_versions import CODEC
from p2ptrain.visits.visitor_mean import DIFFERENCES

VISITED = {"visits": {"listen": "127.0.0.1:8443", "buffer": 2, "share": 0.5}}
LOOK_EVERY_S = 0.1


async def leave(member: Member, name: str, towards_d: torch.Tensor, scale: float = 0.1) -> None:
    """Take the newest model, and leave a part of the way to another one."""
    visitors = member.node.visitors
    assert visitors is not None
    offload = InlineExecutor(0.0).offload
    version = (await visitors.model_for(b"", "127.0.0.1", offload)).version
    start_d = CODEC.decode(version.payload, towards_d.numel())
    payload = DIFFERENCES.encode((towards_d - start_d) * scale)
    identity = Identity(digest_of(name.encode()))
    left = LeftDifference(
        key=identity.public_key, round=version.round, model=version.digest, signature=b"", payload=payload
    )
    run_id = bytes.fromhex(visitors.describe()["run"])
    body = replace(left, signature=identity.sign(left.signed(run_id))).to_bytes()
    with visitors.expect(len(body), "127.0.0.1") as place:
        await visitors.take(body, place, offload)


async def until_round(member: Member, number: int) -> None:
    while member.node.state.round < number:  # noqa: ASYNC110
        await trio.sleep(LOOK_EVERY_S)


async def run_of(folder: Path, *, visited: bool, towards: float | None = None) -> list[Member]:
    """Two nodes, of which the first may have visitors, who pull towards a constant model in each round."""
    async with swarm(folder) as members:
        one = await members.start("one", wait_for=1, **(VISITED if visited else {}))
        two = await members.start("two", wait_for=1)
        for number in range(1, 7) if towards is not None else ():
            await until_round(one, number)
            for visitor in range(2):
                await leave(one, f"visitor {visitor}", torch.full((one.node.inner.trainer.numel,), towards or 0.0))
        await members.finished()
        return [one, two]


@pytest.mark.parametrize("visited", [pytest.param(False, marks=pytest.mark.thorough), True])
async def test_without_visitors_a_run_is_the_same_to_the_last_bit(
    visited: bool, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = await run_of(tmp_path / "a", visited=False)
    other = await run_of(tmp_path / "b", visited=visited)
    assert (other[0].node.visitors is not None) == visited
    for before, after in zip(plain, other, strict=True):
        assert torch.equal(before.node.strategy.anchor_d, after.node.strategy.anchor_d)


async def test_what_visitors_leave_reaches_the_neighbour_as_ordinary_updates(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    for name in ("alone", "visited"):
        (tmp_path / name).mkdir()
    alone = await run_of(tmp_path / "alone", visited=True)
    visited = await run_of(tmp_path / "visited", visited=True, towards=0.5)
    assert visited[0].node.visitors is not None
    assert visited[0].node.visitors.counts["accepted"] == 12
    for before, after in zip(alone, visited, strict=True):
        assert not after.told("banned")
        closer = [(each.node.strategy.anchor_d - 0.5).norm() for each in (before, after)]
        assert closer[1] < 0.99 * closer[0], "the neighbour, too"
        assert after.node.counts.accepted


async def test_liars_move_the_host_by_half_of_its_own_steps_at_most(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with swarm(tmp_path) as members:
        one = await members.start("one", **VISITED)
        visitors = one.node.visitors
        assert visitors is not None
        rounds: list[ClosedVisits] = []
        finish = visitors.finish_closing

        def noted(closed: ClosedVisits) -> None:
            rounds.append(closed)
            finish(closed)

        monkeypatch.setattr(visitors, "finish_closing", noted)
        for number in range(1, 7):
            await until_round(one, number)
            for liar in range(8):
                await leave(one, f"liar {liar}", torch.zeros(one.node.inner.trainer.numel), scale=1e6)
        await members.finished()
    moved = [(it.visited_d, it.own_norm) for it in rounds if it.visited_d is not None]
    assert len(moved) >= 4
    for visited_d, own_norm in moved:
        assert own_norm is not None
        assert float(visited_d.norm()) == pytest.approx(0.5 * own_norm, rel=1e-3), "they want as much as they can get"
    assert torch.isfinite(one.node.strategy.anchor_d).all()


async def test_a_model_that_took_the_place_of_the_hosts_is_no_step_of_its_own(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with swarm(tmp_path) as members:
        one = await members.start("one", **VISITED)
        visitors, inner = one.node.visitors, one.node.inner
        assert visitors is not None
        own: list[float | None] = []
        finish = visitors.finish_closing

        def noted(closed: ClosedVisits) -> None:
            own.append(closed.own_norm)
            finish(closed)

        monkeypatch.setattr(visitors, "finish_closing", noted)
        await until_round(one, 3)
        inner.replace(torch.full((inner.trainer.numel,), 50.0), at_step=inner.trainer.global_step)
        await members.finished()
    known = [norm for norm in own if norm is not None]
    assert len(known) >= 5
    assert max(known) < 50.0, "the way to the other model has a norm of 50 d^1/2"


@pytest.mark.parametrize(
    ("strategy", "form"),
    [("allreduce", "difference"), pytest.param("tracked_gossip", "whole", marks=pytest.mark.thorough)],
)
async def test_hosts_of_an_exact_average_give_the_same_models_and_other_hosts_their_own(
    strategy: str, form: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    sync = {"strategy": strategy}
    async with swarm(tmp_path) as members:
        one = await members.start("one", wait_for=1, sync=sync, **VISITED)
        two = await members.start("two", wait_for=1, sync=sync, **VISITED)
        forms, same = [], []
        for number in range(2, 6):
            await until_round(one, number)
            for visitor in range(2):
                await leave(one, f"visitor {visitor}", torch.full((one.node.inner.trainer.numel,), 0.5))
            assert one.node.visitors is not None
            assert two.node.visitors is not None
            had = one.node.visitors._versions.newest
            assert had is not None
            await until_round(one, number + 1)
            await until_round(two, number + 1)
            answer = await two.node.visitors.model_for(had.digest, "127.0.0.1", InlineExecutor(0.0).offload)
            forms.append(answer.form)
            same.append(answer.version.digest)
        await members.finished()
        assert one.node.visitors.counts["accepted"] == 8
    assert forms == [form] * 4
    assert len(set(same)) == 4


async def test_after_the_last_round_nothing_is_taken(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    (one, _) = await run_of(tmp_path, visited=True)
    assert one.node.visitors is not None
    with pytest.raises(Exception, match="the run is over"):
        one.node.visitors.describe()
    leaving = partial(leave, one, "late", torch.zeros(one.node.inner.trainer.numel))
    with pytest.raises(Exception, match="the run is over"):
        await leaving()


class StepsTaken:
    """How far a node's own steps moved its model, by round of the process: what is between steps does not count."""

    def __init__(self, member: Member) -> None:
        self.rounds: list[torch.Tensor] = []
        self._trainer = member.node.inner.trainer
        self._take, self._begin = self._trainer.take_step, self._trainer.begin_round

    def begin_round(self) -> None:
        self.rounds.append(torch.zeros(self._trainer.numel))
        self._begin()

    def take_step(self, place: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        before_d = self._trainer.vector()
        loss = self._take(place, rate_factor=rate_factor)
        self.rounds[-1] += self._trainer.vector() - before_d
        return loss


@pytest.mark.parametrize(
    "sync",
    [
        {},
        {"overlap": False},
        {"strategy": "allreduce"},
        *(
            pytest.param({"strategy": name}, marks=pytest.mark.thorough)
            for name in ("diloco", "des_loc", "streaming", "sparta", "noloco", "sparse_loco", "gossip_pga", "moshpit")
        ),
    ],
    ids=lambda sync: str(sync.get("strategy", "overlap" if "overlap" in sync else "default")),
)
async def test_what_is_taken_for_own_steps_is_their_way_with_every_strategy(
    sync: dict[str, object], tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Corrections and visitors move the model as well, and must not widen what visitors may do."""
    node = {"node": {"overlap": False}} if "overlap" in sync else {}
    sections = {**VISITED, "sync": {key: value for key, value in sync.items() if key != "overlap"}, **node}
    async with swarm(tmp_path) as members:
        one = await members.start("one", wait_for=1, **sections)
        await members.start("two", wait_for=1, **{**sections, "visits": {}})
        visitors, taken, norms = one.node.visitors, StepsTaken(one), {}
        assert visitors is not None
        finish = visitors.finish_closing

        def noted(closed: ClosedVisits) -> None:
            norms[closed.version.round - 1] = closed.own_norm
            finish(closed)

        monkeypatch.setattr(visitors, "finish_closing", noted)
        monkeypatch.setattr(one.node.inner.trainer, "take_step", taken.take_step)
        monkeypatch.setattr(one.node.inner.trainer, "begin_round", taken.begin_round)
        for number in range(1, 7):
            await until_round(one, number)
            for visitor in range(2):
                await leave(one, f"visitor {visitor}", torch.full((one.node.inner.trainer.numel,), 0.5))
        await members.finished()
    known = {round_: norm for round_, norm in norms.items() if norm is not None}
    assert len(known) >= 5
    for round_, norm in known.items():
        assert norm == pytest.approx(float(taken.rounds[round_].norm()), rel=1e-3), round_
