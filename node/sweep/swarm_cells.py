"""Cells that are simulated swarms without a network: `node/bench/swarm`, round by round in one process."""

from typing import Any

from node.bench.swarm.measure import measure
from node.bench.swarm.run_spec import SECTIONS, SWARM, Document, Grid, RunSpec, Shape, baseline
from node.config.toml_source import Raw
from node.events.sent_bits import BITS
from node.sweep.base import CellRow, Settings
from node.system.errors import UsageError

OWN = ("kind", "steps")
"""Keys of `swarm.` that are no shape: the kind of run (swarm, alone, synchronous), and inner steps in place of rounds,
for several lengths of round."""


class SwarmCells:
    """A swarm of up to 64 nodes: sections task, train, sync, attack, and `swarm` with nodes, graph, degree, byzantine,
    late_steps, kind and steps."""

    name = "swarm"

    def document(self, settings: Settings, seed: int) -> Document:
        """Return the run's document, with how often its curve is measured."""
        recipe = _recipe(settings, seed)
        return {**recipe.document(), "eval_every": recipe.config.train.eval_every}

    def run(self, settings: Settings, seed: int) -> CellRow:
        """Carry out the run. `curve` has inner steps, bytes sent by a node, and the loss of the nodes' mean model."""
        recipe = _recipe(settings, seed)
        row = measure(recipe)
        whole = row["parameters"] * row["steps"] / BITS
        curve = [[step, bits * row["parameters"] / BITS, loss] for step, bits, loss in row["curve"]]
        return {
            **row,
            "loss": row["eval_loss"],
            "sent_bytes": row["sent_bits"] * whole,
            "published_bytes": row["published_bits"] * whole,
            "seconds": None,
            "curve": curve,
        }


def _recipe(settings: Settings, seed: int) -> RunSpec:
    """One thread on the CPU unless the settings say something else, as in the benches."""
    base: Raw = {"train": {"threads": 1, "device": "cpu"}}
    own: dict[str, Any] = {}
    shape: dict[str, Any] = {}
    for dotted, value in settings.items():
        section, _, key = dotted.partition(".")
        if section == SWARM:
            (own if key in OWN else shape)[key] = value
        elif section in SECTIONS:
            base.setdefault(section, {})[key] = value
        else:
            raise UsageError(f"{dotted} is no setting of a swarm", f"sections are {', '.join((*SECTIONS, SWARM))}")
    kind, steps = own.get("kind", "swarm"), own.get("steps")
    if kind not in ("swarm", "alone", "synchronous"):
        raise UsageError(f"swarm.kind {kind!r} is no kind of run", "swarm, alone or synchronous")
    if steps is not None and (type(steps) is not int or steps < 1):
        raise UsageError(f"swarm.steps must be a number of inner steps, not {steps!r}")
    if unknown := sorted(set(shape) - set(Shape.__dataclass_fields__)):
        raise UsageError(
            f"swarm.{unknown[0]} is no setting", f"there are: {', '.join((*Shape.__dataclass_fields__, *OWN))}"
        )
    nodes = shape.get("nodes", Shape.nodes)
    if type(nodes) is not int:
        raise UsageError(f"swarm.nodes must be a whole number, not {nodes!r}")
    around = Shape(**{"degree": max(1, min(Shape.degree, nodes - 1)), **shape})
    grid = Grid(
        base=base, shape=around, axes={("train", "seed"): [seed]}, steps=steps, f_follows="sync.f" not in settings
    )
    refused: dict[str, str] = {}
    for recipe in grid.recipes(refused):
        return recipe if kind == "swarm" else baseline(recipe, kind)
    raise ValueError(next(iter(refused.values())))
