"""Real nodes of a region that begins after the others: it joins them where they are."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import trio
from sim_swarm import Member, Swarm, mean_loss, mean_model, put_part, swarm
from sizes import thorough_but

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
    rounds: int = ROUNDS,
    **sync: object,
) -> list[Member]:
    """The nodes of one region, which start together; without the last ones, `absent` of them."""
    return [
        await it.start(
            f"{region}-{number}",
            wait_for=each - absent - 1,
            train={"rounds": rounds, "eval_every": rounds},
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


async def test_a_region_that_begins_late_joins_the_others_where_they_are(tmp_path, autojump_clock):
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", ("east", "west"), rounds=24)
        await until_round(east, 10)
        west = await begin(it, "west", ("east", "west"), rounds=24)
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
        assert len(moves) >= (24 - joined["round"]) // 8 > 0
    rounds = [[event["round"] for event in member.told("round")] for member in west]
    assert all(later == earlier + 1 for each in rounds for earlier, later in pairwise(each))
    assert (mean_model(east) - mean_model(west)).norm() < 0.02 * mean_model(east).norm()
    assert {member.told("round")[-1]["round"] for member in (*east, *west)} == {24}


@pytest.mark.thorough
async def test_a_region_that_begins_before_any_model_is_published_begins_in_the_others_round(tmp_path, autojump_clock):
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", ("east", "west"), region_every=24, rounds=32)
        await until_round(east, 10)
        west = await begin(it, "west", ("east", "west"), region_every=24, rounds=32)
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


@pytest.mark.thorough
@pytest.mark.parametrize("later", [30, 1000])
async def test_members_that_say_that_they_are_far_ahead_move_a_start_by_a_period_at_most(
    tmp_path, autojump_clock, later
):
    async with swarm(tmp_path) as it:
        honest = await begin(it, "east", ("east", "west"), each=5, absent=2, f=2)
        for number in (3, 4):
            await it.start(
                f"east-{number}",
                train={"rounds": ROUNDS, "eval_every": ROUNDS},
                node={"region": "east", "shard_count": 10, "shard_index": number},
                sync={"regions": ["east", "west"], "f": 2},
                change=lambda node: put_part(node, "service", Boaster(node.service, later)),
            )
        await until_round(honest, 12)
        west = await begin(it, "west", ("east", "west"), f=2)
        await until_round(west, 1)
        there = max(member.node.state.round for member in honest)
        rounds = [member.told("joined")[0]["round"] for member in west]
        assert max(rounds) <= there + 8 + 1
        assert max(rounds) - min(rounds) <= 3


FOUR = ("east", "north", "south", "west")


async def begin_beside(it: Swarm, attack: str, *, at: int) -> tuple[list[Member], list[Member]]:
    """Two regions that begin in time, and one after `at` of their rounds; the fourth one lies."""
    early = [member for region in FOUR[:2] for member in await begin(it, region, FOUR)]
    await begin(it, "south", FOUR, attack=attack)
    await until_round(early, at)
    return early, await begin(it, "west", FOUR)


@pytest.mark.thorough
async def test_a_region_that_begins_beside_a_region_of_liars_begins_where_the_honest_are(tmp_path, autojump_clock):
    async with swarm(tmp_path, keep_errors=True) as it:  # a region of liars may end in nothing
        early, west = await begin_beside(it, "sign_flip", at=9)
        await until_round(west, 1)
        assert all(member.told("joined") for member in west)
        there = mean_model(early)
        assert (mean_model(west) - there).norm() < 0.1 * there.norm()


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ["sign_flip", "gaussian"])
async def test_a_region_that_begins_beside_a_region_of_liars_is_as_good_as_without(tmp_path, autojump_clock, attack):
    losses = {}
    for lies in ("none", attack):
        folder = tmp_path / lies
        folder.mkdir()
        async with swarm(folder, keep_errors=True) as it:  # a region of liars may end in nothing
            _, west = await begin_beside(it, lies, at=20)
            await it.finished(*(member.name for member in west))
            assert all(member.told("joined") and not member.told("banned") for member in west)
            losses[lies] = mean_loss(west)
    assert losses[attack] < 1.03 * losses["none"]


@pytest.mark.thorough
async def test_where_one_region_may_lie_one_alone_is_not_believed(tmp_path, autojump_clock):
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", FOUR)
        await until_round(east, 12)
        west = await begin(it, "west", FOUR)
        await until_round(west, 3)
    for member in west:
        assert not member.told("joined")
        assert any("too few regions to be believed" in told["message"] for told in member.told("warning"))
        assert [told["round"] for told in member.told("round")][:3] == [1, 2, 3], "it begins with its own"


@pytest.mark.thorough
async def test_a_node_that_goes_on_keeps_its_own_model(tmp_path, autojump_clock):
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", ("east", "west"), rounds=32)
        west = await begin(it, "west", ("east", "west"), each=1, rounds=32)
        await until_round([*east, *west], 6)
        west[0].stop.set()
        await west[0].done.wait()
        await until_round(east, 26)
        (again,) = await begin(it, "west", ("east", "west"), each=1, rounds=32)
        assert again.resumed
        await it.finished()
    assert not again.told("joined")


async def one(it: Swarm, region: str, regions: Sequence[str], number: int, **how: object) -> Member:
    """One more node of a region."""
    return await it.start(
        f"{region}-{number}",
        train={"rounds": ROUNDS, "eval_every": ROUNDS},
        node={"region": region, "shard_count": 16, "shard_index": number},
        sync={"regions": list(regions)},
        **how,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("newcomers", thorough_but({1}, [1, 5]))
async def test_late_members_join_their_own_region_where_others_are_further(tmp_path, autojump_clock, newcomers):
    labels = ("east", "west")
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", labels)
        own = [await one(it, "west", labels, number, wait_for=EACH - 1, step_seconds=0.1) for number in range(EACH)]
        await until_round(east, 24)
        assert max(member.node.state.round for member in own) < 16
        late = [await one(it, "west", labels, EACH + at, step_seconds=0.1) for at in range(newcomers)]
        await until_round(late, 1)
        there = [member.node.state.round for member in own]
        for member in late:
            (joined,) = member.told("joined")
            assert set(joined["peers"]) <= {other.node.peer_id for other in own}
            assert "regions" not in joined
            assert abs(member.node.state.round - max(there)) <= 4


@pytest.mark.thorough
async def test_a_bridge_that_has_not_begun_does_not_hide_a_region_that_has(tmp_path, autojump_clock):
    labels = ("east", "north", "west")
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", labels)
        await until_round(east, 20)
        north = await one(it, "north", labels, 0, wait_for=3)
        await trio.sleep(1.0)
        west = await one(it, "west", labels, 1, peers=(north.transport.addresses[0],))
        await until_round([west], 1)
        (joined,) = west.told("joined")
        assert joined["regions"] == ["east"]


class Garbler:
    """A service whose regional models nobody can read."""

    def __init__(self, service: GossipService) -> None:
        self._service = service

    def __getattr__(self, name: str) -> object:
        return getattr(self._service, name)

    async def publish_regional(self, *, round: int, codec: str, payload: bytes, averaged: int) -> None:
        await self._service.publish_regional(round=round, codec="nonsense", payload=payload, averaged=averaged)


@pytest.mark.thorough
async def test_a_model_that_cannot_be_read_does_not_have_a_region_begin_alone(tmp_path, autojump_clock):
    labels = ("east", "west")
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", labels, absent=1)
        await one(
            it, "east", labels, 3, change=lambda node: put_part(node, "service", Garbler(node.service)), wait_for=3
        )
        await until_round(east, 20)
        west = await begin(it, "west", labels)
        await until_round(west, 1)
        assert all(member.told("joined") and not member.told("warning") for member in west)


class Latecomer:
    """A service that publishes no model of its region before the round `until`."""

    def __init__(self, service: GossipService, until: int) -> None:
        self._service = service
        self._until = until

    def __getattr__(self, name: str) -> object:
        return getattr(self._service, name)

    async def publish_regional(self, *, round: int, codec: str, payload: bytes, averaged: int) -> None:
        if round >= self._until:
            await self._service.publish_regional(round=round, codec=codec, payload=payload, averaged=averaged)


@pytest.mark.thorough
async def test_a_region_waits_on_where_too_few_of_the_models_that_came_can_be_read(tmp_path, autojump_clock):
    labels = ("east", "west")
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", labels, absent=2)
        await one(
            it, "east", labels, 2, change=lambda node: put_part(node, "service", Garbler(node.service)), wait_for=3
        )
        late = lambda node: put_part(node, "service", Latecomer(node.service, 29))  # noqa: E731
        await one(it, "east", labels, 3, change=late, wait_for=3)
        await until_round(east, 16)
        west = await begin(it, "west", labels)
        await until_round(west, 1)
        for member in west:
            rejected = member.node.service.stats.rejected_by_reason
            assert rejected.get("malformed"), "three models of round 21 came, of which one cannot be read"
            (joined,) = member.told("joined")
            assert joined["donors"] >= 3
            assert not member.told("warning")


@pytest.mark.thorough
async def test_a_region_that_comes_to_others_beyond_its_rounds_is_told_and_begins_alone(tmp_path, autojump_clock):
    labels = ("east", "west")
    async with swarm(tmp_path) as it:
        east = await begin(it, "east", labels)
        await until_round(east, 20)
        west = await it.start(
            "west", train={"rounds": 10, "eval_every": 10}, node={"region": "west"}, sync={"regions": list(labels)}
        )
        await it.finished("west")
        assert not west.told("joined")
        assert any("is at the end of its rounds" in told["message"] for told in west.told("warning"))
        assert len(west.told("round")) == 10
