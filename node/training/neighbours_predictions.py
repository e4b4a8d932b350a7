"""How far this node's predictions are from its neighbours'."""

from collections.abc import Iterator
from typing import Final, cast

import torch

from node.training.node import Node
from p2ptrain.sync.base import InPlace

MAX_COMPARED: Final = 4
"""Most neighbours whose predictions are compared with ours: each takes a pass of a small batch, and no update is taken
meanwhile."""


async def divergence_of(node: Node, phi_d: torch.Tensor | None) -> float | None:
    """Return the divergence of our predictions from those of the neighbours' newest models; None where none is held.
    `phi_d`: our model, fp32 (d,), by default the moving one."""
    strategy, trainer = node.strategy, node.inner.trainer

    peers = [peer for it in sorted(node.service.neighbours())[:MAX_COMPARED] if (peer := str(it)) in node.estimates]
    if not peers or not isinstance(strategy, InPlace):
        return None
    async with node.strategy_lock:  # models are read as they are held, and do not change meanwhile
        own_d = trainer.vector() if phi_d is None else phi_d
        held = filter(lambda model_d: model_d is not None, map(strategy.estimate_model, peers))
        return await node.executor.offload(lambda: trainer.divergence(own_d, cast(Iterator[torch.Tensor], held)))
