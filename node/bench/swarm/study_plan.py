"""What was asked for as a study: lists of names and numbers become recipes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.bench.swarm.run_spec import DEGREE, NO_ATTACK, SWARM, Grid, RunSpec, Shape, parse_axis
from node.config.toml_source import Raw, drop_options_of_other_names, merge, parse_set, read_file
from node.system.errors import UsageError

OWN = "own"
"""Stands for what the configuration says: the default, which may be the strategy's own choice."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The choices of a study. Every list multiplies the runs."""

    strategies: Sequence[str] = (OWN,)
    compressors: Sequence[str] = (OWN,)
    aggregators: Sequence[str] = (OWN,)
    attacks: Sequence[str] = (NO_ATTACK,)
    byzantine: Sequence[int] = (0,)
    seeds: Sequence[int] = (0,)
    partitions: Sequence[str] = ()
    vary: Sequence[str] = ()
    """More lists, each as `section.key=a,b,c`."""
    nodes: int = 8
    degree: int | None = None
    """None: DEGREE, or as many as there are."""
    graph: str = "regular"
    late_steps: int = 0
    steps: int | None = None
    preset: Raw = field(default_factory=dict)
    """Settings to which files, `sets` and `flags` are added, each over those before it."""
    files: Sequence[Path] = ()
    sets: Sequence[str] = ()
    flags: Raw = field(default_factory=dict)

    def recipes(self, refused: dict[str, str]) -> list[RunSpec]:
        """Return every run asked for, seeds outermost, so that an unfinished study has something of everything.

        Combinations that cannot be go to `refused`, with why. UsageError when not one can.
        """
        if self.attacks != (NO_ATTACK,) and list(self.attacks) != [NO_ATTACK] and not any(self.byzantine):
            raise UsageError("attacks need nodes that carry them out", "add --byzantine 1")
        degree = min(DEGREE, self.nodes - 1) if self.degree is None else self.degree
        shape = Shape(nodes=self.nodes, degree=degree, graph=self.graph, late_steps=self.late_steps)
        base = self._base()
        held = "f" not in base.get("sync", {})
        grid = Grid(base=base, shape=shape, axes=self._axes(), steps=self.steps, f_follows=held)
        found = list(grid.recipes(refused))
        if not found:
            raise UsageError(next(iter(refused.values())))
        return found

    def _base(self) -> Raw:
        """One thread on the CPU unless something else is asked for; the rest as for a node."""
        raw: Raw = {"train": {"threads": 1, "device": "cpu"}}
        layers = [self.preset, *map(read_file, self.files), *map(_one, self.sets), self.flags]
        for layer in layers:
            drop_options_of_other_names(raw, layer)
            merge(raw, layer)
        return raw

    def _axes(self) -> dict[tuple[str, str], Sequence[Any]]:
        axes: dict[tuple[str, str], Sequence[Any]] = {("train", "seed"): self.seeds}
        if self.partitions:
            axes["task", "partition"] = self.partitions
        axes |= dict(map(parse_axis, self.vary))
        for key, names in (
            ("strategy", self.strategies),
            ("compressor", self.compressors),
            ("aggregator", self.aggregators),
        ):
            axes["sync", key] = [None if name == OWN else name for name in names]
        return axes | {(SWARM, "byzantine"): self.byzantine, ("attack", "name"): self.attacks}


def _one(text: str) -> Raw:
    section, key, value = parse_set(text)
    return {section: {key: value}}
