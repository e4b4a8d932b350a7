"""The adversary that plays at random: nothing that is promised breaks, whatever hostile nodes draw.

A failure says how to play it again, and the shortest list of moves that does it.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
from adversary_plan import draw
from adversary_run import broken_by, explained, play
from adversary_scenario import ALL_FROM, KINDS, LEAST_S, SHIFTS
from sizes import thorough_but
from test_adversary_plans import DEFAULT_SEEDS

QUICK_SEEDS = {85}
"""Of the default ones, the one that is played in two seconds of a core: `make test` plays it, `make thorough` all."""

SOAK_SEEDS = (*range(ALL_FROM), *(seed for seed in range(ALL_FROM, 800) if KINDS[seed % len(KINDS)] == "meeting"))

EXPLAINED = 3
"""Failures of a soak that are shrunk: a minute or two each."""


@pytest.mark.parametrize("seed", thorough_but(QUICK_SEEDS, DEFAULT_SEEDS))
def test_nothing_that_is_promised_breaks(seed: int) -> None:
    plan = draw(seed)
    if plan.scenario.kind in SHIFTS:
        pytest.importorskip("river")
    outcome = play(plan)
    assert not outcome.violations, explained(outcome)
    assert outcome.seconds >= LEAST_S


@pytest.mark.soak
def test_nothing_that_is_promised_breaks_in_525_seeds() -> None:
    processes = multiprocessing.get_context("spawn")  # nothing of a parent that has run trio, and torch's threads
    with ProcessPoolExecutor(os.cpu_count(), mp_context=processes) as pool:
        played = list(pool.map(broken_by, SOAK_SEEDS, chunksize=5))
    failed = {seed: violations for seed, _, violations in played if violations}
    reasons = [f"seed {seed}: {violations[0]}" for seed, violations in failed.items()]
    reasons += [explained(play(draw(seed))) for seed in list(failed)[:EXPLAINED]]
    assert not failed, "\n".join([f"{len(failed)} of {len(SOAK_SEEDS)}", *reasons])
    assert all(seconds >= LEAST_S for _, seconds, _ in played)
