"""The swarm that lies in a run folder: how many nodes, which of them lie, and with which settings `up` goes on."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.config.auto_rate import without_auto
from node.config.run_settings import Kept, attacks, kept_in, laid_over, names_in, of_node, refuse_changes, with_defaults
from node.config.toml_source import Raw, merge
from node.system.errors import UsageError
from node.system.run_dir import CHECKPOINTS
from node.training.checkpoint import CheckpointStore
from node.training.evaluation import load
from node.up.plan import Plan

DEFAULT_NODES: Final = 4
"""As `make up` shows: enough for one liar, and few enough for a laptop."""

_OURS: Final = re.compile(r"node-([0-9]{1,3})")


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a swarm is started with: `raw` are the settings of all nodes, the liars' attack included."""

    raw: Raw
    nodes: int = DEFAULT_NODES
    byzantine: int = 0
    trained: bool = False
    """Whether there is a checkpoint: then the arrangement is decided."""
    notes: tuple[str, ...] = ()


def start_in(run_dir: Path, given: Raw, *, nodes: int | None, byzantine: int | None) -> Start:
    """Return what is started in this folder: its own swarm with what was given over it, or a new one. Writes nothing.
    UsageError for what may not change, and for a folder of another kind of run."""
    kept = swarm_in(run_dir)
    if kept is None:
        return Start(raw=given, nodes=DEFAULT_NODES if nodes is None else nodes, byzantine=byzantine or 0)
    given = without_auto(given)
    if kept.trained:
        _refuse(run_dir, "--nodes", nodes, kept.nodes)
        _refuse(run_dir, "--byzantine", byzantine, kept.byzantine)
        refuse_changes(with_defaults(kept.raw), given, run_dir)
    liars = kept.byzantine if byzantine is None else byzantine
    raw = kept.raw if liars else {section: keys for section, keys in kept.raw.items() if section != "attack"}
    return Start(
        raw=laid_over(raw, given),
        nodes=kept.nodes if nodes is None else nodes,
        byzantine=liars,
        trained=kept.trained,
        notes=kept.notes,
    )


def swarm_in(run_dir: Path) -> Start | None:
    """Return the swarm that the nodes' folders describe; None where there is none. UsageError for the run of a single
    node."""
    names = names_in(run_dir)
    found = {int(match[1]): name for name in names if (match := _OURS.fullmatch(name))}
    kept = {index: its for index, name in sorted(found.items()) if (its := kept_in(run_dir / name)) is not None}
    if names and not found:
        message = f"{run_dir} has the run of the node {names[0]}, not one of `up`"
        raise UsageError(message, f"go on with `p2ptrain node --run-dir {run_dir}`, or give another --run-dir")
    return arranged(kept) if kept else None


def arranged(kept: dict[int, Kept]) -> Start:
    """Return the swarm of these nodes, of which some may be missing, by index. The last of a swarm's nodes lie. Where
    some have checkpoints, these decide: an older release may have put more nodes beside them."""
    first = kept[min(kept, key=lambda index: (not kept[index].trained, index))].raw
    count = _count(first) or 1 + max(kept)
    liars = [index for index, its in kept.items() if index < count and attacks(its.raw)]
    raw: Raw = {}
    merge(raw, first)
    raw.pop("attack", None)
    if liars:
        raw["attack"] = dict(kept[liars[0]].raw["attack"])
    return Start(
        raw=raw,
        nodes=count,
        byzantine=count - min(liars) if liars else 0,
        trained=any(its.trained for its in kept.values()),
        notes=tuple(note for its in kept.values() for note in its.notes),
    )


def check_fits(plan: Plan) -> None:
    """Raise UsageError where a node's checkpoint is of another run than the plan's, RunError where its model is of
    another size than the task makes by now. To be called before anything is written."""
    for node in plan.nodes:
        of_node(plan.run_dir / node.name, node.config.model_dump(mode="json", exclude_none=True))
    stores = (CheckpointStore(plan.run_dir / node.name / CHECKPOINTS) for node in plan.nodes)
    newest = next((found for store in stores if (found := store.newest()) is not None), None)
    if newest is not None:
        load(newest)


def _count(raw: Raw) -> int:
    """The nodes that a node's own settings tell of: each has a part of the data. 0: they do not tell."""
    node = raw.get("node")
    count = node.get("shard_count") if isinstance(node, dict) else None
    return count if isinstance(count, int) else 0


def _refuse(run_dir: Path, option: str, given: int | None, kept: int) -> None:
    if given is not None and given != kept:
        raise UsageError(
            f"{option} {given} cannot change in the run in {run_dir}: there it is {kept}",
            "leave it out to go on, or begin another run with another --run-dir",
        )
