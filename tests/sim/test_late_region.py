"""Real nodes of a region that begins after the others: it joins them where they are."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
import trio
from sim_swarm import Member, Swarm, put_part, swarm

from gossip.service import GossipService

ROUNDS = 48
EACH = 4


async def begin(
    it: Swarm,
    region: str,
    regions: Sequence[str],
    *,
    each: int = EACH,
    absent: int = 0,
    attack: str = "none",
    **sync: object,
) -> list[Member]:
    """The nodes of one region, which start together; without the last ones, `absent` of them."""
    return [
        await it.start(
            f"{region}-{number}",
            wait_for=each - absent - 1,
            train={"rounds": ROUNDS, "eval_every": ROUNDS},
            node={
                "region": region,
                "shard_count": each * len(regions),
                "shard_index": each * regions.index(region) + number,
            },
            sync={"regions": list(regions), **sync},
            attack={"name": attack} if attack != "none" else {},
        )
        for number in range(each - absent)
    ]


async def until_round(members: Sequence[Member], round_: int) -> None:
    while min(member.node.state.round for member in members) < round_:  # noqa: ASYNC110  # on a virtual clock
        await trio.sleep(0.05)


def model_of(members: Sequence[Member]) -> torch.Tensor:
    return torch.stack([member.node.strategy.anchor_d for member in members]).mean(0)


def loss_of(members: Sequence[Member]) -> float:
    return sum(member.eval_loss for member in members) / len(members)


async def test_a_region_that_begins_late_joins_the_others_where_they_are(tmp_path, autojump_clock):
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", ("east", "west"))
        await until_round(east, 20)
        west = await begin(it, "west", ("east", "west"))
        await until_round(west, 1)
        there = [member.node.state.round for member in east]
        await it.finished()
    for member in west:
        (joined,) = member.told("joined")
        assert abs(joined["round"] - max(there)) <= 3
        assert set(joined["peers"]) <= {other.node.peer_id for other in east}
        assert not member.told("warning")
        moves = member.told("regions")
        assert all(move["moved"] for move in moves[1:])
        assert len(moves) >= (ROUNDS - joined["round"]) // 8
    rounds = [[event["round"] for event in member.told("round")] for member in west]
    assert all(later == earlier + 1 for each in rounds for earlier, later in pairwise(each))
    assert (model_of(east) - model_of(west)).norm() < 0.02 * model_of(east).norm()
    assert {member.told("round")[-1]["round"] for member in (*east, *west)} == {ROUNDS}


async def test_a_region_that_begins_before_any_model_is_published_begins_in_the_others_round(tmp_path, autojump_clock):
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", ("east", "west"), region_every=32)
        await until_round(east, 10)
        west = await begin(it, "west", ("east", "west"), region_every=32)
        await it.finished()
    for member in west:
        (joined,) = member.told("joined")
        assert joined["donors"] == 0
        assert 8 <= joined["round"] <= 16
        assert not member.told("warning")
        assert [move["moved"] for move in member.told("regions")] == [True, True]


class Boaster:
    """A service whose links say that they are of a later round."""

    def __init__(self, service: GossipService, later: int) -> None:
        self._service = service
        self._later = later

    def __getattr__(self, name: str) -> object:
        return getattr(self._service, name)

    async def begin_epoch(self, *, epoch: int, round: int, snapshot: bytes | None) -> None:
        await self._service.begin_epoch(epoch=epoch, round=round + self._later, snapshot=snapshot)

    async def publish(self, *, round: int, **update: object) -> None:
        await self._service.publish(round=round + self._later, **update)


async def test_members_that_say_that_they_are_far_ahead_move_a_start_by_a_period_at_most(tmp_path, autojump_clock):
    async with swarm(tmp_path) as it:
        honest = await begin(it, "east", ("east", "west"), each=5, absent=2, f=2)
        for number in (3, 4):
            await it.start(
                f"east-{number}",
                train={"rounds": ROUNDS, "eval_every": ROUNDS},
                node={"region": "east", "shard_count": 10, "shard_index": number},
                sync={"regions": ["east", "west"], "f": 2},
                change=lambda node: put_part(node, "service", Boaster(node.service, 30)),
            )
        await until_round(honest, 12)
        west = await begin(it, "west", ("east", "west"), f=2)
        await until_round(west, 1)
        there = max(member.node.state.round for member in honest)
        rounds = [member.told("joined")[0]["round"] for member in west]
        assert max(rounds) <= there + 8 + 1
        assert max(rounds) - min(rounds) <= 3


@pytest.mark.parametrize("attack", ["sign_flip", "gaussian"])
async def test_a_region_that_begins_beside_a_region_of_liars_is_as_good_as_without(tmp_path, autojump_clock, attack):
    labels = ("east", "north", "south", "west")
    losses = {}
    for lies in ("none", attack):
        folder = tmp_path / lies
        folder.mkdir()
        async with swarm(folder, keep_errors=True) as it:  # a region of liars may end in nothing
            early = await begin(it, "east", labels) + await begin(it, "north", labels)
            await begin(it, "south", labels, attack=lies)
            await until_round(early, 20)
            west = await begin(it, "west", labels)
            await it.finished(*(member.name for member in west))
            assert all(member.told("joined") and not member.told("banned") for member in west)
            losses[lies] = loss_of(west)
    assert losses[attack] < 1.03 * losses["none"]


async def test_where_one_region_may_lie_one_alone_is_not_believed(tmp_path, autojump_clock):
    labels = ("east", "north", "south", "west")
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", labels)
        await until_round(east, 20)
        west = await begin(it, "west", labels)
        await it.finished()
    for member in west:
        assert not member.told("joined")
        assert any("too few regions to be believed" in told["message"] for told in member.told("warning"))
        assert len(member.told("round")) == ROUNDS


async def test_a_node_that_goes_on_keeps_its_own_model(tmp_path, autojump_clock):
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", ("east", "west"))
        west = await begin(it, "west", ("east", "west"), each=1)
        await until_round([*east, *west], 6)
        west[0].stop.set()
        await west[0].done.wait()
        await until_round(east, 30)
        (again,) = await begin(it, "west", ("east", "west"), each=1)
        assert again.resumed
        await it.finished()
    assert not again.told("joined")
