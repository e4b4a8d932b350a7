"""Plays a scenario in the mode that it names."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from node.simulation.scenario_file import LoadedScenario

if TYPE_CHECKING:
    from node.simulation.large.large_swarm import LargeSwarm
    from node.simulation.twin import Twin
    from node.simulation.verdict import Course


def check_course(loaded: LoadedScenario) -> None:
    """Raise UsageError for what the scenario's mode has not, before anything is written."""
    if loaded.scenario.mode == "large":
        from node.simulation.large.large import check_large

        check_large(loaded)
    else:
        from node.simulation.twin import check

        check(loaded)


def play_course(
    loaded: LoadedScenario,
    folder: Path | None = None,
    *,
    faithful: "Callable[[Twin], None] | None" = None,
    large: "Callable[[LargeSwarm], None] | None" = None,
) -> "Course":
    """Simulate it. `folder`: where the nodes' folders are left; None: nowhere. `faithful`, `large`: called as it goes
    on, in that mode. Raises UsageError, RunError."""
    if loaded.scenario.mode == "large":
        from node.simulation.large.large import play_large

        return play_large(loaded, large, folder=folder)
    from node.simulation.twin import play

    return play(loaded, folder=folder, progress=faithful)
