"""Who is whose neighbour. All graphs are undirected, connected, and the same for the same arguments.

`regular`: every node has `degree` neighbours, at distances of 1 and growing geometrically round a circle of the nodes:
    as in an exponential graph (2110.13363), few hops lead anywhere. The nodes stand on the circle in an order drawn
    from the seed, so that liars, who are the last of them, are not each other's neighbours by construction.
`dumbbell`: two full halves and one edge between them, the least that still connects them: the hard case of He,
    Karimireddy and Jaggi (2202.01545). Even nodes are one half, odd ones the other; nodes 0 and 1 are the bridge. Liars
    know nobody but the end of the bridge on their side, where they do most harm.
"""

import random

REGULAR = "regular"
GRAPHS = (REGULAR, "dumbbell")

Neighbours = list[frozenset[int]]


def build(graph: str, nodes: int, degree: int, seed: int, liars: int = 0) -> Neighbours:
    """Return the neighbours of each node; the last `liars` of them are liars. ValueError on a graph that cannot be."""
    if graph == "dumbbell":
        return _dumbbell(nodes, liars)
    if graph == REGULAR:
        return _regular(nodes, degree, seed)
    raise ValueError(f"unknown graph {graph!r}; there are: {', '.join(GRAPHS)}")


def _regular(nodes: int, degree: int, seed: int) -> Neighbours:
    if nodes > 1 and not 0 < degree < nodes:
        raise ValueError(f"degree must be between 1 and {nodes - 1} for {nodes} nodes, not {degree}")
    if nodes > 2 and degree == 1:
        raise ValueError("degree 1 leaves pairs that no path connects: 2 or more")
    if nodes * degree % 2 and nodes > 1:
        raise ValueError(f"{nodes} nodes cannot have {degree} neighbours each: one of the two must be even")
    order = list(range(nodes))
    random.Random(seed).shuffle(order)
    places = {node: place for place, node in enumerate(order)}
    steps = _steps(nodes, degree) if nodes > 1 else set()
    return [
        frozenset(order[(places[node] + step) % nodes] for step in steps | {-step for step in steps})
        for node in range(nodes)
    ]


def _steps(nodes: int, degree: int) -> set[int]:
    """Distances to one side: `degree // 2` below half the circle, 1 among them, and half of it for an odd degree."""
    half, wanted = nodes / 2, degree // 2
    below = range(1, (nodes + 1) // 2)
    chosen: set[int] = set()
    for index in range(wanted):
        ideal = half ** (index / wanted)
        chosen.add(min((step for step in below if step not in chosen), key=lambda step: (abs(step - ideal), step)))
    return chosen | ({nodes // 2} if degree % 2 else set())


def _dumbbell(nodes: int, liars: int) -> Neighbours:
    honest = nodes - liars
    if honest < 4 or honest % 2:
        raise ValueError(f"a dumbbell takes an even number of honest nodes, 4 or more, not {honest}")
    sides = [set(range(side, honest, 2)) for side in range(2)]
    found = [sides[node % 2] - {node} for node in range(honest)] + [{node % 2} for node in range(honest, nodes)]
    for bridge in range(2):
        found[bridge] |= {1 - bridge, *range(honest + bridge, nodes, 2)}
    return [frozenset(each) for each in found]
