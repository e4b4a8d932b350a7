"""Rounds of few steps are lengthened before they are published (p2ptrain/step_normalization), by own count of steps.

A round that closes takes the model to the anchor (`StrategySpec.ends_at_anchor`). So the difference of a phase's
parameters to the anchor is what the phase's steps made. Where those were fewer than scheduled, the phase's parameters
move on along it. The model that is trained meanwhile moves by as much, together with the round's correction.
"""

import torch

from node.training.inner_loop import Phase
from node.training.node import Node
from p2ptrain.protocols import implements
from p2ptrain.step_normalization.unnormalized import Unnormalized
from p2ptrain.sync.base import HasAnchor


async def lengthen(node: Node, phase: Phase) -> torch.Tensor | None:
    """Move the phase's parameters on, in place. Return by how much (d,), or None where they stay."""
    train, strategy = node.config.train, node.strategy
    if train.step_normalization == Unnormalized.name or not implements(strategy, HasAnchor):
        return None
    factor = train.normalization().factor(phase.work, train.steps_in(node.state.round))
    if factor <= 1:
        return None
    async with node.strategy_lock:
        return await node.compute(lambda: _moved_(phase.theta_d, strategy.anchor_d, factor))


def _moved_(theta_d: torch.Tensor, anchor_d: torch.Tensor, factor: float) -> torch.Tensor:
    shift_d = torch.sub(theta_d, anchor_d).mul_(factor - 1)
    theta_d.add_(shift_d)
    return shift_d
