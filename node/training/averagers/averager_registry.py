"""All averagers by name. `base.py` has their contract."""

from node.training.averagers.allreduce_averager import AllReduceAverager
from node.training.averagers.base import Averager
from node.training.averagers.gossip_averager import GossipAverager
from node.training.averagers.secure_averager import SecureAverager
from p2ptrain.registry import Registry

__all__ = ["AVERAGERS", "AllReduceAverager", "Averager", "GossipAverager", "SecureAverager"]

AVERAGERS: Registry[Averager] = Registry("averagers")
"""Averager factories by `StrategySpec.averager`. A factory takes the keyword `strategy`. It raises ValueError for a
strategy whose rounds it cannot close."""

AVERAGERS.register("gossip")(GossipAverager)
AVERAGERS.register("allreduce")(AllReduceAverager)
AVERAGERS.register("secure")(SecureAverager)
