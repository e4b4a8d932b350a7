"""What a site keeps beside its parameters, put together and taken apart as these are: an optimizer's buffers."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from p2ptrain.tasks.base import TaskError
from p2ptrain.training.parameter_vector import is_sharded
from p2ptrain.training.sharded_model import ShardedModel, _fsdp_modules, _local
from p2ptrain.training.site.orders import OrderChannel


class SiteModel(ShardedModel):
    """A sharded model that also gathers and deals other vectors like its parameters. Both are collective. `stages`:
    what of the model this rank computes."""

    def __init__(self, model: nn.Module, stages: Sequence[nn.Module], orders: OrderChannel) -> None:
        # No slices: nothing travels beside the orders.
        super().__init__(model, None, orders.group, orders.group, orders.tell)
        self._fsdp = [each for stage in stages for each in _fsdp_modules(stage)]

    def add_up(self, gradients: list[torch.Tensor], shared: Mapping[int, dist.ProcessGroup]) -> None:
        """Have the ranks of each group in `shared` add up their gradients of the parameter of this number."""
        for index, group in shared.items():
            gradients[index] = gradients[index].contiguous()
            dist.all_reduce(gradients[index], group=group)

    def average(self, gradients: list[torch.Tensor], groups: Sequence[dist.ProcessGroup]) -> None:
        """Have the ranks of all `groups` average their gradients of what none of them shares out: FSDP2 does it for the
        rest."""
        whole = [index for index, each in enumerate(self.parameters) if not each.is_meta and not is_sharded(each)]
        if not whole or not groups:
            return
        mean_w = torch.cat([gradients[index].reshape(-1) for index in whole])
        for group in groups:
            dist.all_reduce(mean_w, group=group)
            mean_w /= dist.get_world_size(group)
        means = torch.split(mean_w, [gradients[index].numel() for index in whole])
        for index, mean in zip(whole, means, strict=True):
            gradients[index] = mean.view_as(gradients[index])

    def check_used(self) -> None:
        """Raise TaskError in all ranks where some have a gradient of a parameter and others have none, where FSDP2 adds
        up the gradients that there are, each rank's of other parameters. Collective, after a backward pass."""
        if hasattr(FSDPModule, "set_reduce_scatter_unused_params"):  # of torch 2.13: set by cut_model.py
            return
        has = [None if it.is_meta or not is_sharded(it) else it.grad is not None for it in self.parameters]
        counts = torch.tensor([[each is True for each in has], [each is False for each in has]], dtype=torch.int32)
        dist.all_reduce(counts, group=self._group)
        if bool((counts > 0).all(dim=0).any()):
            raise TaskError(
                "some ranks of this site used parameters that others did not, as experts do, and torch "
                f"{torch.__version__} adds up their gradients wrongly: take torch 2.13 or newer"
            )

    @property
    def parts(self) -> list[torch.Tensor]:
        """What this rank holds of each parameter, where it lies."""
        return list(self._here)

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradient of each part, zeros where there is none."""
        found = []
        for parameter, here in zip(self.parameters, self._here, strict=True):
            grad = parameter.grad
            found.append(torch.zeros_like(here) if grad is None else _local(_placed(grad, parameter)))
        return found

    def brought(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of `parts` that this rank is the first to hold: each value of the whole is in one rank's."""
        return [parts[index] for index in self._brings[self._rank]]

    def gather(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the whole vector fp32 (d,) of which each rank has `parts`; nothing in ranks that do not lead."""
        own = [each.detach().reshape(-1).to("cpu") for each in self.brought(parts)]
        own_p = torch.cat(own) if own else torch.empty(0, device="cpu", dtype=torch.float32)
        if not self.leads:
            self._sent(own_p, 0)
            return torch.empty(0, device="cpu", dtype=torch.float32)
        x_d = torch.empty(self.numel, device="cpu", dtype=torch.float32)
        wholes = self._wholes(x_d)
        for rank in range(self._count):
            brings, blocks = self._brings[rank], self._blocks[rank]
            told_p = own_p if rank == 0 else self._received(self._numel_brought(rank), rank)
            pieces = torch.split(told_p, [blocks[index].numel for index in brings])
            for index, piece_p in zip(brings, pieces, strict=True):
                blocks[index].of(wholes[index]).copy_(piece_p.view(blocks[index].sizes))
        return x_d

    def deal(self, x_d: torch.Tensor | None, parts: Sequence[torch.Tensor]) -> None:
        """Set each rank's `parts` to those of the vector `x_d` (d,), which the leader has."""
        if self.leads:
            assert x_d is not None
            wholes = self._wholes(x_d)
            own_p = self._dealt(wholes)
        else:
            own_p = self._received(sum(each.numel() for each in parts), 0)
        pieces = torch.split(own_p, [each.numel() for each in parts])
        with torch.no_grad():
            for part, piece_p in zip(parts, pieces, strict=True):
                part.copy_(piece_p.view(part.shape))


def _placed(grad: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The gradient, shared out as its parameter is. Of one that several ranks hold whole, each may have a part of the
    sum."""
    if not is_sharded(grad) or grad.placements == parameter.placements:  # type: ignore[attr-defined]  # DTensors
        return grad
    return grad.redistribute(placements=parameter.placements)  # type: ignore[attr-defined, no-any-return]
