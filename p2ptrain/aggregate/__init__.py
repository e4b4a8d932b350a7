"""Aggregators: n vectors in, one out, with a promise about how many of the n may lie. `base.py` has their contract.

    >>> import torch
    >>> from p2ptrain import aggregate
    >>> x_nd = torch.tensor([[1.0, 2.0], [2.0, 3.0], [3.0, 4.0], [4.0, 5.0], [1e30, -1e30]])
    >>> aggregate.get("trimmed_mean", f=1)(x_nd)
    tensor([3., 3.])
    >>> aggregate.get("nnm+krum", f=1)(x_nd)
    tensor([2.5000, 3.5000])
    >>> aggregate.get("nnm+krum", f=2)(x_nd)
    Traceback (most recent call last):
    ValueError: nnm+krum with f=2 needs 7 vectors or more, not 5

| rule              | needs n | withstands, as n grows | looks at        | weighted |
|-------------------|---------|------------------------|-----------------|----------|
| mean              | 1       | nobody                 | coordinates     | yes      |
| trimmed_mean      | 2f + 1  | 1/2                    | coordinates     | no       |
| median            | 2f + 1  | 1/2                    | coordinates     | no       |
| meamed            | 2f + 1  | 1/2                    | coordinates     | no       |
| krum              | 2f + 3  | 1/2                    | distances       | no       |
| multi_krum        | 2f + 3  | 1/2                    | distances       | no       |
| geometric_median  | 2f + 1  | 1/2                    | distances       | yes      |
| centered_clipping | 2f + 1  | 1/2                    | distances       | yes      |
| mda (f <= 16)     | 2f + 1  | 1/2                    | distances       | no       |
| faba              | 3f + 1  | 1/3                    | distances       | yes      |
| caf               | 2f + 1  | 1/2                    | distances       | no       |
| clipped_gossip    | 2f + 1  | 1/2, and the graph     | own row's       | yes      |
| cs_plus           | 2f + 2  | 1/2, and the graph     | own row's       | yes      |
| gts               | 2f + 1  | 1/2, and the graph     | own row's       | yes      |
| ios               | 3f + 1  | 1/3, and the graph     | own row's       | yes      |
| zeno              | f + 1   | all but one            | a loss it calls | no       |

Stages stand before a rule, joined by `+` (compose_rules.py): `nnm`, `bucketing`, and, from zero, `clipping` and `arc`.
"""

from p2ptrain.aggregate.arc import ARC
from p2ptrain.aggregate.base import Aggregator, Rows, Weighted
from p2ptrain.aggregate.bucketing import Bucketing
from p2ptrain.aggregate.caf import CAF
from p2ptrain.aggregate.centered_clipping import CenteredClipping
from p2ptrain.aggregate.clipped_gossip import ClippedGossip
from p2ptrain.aggregate.clipping import Clipping
from p2ptrain.aggregate.compose_rules import RuleCompositions, Stages
from p2ptrain.aggregate.cs_plus import CSPlus
from p2ptrain.aggregate.faba import FABA
from p2ptrain.aggregate.geometric_median import GeometricMedian
from p2ptrain.aggregate.gts import GTS
from p2ptrain.aggregate.ios import IOS
from p2ptrain.aggregate.krum import Krum, MultiKrum
from p2ptrain.aggregate.mda import MDA
from p2ptrain.aggregate.meamed import MeaMed
from p2ptrain.aggregate.mean import Mean
from p2ptrain.aggregate.median import Median
from p2ptrain.aggregate.nnm import NNM
from p2ptrain.aggregate.pre_aggregator import PreAggregator
from p2ptrain.aggregate.rule import Rule
from p2ptrain.aggregate.trimmed_mean import TrimmedMean
from p2ptrain.aggregate.zeno import Zeno

__all__ = [
    "AGGREGATORS",
    "PRE_AGGREGATORS",
    "Aggregator",
    "PreAggregator",
    "Rows",
    "Weighted",
    "check",
    "get",
    "names",
    "stages",
]

PRE_AGGREGATORS = Stages("pre_aggregators")
for _stage in (NNM, Bucketing, ARC, Clipping):
    PRE_AGGREGATORS.register(_stage.name)(_stage)

_RULES: tuple[type[Rule], ...] = (
    *(Mean, TrimmedMean, Median, MeaMed),
    *(Krum, MultiKrum, GeometricMedian, CenteredClipping, MDA, FABA, CAF),
    *(ClippedGossip, CSPlus, GTS, IOS),
    Zeno,
)
AGGREGATORS = RuleCompositions("aggregators", PRE_AGGREGATORS)
for _rule in _RULES:
    AGGREGATORS.register(_rule.name)(_rule)


def get(name: str, **options: object) -> Aggregator:
    """Return the aggregator `name`, for `f` liars: a rule, or a composition as `nnm+trimmed_mean`.

    Raises UnknownMemberError (a ValueError) that lists the names there are, and BadOptionError that lists the options.
    """
    return AGGREGATORS.get(name, **options)


def check(name: str) -> None:
    """UnknownMemberError unless `get` knows `name`; nothing is built."""
    AGGREGATORS.check(name)


def names() -> list[str]:
    """Every rule there is, plug-ins included, sorted. Stages may stand before them."""
    return AGGREGATORS.names()


def stages() -> list[str]:
    """Every pre-aggregator there is, plug-ins included, sorted."""
    return PRE_AGGREGATORS.names()
