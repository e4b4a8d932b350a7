"""Real nodes in several regions: they learn as one swarm, and neither a liar nor a region of liars steers others."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest
from sim_swarm import Member, Swarm, mean_loss, mean_model, played, put_part, swarm
from sizes import thorough_but

from gossip.service import GossipService
from node.training.node import Node

ROUNDS = 40


async def start(
    it: Swarm,
    labels: Sequence[str],
    each: int,
    liars: dict[str, int] | None = None,
    attack: str = "sign_flip",
    change: Mapping[str, Callable[[Node], None]] = MappingProxyType({}),
    rounds: int = ROUNDS,
    **sections: dict[str, object],
) -> dict[str, list[Member]]:
    """So many nodes in each region; of those of `liars` the last ones carry out the attack, or are not there where it
    is `absent`. All have the data that they would have among as many. `change`: changes the last node of a region."""
    regions: dict[str, list[Member]] = {label: [] for label in labels}
    count = each * len(labels)
    for number in range(count):
        label, honest = labels[number % len(labels)], each - (liars or {}).get(labels[number % len(labels)], 0)
        lies = number // len(labels) >= honest
        if lies and attack == "absent":
            continue
        settings = {
            "train": {"rounds": rounds, "eval_every": rounds, **sections.get("train", {})},
            "node": {"region": label, "shard_count": count, "shard_index": number},
            "sync": {"regions": list(labels), **sections.get("sync", {})},
            "attack": {"name": attack} if lies else {},
        }
        settings = {name: keys for name, keys in settings.items() if keys}
        there = honest if attack == "absent" else each
        last = number // len(labels) == each - 1 and label in change
        how = {"change": change[label]} if last else {}
        regions[label].append(await it.start(f"node-{number}", wait_for=there - 1, **how, **settings))
    return regions


class Nonsense:
    """A service whose regional models are bytes of no codec."""

    def __init__(self, service: GossipService) -> None:
        self._service = service

    def __getattr__(self, name: str) -> object:
        return getattr(self._service, name)

    async def publish_regional(self, *, round: int, codec: str, payload: bytes, averaged: int) -> None:
        await self._service.publish_regional(round=round, codec=codec, payload=payload[:-1], averaged=averaged)


def beside(folder: Path) -> Path:
    """A folder for a second swarm."""
    other = folder / "beside"
    other.mkdir()
    return other


@pytest.mark.parametrize(("momentum", "rounds"), thorough_but({(0.3, 16)}, [(0.0, ROUNDS), (0.3, ROUNDS), (0.3, 16)]))
async def test_two_regions_learn_as_one_swarm(tmp_path, autojump_clock, momentum, rounds):
    async with swarm(tmp_path) as it:
        regions = await start(it, ("east", "west"), 3, sync={"region_momentum": momentum}, rounds=rounds)
        await it.finished()
        east, west = regions.values()
        began = mean_model(east).norm()
        assert (mean_model(east) - mean_model(west)).norm() < 0.02 * began, "they have averaged after the last round"
        for member in east:
            assert (mean_model([member]) - mean_model(east)).norm() < 0.02 * began, "its members move alike"
        for member in it.members.values():
            moves = member.told("regions")
            assert len(moves) == rounds // 8
            assert all(move["moved"] and move["regions"] == 2 for move in moves)
            assert {round["neighbours"] for round in member.told("round")} == {2}
            assert not member.node.service.stats.rejected_by_reason
            assert not member.told("warning")


async def test_regions_of_unlike_sizes_have_the_mean_of_all_members(tmp_path, autojump_clock):
    async with swarm(tmp_path) as it:
        large = [
            await it.start(
                f"large-{number}",
                node={"region": "large"},
                sync={"regions": ["large", "small"], "f": 0},
                train={"rounds": 8, "eval_every": 8},
            )
            for number in range(4)
        ]
        small = await it.start(
            "small",
            node={"region": "small"},
            sync={"regions": ["large", "small"], "f": 0},
            train={"rounds": 8, "eval_every": 8},
        )
        await it.finished()
        assert all(member.told("regions")[-1]["moved"] for member in (*large, small))
        assert (mean_model(large) - mean_model([small])).norm() < 0.1 * mean_model(large).norm()


ONE_IN_EACH = {"east": 1, "west": 1}


@pytest.fixture(scope="module")
def loss_without(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], float]:
    """The loss of two regions after so many rounds without their liars."""

    @cache
    def loss(rounds: int) -> float:
        async def run(it: Swarm) -> float:
            await start(it, ("east", "west"), 5, ONE_IN_EACH, "absent", rounds=rounds)
            await it.finished()
            return mean_loss(list(it.members.values()))

        return float(played(run, tmp_path_factory.mktemp("without")))

    return loss


@pytest.mark.parametrize(
    "rounds", [8, pytest.param(16, marks=pytest.mark.thorough), pytest.param(ROUNDS, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("attack", thorough_but({"gaussian"}, ["gaussian", "ipm", "sign_flip"]))
def test_a_liar_among_the_publishers_of_each_region_does_not_steer_them(tmp_path, loss_without, attack, rounds):
    async def run(it: Swarm) -> list[Member]:
        regions = await start(it, ("east", "west"), 5, ONE_IN_EACH, attack, rounds=rounds)
        await it.finished()
        return [member for members in regions.values() for member in members[:-1]]

    # Without the rule a gaussian lie costs five times the loss within 16 rounds, and the others nothing that is seen.
    honest = played(run, tmp_path)
    assert mean_loss(honest) < 1.35 * loss_without(rounds), "what the trimmed mean of five costs in one region"
    assert all(member.told("regions")[-1]["moved"] for member in honest)
    assert not any(member.told("banned") for member in honest)


@pytest.mark.thorough
async def test_models_that_cannot_be_read_are_refused_and_the_others_go_on(tmp_path, autojump_clock):
    nonsense = {"east": lambda node: put_part(node, "service", Nonsense(node.service))}
    async with swarm(tmp_path) as it:
        regions = await start(it, ("east", "west"), 4, change=nonsense, rounds=24)
        await it.finished()
        honest = [*regions["east"][:-1], *regions["west"]]
        refused = [member.node.service.stats.rejected_by_reason.get("malformed", 0) for member in honest]
        assert any(refused)
        assert all(move["moved"] for member in honest for move in member.told("regions"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "attack",
    ["ipm", "inf", *(pytest.param(each, marks=pytest.mark.soak) for each in ("sign_flip", "gaussian", "alie"))],
)
async def test_a_region_of_liars_is_one_vote_of_four(tmp_path, autojump_clock, attack):
    rounds = {"train": {"rounds": 120, "eval_every": 120}}
    async with swarm(tmp_path, keep_errors=True) as it:  # the liars' own training may end in ruins
        regions = await start(it, ("a", "b", "c", "d"), 4, {"d": 4}, attack, **rounds)
        honest = [member for label in "abc" for member in regions[label]]
        await it.finished(*(member.name for member in honest))
        assert all(member.told("regions")[0]["region_margin"] >= 0 for member in honest)
        assert all(move["moved"] for member in honest for move in member.told("regions"))
        lied = mean_loss(honest)
    async with swarm(beside(tmp_path)) as it:
        await start(it, ("a", "b", "c", "d"), 4, {"d": 4}, "absent", **rounds)
        await it.finished()
        assert lied < 1.1 * mean_loss(list(it.members.values())), "two runs without liars differ by up to 6%"
