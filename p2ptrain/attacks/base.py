"""What an attack is: a name, and at least one hook that says what a liar does.

A runtime asks an attack which hooks it has (`isinstance` with the Protocols below), never what it is called:

| hook           | the liar lies in                             | who runs it                               |
|----------------|----------------------------------------------|-------------------------------------------|
| `VectorAttack` | the vector it sends, knowing the honest ones | `sync.Byzantine`, benchmarks, simulators  |
| `ModelAttack`  | the vector it sends, of its own making       | the same                                  |
| `DataAttack`   | the data it trains on                        | the code that builds its task             |
| `WireAttack`   | what it signs beside its updates             | a node's network (node/roles/byzantine.py)        |
| `EdgeAttack`   | what it tells each neighbour, another each   | simulators only: a node has one chain     |
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from p2ptrain.tasks.base import Task


@runtime_checkable
class Attack(Protocol):
    """Anything that a liar may do. Has at least one of the hooks in this file."""

    name: str


@runtime_checkable
class VectorAttack(Attack, Protocol):
    """Byzantine vectors from the honest ones."""

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """The f vectors sent, fp32 (f, d), from the honest differences (n, d) of a round."""


@runtime_checkable
class ModelAttack(Attack, Protocol):
    """What a liar says that its own model is; it may remember what it said before."""

    def say(self, theta_d: torch.Tensor) -> torch.Tensor:
        """Return the model that is published in place of `theta_d`, fp32 (d,). Once a round, in order."""


@runtime_checkable
class DataAttack(Attack, Protocol):
    """Lies in the training data. The liar trains and publishes honestly what comes of it."""

    def poison(self, task: Task) -> Task:
        """`task` with other training batches. Evaluation stays true, so that the damage can be seen. Raises TaskError
        on a task whose data cannot be attacked so."""


@dataclass(frozen=True, kw_only=True)
class Misdeeds:
    """What a liar broadcasts beside the announcement of its update, in one round. All names are its own."""

    twins: int = 0
    """Well-signed links at the place of the one just published, each with another payload."""
    epochs: int = 0
    """Well-signed first links of new chains, each of which receivers must begin to follow."""
    forgeries: int = 0
    """Announcements whose signature does not hold: free for the liar, a signature check for each receiver."""


@runtime_checkable
class WireAttack(Attack, Protocol):
    """Misuse of the liar's own key. The update itself is honest."""

    def misdeeds(self, round: int) -> Misdeeds:
        """Return what to broadcast once the update of `round` is published."""


@dataclass(frozen=True, kw_only=True)
class HonestGraph:
    """The gossip graph as it concerns its honest nodes."""

    weight_hh: torch.Tensor
    """Weights between honest nodes, fp32 (h, h), symmetric; the diagonal does not matter."""
    liar_weight_h: torch.Tensor
    """The weight that each honest node gives to all its lying neighbours together, fp32 (h,)."""

    def laplacian(self) -> torch.Tensor:
        """diag(sum_j w_ij) - W, (h, h): row i times the models is what gossip takes away from node i."""
        return torch.diag(self.weight_hh.sum(dim=1)) - self.weight_hh

    def through_liars(self, move_hd: torch.Tensor) -> torch.Tensor:
        """Return the difference that every lying neighbour of node i must show for node i to move by `move_hd[i]`. Zero
        for a node without lying neighbours: nobody is there to tell it anything."""
        liar_weight_h1 = self.liar_weight_h.view(-1, 1)
        return torch.where(liar_weight_h1 > 0, move_hd / liar_weight_h1, 0.0)


@runtime_checkable
class EdgeAttack(Attack, Protocol):
    """Another lie for every victim. For simulators: a node of ours publishes one signed chain to everybody, so that
    telling two neighbours two things is equivocation, and is punished as such."""

    def lies(self, x_hd: torch.Tensor, graph: HonestGraph) -> torch.Tensor:
        """Return what the lying neighbours of honest node i tell it that their model is, fp32 (h, d), from the honest
        nodes' models (h, d)."""
