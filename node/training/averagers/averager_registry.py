"""All averagers by name. `base.py` has their contract."""

from node.training.averagers.allreduce_averager import AllReduceAverager
from node.training.averagers.base import Averager
from node.training.averagers.gossip_averager import GossipAverager
from p2ptrain.registry import Registry

__all__ = ["AVERAGERS", "AllReduceAverager", "Averager", "GossipAverager"]

AVERAGERS: Registry[Averager] = Registry("averagers")
"""By `StrategySpec.averager`. A factory takes the keyword `strategy`, and raises ValueError on one that it cannot
close rounds of."""

AVERAGERS.register("gossip")(GossipAverager)
AVERAGERS.register("allreduce")(AllReduceAverager)
