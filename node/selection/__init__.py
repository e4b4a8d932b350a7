"""Whose updates a node fetches first, where its link does not carry those of all neighbours: policies by name."""

from typing import Final

from node.selection.base import SelectionPolicy
from node.selection.policies.nearest import Nearest
from node.selection.policies.random_draw import RandomDraw
from node.selection.policies.useful import Useful
from p2ptrain.registry import Registry

SELECTION: Final[Registry[SelectionPolicy]] = Registry("selection")
SELECTION.register("random")(RandomDraw)
SELECTION.register("nearest")(Nearest)
SELECTION.register("useful")(Useful)

__all__ = ["SELECTION", "SelectionPolicy"]
