"""Spectral heterogeneity: dissensus, with all force along the graph's weakest direction."""

import torch

from p2ptrain.attacks.base import HonestGraph

LEAST_REACH = 1e-6
"""Victims that are, up to rounding, no part of the direction cannot be pushed along it."""


class Spectral:
    """Tells node i the vector x_i + a v_i (v^T X) / b_i, v being the Fiedler vector of the honest graph, b_i the weight
    of i's lying neighbours (Gaucher, Dieuleveut and Hendrikx, 2410.10418).

    v has one sign on either side of the sparsest cut, so that two halves of the swarm are driven apart. The paper
    searches the size; here a = eps mu_2 / (sum of v_i^2 over the victims), mu_2 the algebraic connectivity: along v the
    liars do eps times what gossip does, as `dissensus` does in every direction. With two equally weak directions it is
    one of them; an honest graph in two pieces (mu_2 = 0) is left alone, for nothing holds it together. Acts on edges:
    see EdgeAttack.
    Cost: the eigenvectors of an (h, h) matrix, and one pass over the models.
    """

    name = "spectral"

    def __init__(self, *, eps: float = 1.5) -> None:
        self.eps = eps

    def lies(self, x_hd: torch.Tensor, graph: HonestGraph) -> torch.Tensor:
        """Return what each honest node's lying neighbours show it, fp32 (h, d), from the honest models (h, d)."""
        if x_hd.shape[0] < 2:
            return x_hd.clone()
        values, vectors = torch.linalg.eigh(graph.laplacian().double())
        fiedler_h = vectors[:, 1].to(x_hd.dtype)
        reach = float(fiedler_h[graph.liar_weight_h > 0].square().sum())
        size = self.eps * float(values[1]) / reach if reach > LEAST_REACH else 0.0
        return x_hd + graph.through_liars(size * torch.outer(fiedler_h, fiedler_h @ x_hd))
