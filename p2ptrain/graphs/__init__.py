"""Graphs that change from round to round: who averages with whom, by which weights. `base.py` has their contract.

| graph                | partners       | exact after a pass     | rounds of a pass, n members | an exchange can do it |
|----------------------|----------------|------------------------|-----------------------------|-----------------------|
| grid                 | group - 1      | n = group^(d-1) k      | d = ceil(log_group n)       | yes                   |
| base                 | group - 1      | any n                  | <= 2 log_group n + 2        | yes, by steps         |
| exponential          | 1              | n = 2^m                | ceil(log_2 n)               | yes                   |
| matching             | 1              | never                  | 1                           | yes                   |
| directed_exponential | 1, one way     | n = 2^m                | ceil(log_2 n)               | no                    |
| null_cascade         | 2              | any n, begun anywhere  | <= n // 2                   | no                    |
"""

from p2ptrain.graphs.base import Form, Graph, Mixing
from p2ptrain.graphs.base_graph import BaseGraph
from p2ptrain.graphs.directed_exponential import DirectedExponentialGraph
from p2ptrain.graphs.exchange_groups import ExchangeGroup, group_in
from p2ptrain.graphs.exponential import ExponentialGraph
from p2ptrain.graphs.grid import GridGraph
from p2ptrain.graphs.matching import RandomMatching
from p2ptrain.graphs.null_cascade import NullCascade
from p2ptrain.graphs.passes import mixing_at
from p2ptrain.registry import Registry

__all__ = ["GRAPHS", "ExchangeGroup", "Form", "Graph", "Mixing", "get", "group_in", "mixing_at", "names"]

GRAPHS: Registry[Graph] = Registry("graphs")
for _member in (BaseGraph, DirectedExponentialGraph, ExponentialGraph, GridGraph, NullCascade, RandomMatching):
    GRAPHS.register(_member.name)(_member)


def get(name: str, **options: object) -> Graph:
    """Return the graph `name`. Raises UnknownMemberError (a ValueError) that lists the names there are."""
    return GRAPHS.get(name, **options)


def names() -> list[str]:
    """Every graph there is, plug-ins included, sorted."""
    return GRAPHS.names()
