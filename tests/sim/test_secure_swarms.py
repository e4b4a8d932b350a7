"""Swarms of real nodes that sum their differences under masks: what they learn, and what the missing and liars cost.

Under the virtual clock, over the in-memory network, with the whole protocol of secure sums. Keys, masks and rounding
come from the operating system: two runs differ in them, and in no sum by more than a fixed-point step.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from sim_swarm import STEP_SECONDS, Member, Swarm, mean_loss, swarm

from gossip.core.ids import PeerId
from node.swarm.accept_invite import membership, read_invite
from node.swarm.create import CreateRequest, create
from node.swarm.inviting import Wish, give
from node.training.averagers.secure_averager import LEAST_S

PHASE = 5 * STEP_SECONDS
ROUNDS = 4


def settings(rounds: int = ROUNDS, **sync: object) -> dict[str, Any]:
    return {
        "sync": {"strategy": "secure_average", **sync},
        "train": {"rounds": rounds, "eval_every": rounds},
        "node": {"checkpoint_every": 1, "overlap": False},
        "network": {"degree": 32},
    }


async def start_all(members: Swarm, count: int, liars: int = 0, **sections: Any) -> list[Member]:
    lie: dict[str, Any] = {"attack": {"name": "sign_flip"}}
    return [
        await members.start(f"n{number}", wait_for=count - 1, **sections, **(lie if number < liars else {}))
        for number in range(count)
    ]


def sums(member: Member, since: float = 0.0) -> list[dict[str, Any]]:
    return [fields for fields in member.told("secure_round") if fields["at"] > since]


def anchors(nodes: list[Member]) -> torch.Tensor:
    return torch.stack([node.node.strategy.anchor_d for node in nodes])


@pytest.mark.thorough
async def test_a_group_learns_as_a_plain_mean_does(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The same nodes under `allreduce` with an exact codec: the same mean of the same differences, without masks."""
    for name in ("masked", "plain"):
        (tmp_path / name).mkdir()
    async with swarm(tmp_path / "masked") as members:
        nodes = await start_all(members, 4, **settings())
        await members.finished()
        for node in nodes:
            assert [(fields["survivors"], fields["groups_here"]) for fields in sums(node)] == [(4, 1)] * ROUNDS
            for event in ("rejected", "banned", "equivocation", "warning"):
                assert not node.told(event)
            assert node.node.service.stats.snapshot_bytes_sent == 0
        assert torch.equal(anchors(nodes)[0], anchors(nodes)[1])
        assert mean_loss(nodes) < 0.8 * nodes[0].node.journal.first["eval_loss"]
    async with swarm(tmp_path / "plain") as members:
        plain = settings() | {"sync": {"strategy": "allreduce", "compressor": "none"}}
        others = await start_all(members, 4, **plain)
        await members.finished()
    step = 2 * 0.1 / (2**16 - 1)
    apart = float((anchors(nodes)[0] - anchors(others)[0]).abs().max())
    assert 0 < apart < 100 * step, "the steps of a round carry on what rounding changed"
    assert abs(mean_loss(nodes) - mean_loss(others)) < 1e-3


async def test_four_sum_their_differences_and_hold_one_anchor(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        nodes = await start_all(members, 4, **settings(2))
        await members.finished()
        for node in nodes:
            assert [(fields["survivors"], fields["groups_here"]) for fields in sums(node)] == [(4, 1)] * 2
            for event in ("rejected", "banned", "equivocation", "warning"):
                assert not node.told(event)
            assert torch.equal(node.node.strategy.anchor_d, nodes[0].node.strategy.anchor_d)
            assert node.eval_loss < node.node.journal.first["eval_loss"]


async def test_who_comes_a_second_later_is_in_the_sum(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Steps of milliseconds say nothing of how far apart processes come that share a busy machine."""
    async with swarm(tmp_path) as members:
        for number in range(4):
            late_s = 0.0 if number else 1.0
            step_seconds = STEP_SECONDS + late_s / 5
            await members.start(f"n{number}", wait_for=3, step_seconds=step_seconds, **settings(2))
        await members.finished()
        for member in members.members.values():
            assert [fields["survivors"] for fields in sums(member)] == [4, 4]


async def test_three_alone_share_nothing_and_say_why(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        nodes = await start_all(members, 3, **settings(2))
        await members.finished()
        for node in nodes:
            assert [fields["why"] for fields in sums(node)] == [
                "3 members are there, fewer than a secure group has"
            ] * 2
            assert node.eval_loss < node.node.journal.first["eval_loss"], "it learns alone"
        assert not torch.equal(nodes[0].node.inner.trainer.vector(), nodes[1].node.inner.trainer.vector())
        genesis_d = anchors(nodes)[0]
        assert all(torch.equal(anchor_d, genesis_d) for anchor_d in anchors(nodes)), "nothing is given to newcomers"


@pytest.mark.thorough
async def test_who_is_killed_and_comes_back_in_the_midst_of_a_round(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The five others close the round without it; it takes part again once it is back, and all come to one anchor."""
    rounds = 12
    async with swarm(tmp_path) as members:
        nodes = await start_all(members, 6, **settings(rounds, refresh=4))
        await trio.sleep(4.5 * PHASE)
        nodes[5].kill()
        died = trio.current_time()
        await trio.sleep(PHASE)
        again = await members.start("n5", wait_for=5, **settings(rounds, refresh=4))
        assert again.resumed
        await members.finished()
        during = sums(nodes[0], died)
        assert max(fields["round_s"] for fields in nodes[0].told("round")) < LEAST_S + 2 * PHASE
        assert sum(fields["result"] == "opened" for fields in during) > 0.8 * len(during)
        assert {5, 6} <= {fields["survivors"] for fields in during}, "all were back in one sum"
        back = [fields["survivors"] for fields in sums(again)]
        assert 6 in back, "and it was in it"
        spread = (anchors([*nodes[:5], again]) - anchors(nodes)[0]).abs().max()
        assert float(spread) < 0.01


@pytest.mark.thorough
async def test_three_groups_with_a_sign_flipper_in_one_stay_together(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Twelve nodes: the rule over three groups' means withstands one liar. All see all means, and hold one anchor."""
    robust = {"f": 1, "aggregator": "trimmed_mean", "members": 12}
    async with swarm(tmp_path) as members:
        nodes = await start_all(members, 12, liars=1, **settings(**robust))
        await members.finished()
        for node in nodes[1:]:
            assert [fields["groups_here"] for fields in sums(node)] == [3] * ROUNDS
            assert all(fields["robust_margin"] >= 0 for fields in node.told("round"))
        assert all(torch.equal(anchor_d, anchors(nodes)[1]) for anchor_d in anchors(nodes[1:]))
        assert mean_loss(nodes[1:]) < 0.9 * nodes[1].node.journal.first["eval_loss"]


@pytest.mark.thorough
async def test_a_newcomer_takes_the_anchor_and_belongs_to_a_group(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """One of them protects its data beside: what it masks is noised already."""
    private = {"privacy": {"privatizer": "update", "noise": 0.01, "clip": 1.0}}
    async with swarm(tmp_path) as members:
        nodes = [
            await members.start(f"n{number}", wait_for=3, **settings(12, refresh=4), **(private if number == 0 else {}))
            for number in range(4)
        ]
        await trio.sleep(4 * PHASE)
        late = await members.start("late", wait_for=4, **settings(12, refresh=4))
        await members.finished()
        assert late.told("joined")
        assert {fields["survivors"] for fields in sums(late)} >= {5}
        assert [fields["survivors"] for fields in sums(nodes[1])][-1] == 5
        assert nodes[0].node.privacy is not None
        assert float((anchors([late]) - anchors(nodes)).abs().max()) < 0.01, "the anchors' shares bring it to theirs"


@pytest.mark.thorough
async def test_a_private_swarm_draws_its_groups_by_grants(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Eight members with an invite each meet in two groups that nobody's key has a say in; all hold one anchor."""
    names = [f"n{number}" for number in range(8)]
    drawn = settings(2, draw="grants", cut="bisection")
    wish = CreateRequest(name="lab", at=("127.0.0.1", 4001), first=Wish(full=True))
    made = create(tmp_path / "lab", {"task": {"name": "digits"}, **drawn}, wish, None)
    for name in names:
        line = give(made.folder, made.folder.authority(None), Wish(full=True))
        member = membership(tmp_path / name, {}, read_invite(line))
        assert member is not None
        member.settle(None)
    async with swarm(tmp_path) as members:
        nodes = [await members.start(name, wait_for=len(names) - 1, **drawn) for name in names]
        await members.finished()
        for node in nodes:
            assert [(fields["members"], fields["survivors"], fields["groups_here"]) for fields in sums(node)] == [
                (4, 4, 2)
            ] * 2
            assert not node.told("rejected")
        assert all(torch.equal(anchors(nodes)[0], each_d) for each_d in anchors(nodes))
        peers = [node.node.service.placements([PeerId(other.node.peer_id) for other in nodes]) for node in nodes]
        assert len(set(peers[0].values())) == len(names)
        assert all(each == peers[0] for each in peers)
