"""Mixtures of rows, made chunk by chunk as they are read, for a coordinate-wise rule after a stage."""

from collections.abc import Callable

import torch

from p2ptrain.aggregate.base import Rows

Read = Callable[[slice], torch.Tensor]


def mixtures(rows: Rows, weight_mn: torch.Tensor) -> Rows:
    """Return the rows weight_mn @ rows. Rows of weight 0 in a mixture do not touch it, whatever they hold."""
    m, n = weight_mn.shape
    few = int((weight_mn != 0).sum()) <= 2 * max(m, n)
    return Rows(m, rows.d, _one_by_one(rows, weight_mn) if few else _as_product(rows, weight_mn))


def _one_by_one(rows: Rows, weight_mn: torch.Tensor) -> Read:
    """Rows added up (buckets) or scaled (clipping)."""
    terms = [[(row, weight) for row, weight in enumerate(each) if weight] for each in weight_mn.tolist()]

    def read(part: slice) -> torch.Tensor:
        x_nc = rows.read(part)
        mixed_mc = x_nc.new_empty(len(terms), x_nc.shape[1])
        for mixed_c, chosen in zip(mixed_mc.unbind(0), terms, strict=True):
            mixed_c.zero_()
            for row, weight in chosen:
                mixed_c.add_(x_nc[row], alpha=weight)
        return mixed_mc

    return read


def _as_product(rows: Rows, weight_mn: torch.Tensor) -> Read:
    """A matrix product over the rows that are in some mixture: 0 times infinity would be NaN."""
    used = (weight_mn != 0).any(dim=0).nonzero().flatten()
    all_used = len(used) == rows.n
    weight_mu = weight_mn[:, used].to(torch.float32)

    def read(part: slice) -> torch.Tensor:
        x_nc = rows.read(part)
        x_uc = x_nc if all_used else torch.stack([x_nc[row] for row in used.tolist()])
        weight = weight_mu.to(x_nc.device)
        mixed_mc = x_nc.new_empty(len(weight), x_nc.shape[1])
        if x_nc.device.type != "cpu":
            return torch.mm(weight, x_uc, out=mixed_mc)
        for weight_u, mixed_c in zip(weight.unbind(0), mixed_mc.unbind(0), strict=True):
            torch.mv(x_uc.T, weight_u, out=mixed_c)  # not one product of matrices: see geometry._products
        return mixed_mc

    return read
