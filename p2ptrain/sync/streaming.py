"""Streaming: the model travels in fragments that take turns, so that no round carries more than a P-th of it.

    round r tells, averages and takes the outer step for fragment r mod P, and leaves all others alone
    theta <- theta + (1 - mixing) (phi - theta) on that fragment

Source: Streaming DiLoCo (2501.18512): strided fragments, each with its own offset in the rounds and its own outer
momentum over the P rounds since its last turn; 4 bits an outer gradient, in E3M0 as the paper's: a sign and powers of
two (int4's format `e3m0`; other strategies' int4 is nf4, which loses less of a Gaussian: `sync.format`); mixing 0.5,
which keeps half of what the local fragment has over the averaged one. With overlap the paper mixes the parameters as
they are tau steps later, and so takes back half of these steps too; here the correction is added to the moving
parameters, which keep them. The paper evaluates the outer parameters: `RoundResult.anchor_d` here, in which P - 1
fragments are of older rounds.
Guarantee: the aggregator's. A fragment's mean stays as in tracked_gossip, apart from momentum.
Cost: at most d/P + d/4096 numbers a round, where tracked_gossip sends d; a fragment is averaged once in P rounds, so a
round should have 1/P of the inner steps that it would have otherwise. Vectors: as diloco.
"""

from functools import partial
from typing import Annotated

import torch

from p2ptrain.sync.base import SyncStrategy
from p2ptrain.sync.checks import check_momentum
from p2ptrain.sync.encoder import FragmentSchedule, TrackedEncoder
from p2ptrain.sync.fragments import MAX_FRAGMENTS
from p2ptrain.sync.model_averaging import AveragingParts, ModelAveraging
from p2ptrain.sync.strategy_spec import StrategySpec, anything_goes
from p2ptrain.sync.sync_config import SyncConfig

CALM_MIXING = 0.5
"""With half of every step left out, models close up even with sign1 under Nesterov's momentum (see checks.py)."""


def method(
    *,
    fragments: Annotated[int, "Parts of the model that take turns."] = 4,
    mixing: Annotated[float, "Share of the local parameters that stays when a fragment is averaged, in [0, 1)."] = 0.5,
) -> StrategySpec:
    """Fragments."""
    if not 1 <= fragments <= MAX_FRAGMENTS:
        raise ValueError(f"fragments must be between 1 and {MAX_FRAGMENTS}, not {fragments}")
    if not 0 <= mixing < 1:
        raise ValueError(f"mixing must be in [0, 1), not {mixing}")
    return StrategySpec(
        name="streaming",
        models=partial(_build, fragments, mixing),
        compressor="int4",
        codec_options={"format": "e3m0"},
        aggregator="mean",
        f=0,
        outer="nesterov",
        turn=fragments,
        check=anything_goes if mixing >= CALM_MIXING else check_momentum,
    )


def _build(fragments: int, mixing: float, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    schedule = FragmentSchedule.of(genesis_d.numel(), config.compressor, config.codec_options(), fragments=fragments)
    return ModelAveraging(
        config,
        genesis_d,
        AveragingParts(encoder=TrackedEncoder(schedule, genesis_d, config.estimate_dtype), mixing=mixing),
    )
