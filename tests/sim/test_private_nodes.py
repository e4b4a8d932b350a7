"""Whole nodes that protect their data: rounds close as ever, and what a round publishes is made of noised steps.

Two nodes without a privatizer, given the same seeds, publish the same bytes each time; two with one never do. With so
much noise that nothing is learned the model moves as noise does, in every strategy.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from sim_swarm import Member, Swarm, played
from sizes import thorough_but

from node.config.schema import Config, from_raw
from node.roles.assembly import own_trainer
from p2ptrain.privacy.allowance import unaccounted
from p2ptrain.privacy.base import BudgetSpentError, Release
from p2ptrain.sync import SYNC_STRATEGIES, averages_gradients
from p2ptrain.training import Learner

ROUNDS, STEPS = 4, 3
TRAIN = {"rounds": ROUNDS, "inner_steps": STEPS, "eval_every": 2}


def play(folder: Path, *, spend: Callable[[Release], None] | None = None, **sections: Any) -> list[Member]:
    def trainer_of(_: Path, config: Config, peer_id: str) -> Learner:
        return own_trainer(config, peer_id, spend=unaccounted if spend is None else spend)

    async def main(members: Swarm) -> list[Member]:
        nodes = [
            await members.start(
                f"n{number}",
                wait_for=1,
                trainer_of=trainer_of,
                train=TRAIN | sections.get("train", {}),
                **{name: keys for name, keys in sections.items() if name != "train"},
            )
            for number in range(2)
        ]
        await members.finished()
        return nodes

    return played(partial(main), folder)


def models(members: list[Member]) -> torch.Tensor:
    return torch.stack([each.node.strategy.anchor_d for each in members])


def rounds_of(member: Member) -> list[dict[str, Any]]:
    return [each for each in member.events if each["event"] == "round" and "steps" in each]


EVERY = [name for name in SYNC_STRATEGIES.names() if not averages_gradients(name)]
PAIRS = [("example", name) for name in EVERY] + [
    ("update", name)
    for name in EVERY
    if not (SYNC_STRATEGIES.get(name).wants or SYNC_STRATEGIES.get(name).steps_anchor)
]
QUICK_PAIRS = {
    (privatizer, name) for privatizer, name in PAIRS if name in {"tracked_gossip", "allreduce", "secure_average"}
} | {("example", "mime"), ("example", "heloco")}


@pytest.mark.parametrize(("privatizer", "strategy"), thorough_but(QUICK_PAIRS, PAIRS))
def test_a_round_closes_with_every_strategy_and_moves_by_noise(tmp_path: Path, privatizer: str, strategy: str) -> None:
    privacy = {"privatizer": privatizer, "noise": 5.0, "clip": 0.01}
    members = play(tmp_path, sync={"strategy": strategy}, privacy=privacy)
    for member in members:
        assert len(rounds_of(member)) == ROUNDS
        assert math.isfinite(member.eval_loss)
        assert all(each["train_loss"] is None or math.isnan(each["train_loss"]) for each in rounds_of(member))
        assert member.node.journal.last.get("train_loss") is None
    assert torch.isfinite(models(members)).all()


@pytest.mark.parametrize("privatizer", ["none", "example", "update"])
def test_only_what_is_protected_comes_out_another_way_each_time(tmp_path: Path, privatizer: str) -> None:
    found = []
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        found.append(models(play(tmp_path / name, privacy={"privatizer": privatizer, "noise": 1.0, "clip": 0.1})))
    assert torch.equal(*found) == (privatizer == "none")


@pytest.mark.parametrize(("privatizer", "each"), [("example", STEPS), ("update", 1)])
def test_a_budget_that_is_spent_ends_training_before_the_round_that_would_exceed_it(
    tmp_path: Path, privatizer: str, each: int
) -> None:
    """Both nodes share a ledger here, which allows three rounds of theirs in all."""
    most, entries = 3 * each, list[Release]()

    def spend(release: Release) -> None:
        if sum(entry.count for entry in entries) + release.count > most:
            raise BudgetSpentError
        entries.append(release)

    members = play(tmp_path, spend=spend, privacy={"privatizer": privatizer}, node={"overlap": False})
    assert sum(entry.count for entry in entries) == most
    assert sum(len(rounds_of(member)) for member in members) == 3
    taken = sum(member.node.inner.steps for member in members)
    assert taken == 3 * STEPS
    assert not any("error" in event["event"] for member in members for event in member.events)


def test_a_whole_run_moves_no_further_than_its_clipped_rounds(tmp_path: Path) -> None:
    """Without clipping a single step of adamw is 0.3 long; a codec that loses makes a published move up to twice as
    long."""
    privacy = {"privatizer": "update", "noise": 1e-6, "clip": 1e-3}
    genesis_d = own_trainer(from_raw({"task": {"name": "digits"}}), "peer").vector()
    for moved_d in models(play(tmp_path, privacy=privacy)) - genesis_d:
        assert 0 < float(moved_d.norm()) <= 2 * ROUNDS * 1e-3
