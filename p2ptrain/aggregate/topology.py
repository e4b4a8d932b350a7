"""Whether a graph can stand f liars in every neighbourhood: what n and f cannot say.

Honest nodes average along the edges between them. How well is told by mu_2, the algebraic connectivity of the honest
nodes' graph: the second smallest eigenvalue of its Laplacian. With b the weight of liars in a neighbourhood (f, where
all edges weigh 1) no rule whatever reaches consensus when mu_2 <= 2b: two halves of the graph may be so loosely tied
that for each the other looks like liars (Gaucher, Dieuleveut and Hendrikx, 2410.10418).

Taking a vertex away lowers mu_2 by 1 at most (Fiedler, 1973). So mu_2 of the whole graph less the number of liars is a
safe bound for the honest part, of which nobody knows which it is.

A full mesh, where mu_2 = n, is the one graph that a node knows for itself (`known_connectivity`), and there that bound
is too strict. Liars part a graph by telling its halves different things, and who publishes one signed chain cannot. In
a full mesh all hear the same vectors: n counts liars and honest alike, and mu_2 > 2f says what trimming says, n > 2f.
"""

import math
from collections.abc import Collection, Hashable, Mapping

import torch


def algebraic_connectivity(weight_nn: torch.Tensor) -> float:
    """mu_2 of a graph with symmetric weights >= 0 (n, n); the diagonal does not matter. 0 when it is not connected.

    ValueError for a matrix that is no such graph, or has fewer than 2 nodes.
    """
    weight_nn = weight_nn.to(torch.float64)
    if weight_nn.dim() != 2 or weight_nn.shape[0] != weight_nn.shape[1] or len(weight_nn) < 2:
        raise ValueError(f"a graph is a square matrix of 2 nodes or more, not {tuple(weight_nn.shape)}")
    if not bool(weight_nn.isfinite().all()) or bool((weight_nn < 0).any()) or not torch.equal(weight_nn, weight_nn.T):
        raise ValueError("a graph's weights are symmetric, finite and not negative")
    laplacian_nn = weight_nn.sum(dim=1).diag() - weight_nn
    return max(0.0, float(torch.linalg.eigvalsh(laplacian_nn)[1]))


def honest_connectivity(weight_nn: torch.Tensor, liars: list[int]) -> float:
    """mu_2 of what remains of a graph without the liars. ValueError when fewer than 2 nodes remain."""
    honest = [node for node in range(len(weight_nn)) if node not in set(liars)]
    return algebraic_connectivity(weight_nn[honest][:, honest])


def spectral_gap(neighbours: Mapping[Hashable, Collection[Hashable]]) -> float:
    """mu_2 of a graph over its mean degree: how fast averaging along its edges brings its members together, whatever
    their number. Of n members all with each other it is n / (n - 1); of a random k-regular graph about 1 - 2 sqrt(k -
    1) / k, which no family of such graphs exceeds (Alon, Boppana); 0 where it is not connected.

    neighbours: of every node, each edge from both its ends. NaN for fewer than 2 nodes; ValueError for a neighbour that
    is no node.
    """
    if len(neighbours) < 2:
        return math.nan
    places = {node: place for place, node in enumerate(neighbours)}
    weight_nn = torch.zeros(len(places), len(places), dtype=torch.float64)
    ends: list[tuple[int, int]] = []
    for node, beside in neighbours.items():
        for other in beside:
            if other not in places:
                raise ValueError(f"{other!r} is a neighbour, and no node of the graph")
            ends.append((places[node], places[other]))
    if ends:
        weight_nn[tuple(zip(*ends, strict=True))] = 1.0  # at once: each write of a tensor costs microseconds
    degree = float(weight_nn.sum()) / len(places)
    return algebraic_connectivity(weight_nn) / degree if degree > 0 else 0.0


def robust_margin(degree: int, f: int, mu_2: float, *, needed: int) -> int:
    """Return how many members may leave a node's neighbourhood before the promise about f liars in it fails; negative
    when it does not hold now.

    degree: neighbours of the node; needed: `minimum()` of its aggregator, own vector included; mu_2: of the honest
    nodes' graph with edges of weight 1, or a lower bound for it. Two conditions, of which the tighter decides: the rule
    has its `needed` members, and mu_2 > 2f, of which every leaver takes 1 at most.
    """
    if degree < 0 or f < 0 or needed < 1 or not mu_2 >= 0:
        raise ValueError(f"no neighbourhood has degree {degree}, f {f}, mu_2 {mu_2} and {needed} needed members")
    members = degree + 1 - needed
    return members if math.isinf(mu_2) else min(members, math.ceil(mu_2 - 2 * f - ROUNDING) - 1)


def known_connectivity(neighbours: int, theirs: Collection[int], peers: int) -> float:
    """mu_2 as far as one node can tell: n where it seems to be in a full mesh, infinity where the graph is not known
    and only members can be counted.

    neighbours: how many the node has; theirs: how many each of them says it has; peers: how many others the node has
    heard of. In a full mesh each has as many as the node itself, and nobody has heard of anybody else.
    """
    if len(theirs) != neighbours:
        raise ValueError(f"{neighbours} neighbours cannot have told {len(theirs)} numbers")
    full = neighbours > 0 and peers <= neighbours and all(each == neighbours for each in theirs)
    return neighbours + 1.0 if full else math.inf


ROUNDING = 1e-9
"""Of an eigenvalue: mu_2 of a regular graph is often a whole number, and must not pass for a little more."""
