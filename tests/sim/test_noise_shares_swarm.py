"""Real nodes that share out noise under masks: they learn, each counts what sums tell, and stops in time."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from sim_swarm import Member, mean_loss, swarm

from node.privacy.ledger import read_ledger
from node.system.run_dir import PRIVACY
from p2ptrain.privacy.accounting import epsilon_of

DELTA = 1e-5


def settings(rounds: int, noise: float, clip: float, epsilon: float | None = None) -> dict[str, Any]:
    shared = {"strategy": "secure_average", "clipping_range": 1.0, "sum_noise": noise, "sum_clip": clip}
    private = {"privatizer": "secure_update", "noise": noise, "clip": clip, "delta": DELTA}
    return {
        "sync": shared,
        "privacy": private if epsilon is None else private | {"epsilon": epsilon},
        "train": {"rounds": rounds, "eval_every": rounds},
        "node": {"checkpoint_every": 1, "overlap": False},
        "network": {"degree": 32},
    }


def ledger(member: Member) -> dict[tuple[str, float, float], int]:
    return read_ledger(member.folder / PRIVACY).releases


@pytest.mark.thorough
async def test_four_learn_under_shared_noise_and_count_each_round_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rounds, noise = 3, 0.01
    async with swarm(tmp_path) as members:
        nodes = [await members.start(f"n{at}", wait_for=3, **settings(rounds, noise, 0.5)) for at in range(4)]
        await members.finished()
    for node in nodes:
        assert [(each["survivors"], each["groups_here"]) for each in node.told("secure_round")] == [(4, 1)] * rounds
        assert torch.equal(node.node.strategy.anchor_d, nodes[0].node.strategy.anchor_d)
        for event in ("rejected", "banned", "equivocation", "warning"):
            assert not node.told(event)
        ((mechanism, counted, rate), count) = next(iter(ledger(node).items()))
        assert (mechanism, rate, count) == ("secure_update", 1.0, rounds)
        assert counted == pytest.approx(noise, rel=1e-12)
        assert all(each["train_loss"] is None or math.isnan(each["train_loss"]) for each in node.told("round"))
    assert mean_loss(nodes) < nodes[0].node.journal.first["eval_loss"]


@pytest.mark.thorough
async def test_all_stop_before_the_round_that_would_exceed_their_budgets(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    noise, budget = 8.0, 1.0
    async with swarm(tmp_path) as members:
        started = settings(40, noise, 0.02, budget)
        nodes = [await members.start(f"n{at}", wait_for=3, **started) for at in range(4)]
        await members.finished()
    for node in nodes:
        (told,) = node.told("privacy_budget_spent")
        spent = epsilon_of(read_ledger(node.folder / PRIVACY).all_releases(), DELTA)
        assert told["epsilon"] == pytest.approx(spent)
        assert 0.6 * budget < spent <= budget < told["would_be"]
        trained = len(node.told("round"))
        assert 2 <= trained <= sum(ledger(node).values()) < 40
