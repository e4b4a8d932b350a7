"""How far this node's predictions are from its neighbours'."""

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median_low
from typing import Final, TypeAlias, cast

import torch

from gossip.core.ids import PeerId
from node.training.node import Node
from p2ptrain.sync.base import InPlace
from p2ptrain.training import Learner

MAX_COMPARED: Final = 4
"""Most neighbours whose predictions are compared with ours: each takes a pass of a small batch, and no update is taken
meanwhile."""


async def divergence_of(node: Node, phi_d: torch.Tensor | None) -> float | None:
    """Return the divergence of our predictions from the mean of those of the neighbours' newest models; None where none
    is held. `phi_d`: our model, fp32 (d,), by default the moving one."""
    found = await _compared(node, sorted(node.service.neighbours())[:MAX_COMPARED], phi_d, _from_mean)
    return found[0] if found else None


async def typical_divergence_of(node: Node, phi_d: torch.Tensor) -> float | None:
    """Return the median over seated neighbours, the lower one, of the divergence of our predictions from each one's;
    None where none is held. While fewer than half of them lie it is as far as an honest one's: of the mean of all a
    single liar could make anything. `phi_d`: our model, fp32 (d,)."""
    most = max(MAX_COMPARED, 2 * node.config.sync.f + 1)
    found = await _compared(node, sorted(node.service.seated(node.service.neighbours()))[:most], phi_d, _from_each)
    return median_low(found) if found else None


_Divergences: TypeAlias = Callable[[Learner, torch.Tensor, Iterator[torch.Tensor]], list[float]]


async def _compared(
    node: Node, neighbours: Sequence[PeerId], phi_d: torch.Tensor | None, divergences: _Divergences
) -> list[float]:
    strategy, trainer = node.strategy, node.inner.trainer
    peers = [peer for it in neighbours if (peer := str(it)) in node.estimates]
    if not peers or not isinstance(strategy, InPlace):
        return []
    async with node.strategy_lock:  # models are read as they are held, and do not change meanwhile
        own_d = trainer.vector() if phi_d is None else phi_d
        held = filter(lambda model_d: model_d is not None, map(strategy.estimate_model, peers))
        return await node.executor.offload(lambda: divergences(trainer, own_d, cast(Iterator[torch.Tensor], held)))


def _from_mean(trainer: Learner, own_d: torch.Tensor, others: Iterator[torch.Tensor]) -> list[float]:
    found = trainer.divergence(own_d, others)
    return [] if found is None else [found]


def _from_each(trainer: Learner, own_d: torch.Tensor, others: Iterator[torch.Tensor]) -> list[float]:
    """One that rules out what we predict is infinitely far."""
    return [math.inf if (found := trainer.divergence(own_d, [other])) is None else found for other in others]
