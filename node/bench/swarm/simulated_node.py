"""One node of a simulated swarm."""

from dataclasses import dataclass, field

import torch

from p2ptrain.sync import SyncStrategy
from p2ptrain.training import Trainer
from p2ptrain.training.late_average import LateAverage


@dataclass(eq=False)
class SimulatedNode:
    """One simulated node: its trainer, its learning rule, and whom it still tracks."""

    name: str
    trainer: Trainer
    sync: SyncStrategy
    anchor_d: torch.Tensor
    """The outer parameters after the last round."""
    late: LateAverage
    """The mean of late ones, which is judged in its place."""
    tracked: set[str] = field(default_factory=set)

    @property
    def judged_d(self) -> torch.Tensor:
        """What is judged, fp32 (d,)."""
        return self.anchor_d if self.late.mean_d is None else self.late.mean_d
