"""Cross-site evaluation: every member's model on every member's own test split.

All of it is computed here, from the run's folders: the models of the newest checkpoints that belong together, and the
splits that the task names by shard. Nothing of it was ever sent. Where the data are dealt unequally a split may lack
classes, and what a model would do with these is not to be seen in it: the table of the splits says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch
from torch import nn

from node.config.run_settings import known_part
from node.config.schema import from_raw
from node.reporting.document import Cell, DataTable, Format, Section
from node.roles.assembly import own_data
from node.system.errors import UsageError
from node.system.text import plural
from node.training.evaluation import LoadedModel, build_models, find_models
from p2ptrain.saved.models import PERSONAL, PERSONAL_UNTRAINED, SavedModel
from p2ptrain.tasks import Shard, Task
from p2ptrain.tasks.base import Batch, HoldsOutOwn
from p2ptrain.tasks.batches import pair_of
from p2ptrain.training.evaluator import are_logits

MAX_SITES: Final = 24
"""Members in a table, each a column: as wide as a screen shows. The work grows by the square. Chosen."""

MAX_CLASSES: Final = 64
"""Classes of a task up to which it is said which ones a split lacks. Chosen."""

OWN_MODEL, PERSONAL_MODEL = "The model of each member", "The personal model of each member"


@dataclass(frozen=True, kw_only=True)
class TestSplit:
    """What a member holds out for itself."""

    node: str
    batches: Sequence[Batch]
    counts: Mapping[int, int]
    """Targets by class; empty for a task without few classes."""
    predictions: int


@dataclass(frozen=True, kw_only=True)
class CrossSite:
    """The models of some members (rows) on the splits of the same ones (columns)."""

    metric: str
    splits: Sequence[TestSplit]
    losses: Mapping[str, Sequence[Sequence[float | None]]]
    """By kind of model; None: the split is empty, or the loss is not finite."""
    accuracies: Mapping[str, Sequence[Sequence[float | None]]]
    """The same, as shares; no kind where the model gives no logits."""
    round: int
    left_out: Sequence[str]

    @property
    def classes(self) -> list[int]:
        """Return the classes that some split has."""
        return sorted({label for split in self.splits for label in split.counts})

    def lacking(self, split: TestSplit) -> list[int]:
        """Return the classes that the split has no example of."""
        return [label for label in self.classes if not split.counts.get(label)]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "metric": self.metric,
            "round": self.round,
            "members": [split.node for split in self.splits],
            "splits": [
                {"predictions": each.predictions, "classes": dict(each.counts), "lacking": self.lacking(each)}
                for each in self.splits
            ],
            "losses": {kind: [list(row) for row in rows] for kind, rows in self.losses.items()},
            "accuracies": {kind: [list(row) for row in rows] for kind, rows in self.accuracies.items()},
            "left_out": list(self.left_out),
        }


def cross_site(run: Path, *, tell: Callable[[str], None] = lambda line: None) -> CrossSite:
    """Measure the models of a run's folder. Raises RunError where there are none, UsageError for a task that holds
    nothing out shard by shard."""
    found = find_models(run)
    saved = found.models[:MAX_SITES]
    left_out = [*found.left_out, *(f"{each.node}: {MAX_SITES} is the most" for each in found.models[MAX_SITES:])]
    loaded = build_models(type(found)(models=tuple(saved)))
    task, examples = loaded[0].task, loaded[0].trainer.config.eval_examples
    if not isinstance(task, HoldsOutOwn):
        raise UsageError(f"the task {task.name} holds nothing out shard by shard", "give it shard_eval_batches()")
    splits = [_split(task, each, task.shard_eval_batches(_shard_of(each), examples)) for each in saved]
    if not any(split.batches for split in splits):
        raise UsageError(f"no member's shard of {task.name} has a test split of its own", "its data are dealt alike")
    losses: dict[str, list[list[float | None]]] = {}
    accuracies: dict[str, list[list[float | None]]] = {}
    for one, model in zip(saved, loaded, strict=True):
        tell(f"measuring the model of {one.node} on {plural(len(splits), 'split')}")
        for kind, module in _modules(one, model):
            row = [_measured(task, module, split) for split in splits]
            losses.setdefault(kind, []).append([loss for loss, _ in row])
            accuracies.setdefault(kind, []).append([share for _, share in row])
    told = {kind: rows for kind, rows in accuracies.items() if any(each is not None for row in rows for each in row)}
    whole = {kind: rows for kind, rows in losses.items() if len(rows) == len(splits)}
    if len(whole) < len(losses):
        left_out.append("personal models: not every member has one")
    return CrossSite(
        metric=task.metric,
        splits=splits,
        losses=whole,
        accuracies={kind: rows for kind, rows in told.items() if kind in whole},
        round=found.round,
        left_out=left_out,
    )


def _shard_of(saved: SavedModel) -> Shard:
    shard, _ = own_data(from_raw(known_part(saved.meta["config"])), str(saved.meta.get("peer_id", "")))
    return shard


def _split(task: Task, saved: SavedModel, batches: Sequence[Batch]) -> TestSplit:
    counts: dict[int, int] = {}
    for batch in batches:
        pair = pair_of(batch)
        if pair is not None and not pair[1].is_floating_point():
            labels, numbers = torch.unique(pair[1][pair[1] >= 0], return_counts=True)
            for label, number in zip(labels.tolist(), numbers.tolist(), strict=True):
                counts[label] = counts.get(label, 0) + number
    return TestSplit(
        node=saved.node,
        batches=batches,
        counts=counts if len(counts) <= MAX_CLASSES else {},
        predictions=sum(task.tokens(batch) for batch in batches),
    )


def _modules(saved: SavedModel, model: LoadedModel) -> list[tuple[str, nn.Module]]:
    """The member's models in eval mode, by kind: with local parameters of its own, where it has any."""
    found = [(OWN_MODEL, model.trainer.model_with(model.vector_d))]
    if PERSONAL in saved.tensors:
        own = {
            name.removeprefix(PERSONAL_UNTRAINED): value
            for name, value in saved.tensors.items()
            if name.startswith(PERSONAL_UNTRAINED)
        }
        model.trainer.load_untrained(own)
        found.append((PERSONAL_MODEL, model.trainer.model_with(saved.tensors[PERSONAL])))
    return found


@torch.no_grad()
def _measured(task: Task, module: nn.Module, split: TestSplit) -> tuple[float | None, float | None]:
    """The mean loss, where it is finite, and the share of targets that have the largest logit."""
    if not split.batches:
        return None, None
    total, right, predicted = 0.0, 0, 0
    for batch in split.batches:
        total += float(task.loss(module, batch)) * task.tokens(batch)
        pair = pair_of(batch)
        if pair is not None:
            outputs = module(pair[0])
            logits = getattr(outputs, "logits", outputs)
            if are_logits(logits, pair[1]):
                counted = pair[1] >= 0  # others stand for predictions that do not count
                right += int((logits.argmax(-1) == pair[1])[counted].sum())
                predicted += int(counted.sum())
    loss = total / max(1, split.predictions)
    return loss if math.isfinite(loss) else None, right / predicted if predicted else None


def cross_site_section(found: CrossSite, *, run: str = "", number: int = 0) -> Section:
    """Return the report's section."""
    tables = [
        _table(found, kind, found.accuracies.get(kind, rows), "share" if kind in found.accuracies else "plain")
        for kind, rows in found.losses.items()
    ]
    return Section(
        id=f"cross-site-{number}",
        title="Cross-site evaluation" + (f" of {run}" if run else ""),
        note=f"Models of round {found.round} on the members' own test splits, computed from their folders."
        + "".join(f" Left out: {each}." for each in found.left_out),
        tables=[*tables, _splits_table(found)],
    )


def _table(found: CrossSite, kind: str, rows: Sequence[Sequence[float | None]], format: Format) -> DataTable:
    names = [split.node for split in found.splits]
    cells: list[list[Cell]] = []
    for place, (name, row) in enumerate(zip(names, rows, strict=True)):
        others = [value for other, value in enumerate(row) if other != place and value is not None]
        cells.append([name, row[place], fmean(others) if others else None, *row])
    unit = "share of right predictions" if format == "share" else found.metric
    return DataTable(
        title=f"{kind}, {unit}",
        columns=["Model of", "Own split", "Mean of others'", *names],
        formats=["text", format, format, *(format for _ in names)],
        rows=cells,
    )


def _splits_table(found: CrossSite) -> DataTable:
    return DataTable(
        title="Test splits",
        columns=["Member", "Predictions", "Classes that it lacks"],
        formats=["text", "count", "text"],
        rows=[
            [each.node, each.predictions, ", ".join(map(str, found.lacking(each))) or "none"] for each in found.splits
        ],
        note="What a model does with a class that a split lacks is not to be seen in that split.",
    )


def cross_site_lines(section: Section) -> list[str]:
    """Return the section's tables as text."""
    lines: list[str] = []
    for table in section.tables:
        written = [list(map(str, table.columns))]
        written += [[_written(cell, kind) for cell, kind in zip(row, table.formats, strict=True)] for row in table.rows]
        widths = [max(map(len, column)) for column in zip(*written, strict=True)]
        lines.append(table.title)
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in written
        ]
    return lines


def _written(cell: Cell, format: Format) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{100 * cell:.1f}%" if format == "share" else f"{cell:.3f}"
    return str(cell)
