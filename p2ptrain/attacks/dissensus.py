"""Dissensus: liars at a bottleneck of the graph push its honest nodes apart."""

import torch

from p2ptrain.attacks.base import HonestGraph


class Dissensus:
    """Tells node i the vector x_i - eps sum_j w_ij (x_j - x_i) / b_i, j honest, b_i the weight of i's lying neighbours
    (He, Karimireddy and Jaggi, 2202.01545).

    Under plain gossip the liars' part of a step is -eps times the honest part: eps 1 stops it, more than that drives
    the honest nodes apart. Acts on edges: see EdgeAttack.
    Cost: one product of the (h, h) Laplacian and the (h, d) models.
    """

    name = "dissensus"

    def __init__(self, *, eps: float = 1.5) -> None:
        self.eps = eps

    def lies(self, x_hd: torch.Tensor, graph: HonestGraph) -> torch.Tensor:
        """Return what each honest node's lying neighbours show it, fp32 (h, d), from the honest models (h, d)."""
        return x_hd + self.eps * graph.through_liars(graph.laplacian() @ x_hd)
