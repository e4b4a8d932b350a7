"""Executors of heavy work, by name."""

from node.training.executors.base import Executor
from node.training.executors.inline import InlineExecutor
from node.training.executors.thread import ThreadExecutor
from p2ptrain.registry import Registry

LANES: Registry[Executor] = Registry("lanes")
LANES.register("thread")(ThreadExecutor)
LANES.register("inline")(InlineExecutor)

__all__ = ["LANES", "Executor", "InlineExecutor", "ThreadExecutor"]
