"""Executors of heavy work, by name."""

from node.training.executors.base import Executor, SideWork
from node.training.executors.inline import InlineExecutor
from node.training.executors.thread import ThreadExecutor
from p2ptrain.registry import Registry

EXECUTORS: Registry[Executor] = Registry("executors")
EXECUTORS.register("thread")(ThreadExecutor)
EXECUTORS.register("process")(ThreadExecutor)
EXECUTORS.register("inline")(InlineExecutor)

__all__ = ["EXECUTORS", "Executor", "InlineExecutor", "SideWork", "ThreadExecutor"]
