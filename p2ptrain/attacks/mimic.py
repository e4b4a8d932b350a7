"""Mimic: every liar copies one honest node, which is then counted f + 1 times."""

import torch

TIE = 1e-5
"""Who stands as far out as this, relatively, stands equally far; the first of them is taken."""


class Mimic:
    """All liars send what one honest node sends (Karimireddy et al., 2006.09365).

    Nothing they send is an outlier, so that no aggregator finds them by looking at vectors; what it hurts is learning
    from unequal data. `target` names the row that is copied (modulo n), the same in every round. "furthest": the one
    that stands furthest out along the direction in which this round's vectors spread most; the paper chooses so, over
    some first rounds, and then stays with its victim. (A live liar, whose own movement is among those that it sees, may
    then choose itself.)
    Cost: a copy; with "furthest" one Gram matrix of the honest vectors, and two copies of them.
    """

    name = "mimic"

    def __init__(self, *, target: int | str = 0) -> None:
        if isinstance(target, str) and target != "furthest":
            raise ValueError(f'mimic: target must be a number or "furthest", not {target!r}')
        self.target = target

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        victim = furthest_out(honest_nd) if isinstance(self.target, str) else self.target % honest_nd.shape[0]
        return honest_nd[victim].expand(f, -1).clone()


def furthest_out(x_nd: torch.Tensor) -> int:
    """Return the row with the largest part along the first principal direction of the rows."""
    largest = x_nd.abs().amax() if x_nd.numel() else torch.zeros((), dtype=torch.float32)
    if largest == 0:
        return 0
    scaled_nd = x_nd / largest  # squares of fp32 values would overflow, or vanish
    scaled_nd -= scaled_nd.mean(dim=0)
    gram_nn = (scaled_nd @ scaled_nd.T).double()
    part_n = torch.linalg.eigh(gram_nn).eigenvectors[:, -1].abs()  # row i's part is sqrt(eigenvalue) times this
    return int((part_n >= part_n.max() * (1 - TIE)).nonzero()[0])
