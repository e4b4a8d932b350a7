"""Kinds of runs by name: what `run = "..."` in a plan may say."""

from node.sweep.base import CellRunner
from node.sweep.scenario_cells import ScenarioCells
from node.sweep.swarm_cells import SwarmCells
from p2ptrain.registry import Registry

__all__ = ["RUNNERS"]

RUNNERS: Registry[CellRunner] = Registry("cell_runners")
for _member in (SwarmCells, ScenarioCells):
    RUNNERS.register(_member.name)(_member)
