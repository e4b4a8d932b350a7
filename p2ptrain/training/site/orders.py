"""What the first rank of a site says to the others: one small broadcast before everything that they do together."""

from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final

import torch
import torch.distributed as dist

from p2ptrain.training.sharded_model import Order


class SiteOrder(IntEnum):
    """What the leader has all ranks do, beside the `Order`s of a sharded model."""

    STEP = 48
    """The step of this number, at this learning rate."""
    KEEP = 49
    """Put the model aside: another one is to be measured."""
    RESTORE = 50
    MEASURE = 51
    """The loss on held-out examples, or on others (`LossKind`)."""
    SAVE = 52
    """Send the optimizer's state."""
    RESUME = 53
    """Take an optimizer's state."""
    END = 54


class RankLostError(RuntimeError):
    """A rank of this site has ended, or does not answer: the others cannot go on."""


ENDED: Final = "a rank of this site has ended: what it printed says why"
SILENT: Final = "a rank of this site has not answered for site.timeout_s"


def why_lost(error: BaseException) -> str:
    """Return why another rank cannot be reached, by what torch raised; empty for any other error."""
    if isinstance(error, RankLostError) or not isinstance(error, RuntimeError):
        return ""
    said = str(error)
    if not isinstance(error, dist.DistError) and "gloo" not in said and "onnection" not in said:
        return ""
    return SILENT if "imed out" in said or "failed to pass" in said else ENDED


@dataclass(frozen=True)
class GivenOrder:
    """One order with its two numbers."""

    order: int
    first: float = 0.0
    second: float = 0.0


_NUMBERS: Final = 3


class OrderChannel:
    """The leader's orders over `group` (gloo), in which nothing else of the leader's is broadcast meanwhile."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._leader = dist.get_global_rank(group, 0)
        self._spoken = torch.zeros(_NUMBERS, dtype=torch.float64, device="cpu")

    @property
    def leads(self) -> bool:
        """Whether this rank gives the orders."""
        return dist.get_rank() == self._leader

    def tell(self, order: "Order | SiteOrder", first: float = 0.0, second: float = 0.0) -> None:
        """Give all other ranks an order."""
        self._spoken.copy_(torch.tensor([float(order), first, second], dtype=torch.float64))
        dist.broadcast(self._spoken, self._leader, self.group)

    def heard(self) -> GivenOrder:
        """Wait for the leader's next order."""
        dist.broadcast(self._spoken, self._leader, self.group)
        order, first, second = self._spoken.tolist()
        return GivenOrder(int(order), first, second)

    def share(self, found: Any = None) -> Any:
        """Return what the leader gives, in every rank."""
        box = [found]
        dist.broadcast_object_list(box, self._leader, self.group)
        return box[0]

    def summed(self, numbers: list[float]) -> list[float]:
        """Return the sums of each of these numbers over all ranks, in every rank."""
        total = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        dist.all_reduce(total, group=self.group)
        return [float(each) for each in total]

    def gathered(self, found: Any) -> list[Any]:
        """Return what every rank gives, in every rank."""
        each: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(each, found, self.group)
        return each

    def part(self, timeout_s: float) -> None:
        """Wait until all ranks are here: one that ends before would be taken for lost by the others."""
        dist.monitored_barrier(self.group, timedelta(seconds=timeout_s))
