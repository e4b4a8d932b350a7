"""One node of a simulated swarm."""

from dataclasses import dataclass, field

import torch

from p2ptrain.sync import SyncStrategy
from p2ptrain.training import Trainer


@dataclass(eq=False)
class SimulatedNode:
    """One simulated node: its trainer, its learning rule, and whom it still tracks."""

    name: str
    trainer: Trainer
    sync: SyncStrategy
    anchor_d: torch.Tensor
    """The outer parameters after the last round: what is judged."""
    tracked: set[str] = field(default_factory=set)
