"""Writes the reference tables of docs/ from the code: `make reference`.

A table stands between `<!-- generated: NAME -->` and `<!-- /generated -->`. What is between them is replaced, and all
else stays. tests/test_reference_tables.py holds the committed pages to this script.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from node.config.commented_toml import field_texts
from node.config.schema import Config
from node.exporters import EXPORTERS
from node.metrics.declared import METRICS, Metric, NoPanel
from node.participation import PARTICIPATION
from node.selection import SELECTION
from node.shift import SHIFT_DETECTORS
from node.system import errors
from node.system.script_end import ended_in_a_line
from p2ptrain import aggregate, compress
from p2ptrain.aggregate import AGGREGATORS, PRE_AGGREGATORS, Weighted
from p2ptrain.attacks import ATTACKS
from p2ptrain.compress import COMPRESSORS
from p2ptrain.drift import DRIFT
from p2ptrain.inner import INNER
from p2ptrain.outer import OUTER
from p2ptrain.privacy import PRIVATIZERS
from p2ptrain.registry import Registry
from p2ptrain.step_normalization import STEP_NORMALIZATIONS
from p2ptrain.step_schedules import STEP_SCHEDULES
from p2ptrain.sync import SYNC_STRATEGIES
from p2ptrain.tasks import TASKS

DOCS = Path(__file__).resolve().parents[1] / "docs"
NUMEL = 1 << 18
"""Parameters of the vector that codecs are weighed on: as in docs/methods.md, many blocks of every codec."""

IN_PYTHON = {"f", "score", "inner", "ladder", "generator"}
"""Options that no file can give: objects, and f, which has a setting of its own."""

VARIES = {"adaptive", "lossless"}
"""Codecs whose payload's size depends on the link, or on the values and the machine's zlib."""

_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; an empty line before and after it."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([_cell(each) for each in row] for row in rows)]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def code(value: object) -> str:
    """A value as it stands in a TOML file; `none` where it is not set."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, list | tuple):
        return f"`[{', '.join(code(each).strip('`') for each in value)}]`"
    return f"`{value}`"


def options(factory: Callable[..., object]) -> str:
    """The keyword options of a member with their defaults."""
    told = []
    for each in inspect.signature(factory).parameters.values():
        if each.name in IN_PYTHON or each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            continue
        default = "needed" if each.default is each.empty else code(each.default)
        told.append(f"`{each.name}` ({default})")
    return ", ".join(told)


def own(registry: Registry[Any]) -> list[str]:
    """The built-in members, without those of packages that happen to be installed."""
    return sorted(registry._factories)


def settings() -> str:
    """Every key that may be set, by section."""
    config, text = Config(), ""
    for section in Config.model_fields:
        part = getattr(config, section)
        if not is_dataclass(part):
            continue
        about = field_texts(type(part))
        rows = [
            (f"`{section}.{each.name}`", code(getattr(part, each.name)), about.get(each.name, ""))
            for each in fields(part)
        ]
        text += table(("setting", "default", "meaning"), rows)
    return text


def aggregators() -> str:
    """Rules, then stages."""
    rows = []
    for name in own(AGGREGATORS):
        needs = "score" in inspect.signature(AGGREGATORS.factory(name)).parameters
        given = {"score": torch.linalg.vector_norm} if needs else {}
        rules = [aggregate.get(name, f=f, **given) for f in (1, 2, 3)]
        rows.append(
            (
                f"`{name}`",
                ", ".join(str(rule.minimum()) for rule in rules),
                f"{rules[0].breakdown:.2g}",
                "yes" if isinstance(rules[0], Weighted) else "no",
                options(AGGREGATORS.factory(name)),
            )
        )
    stages = [(f"`{name}+`", options(PRE_AGGREGATORS.factory(name))) for name in own(PRE_AGGREGATORS)]
    head = ("rule", "needs n at f = 1, 2, 3", "breakdown point", "weighted", "options")
    return table(head, rows) + table(("stage before a rule", "options"), stages)


def compressors() -> str:
    """Bits a value, gamma and options; a stage alone has no size."""
    x_d = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0))
    rows = []
    for name in own(COMPRESSORS):
        codec = compress.get(name)
        rows.append(
            (
                f"`{name}`",
                "varies" if name in VARIES else f"{8 * len(codec.encode(x_d)) / NUMEL:.2f}",
                f"{codec.gamma:.2f}",
                options(COMPRESSORS.factory(name)),
            )
        )
    return table(("codec", "bits a value", "gamma", "options"), rows)


def strategies() -> str:
    """The parts that each strategy has where nothing is set."""
    rows = []
    for name in own(SYNC_STRATEGIES):
        spec = SYNC_STRATEGIES.get(name)
        codec = spec.compressor + "".join(f", {key} {code(value)}" for key, value in spec.codec_options.items())
        told = options(SYNC_STRATEGIES.factory(name))
        rows.append(
            (f"`{name}`", codec, f"{spec.aggregator}, f = {spec.f}", spec.outer, f"{spec.staleness_exponent:g}", told)
        )
    return table(("strategy", "compressor", "aggregator", "outer", "staleness exponent", "options"), rows)


def members() -> str:
    """The members of all other extension points, with their options."""
    points: dict[str, Registry[Any]] = {
        "outer optimizer (`sync.outer`)": OUTER,
        "inner optimizer (`train.optimizer`)": INNER,
        "drift correction (`train.drift`)": DRIFT,
        "step schedule (`train.inner_steps_schedule`)": STEP_SCHEDULES,
        "step normalization (`train.step_normalization`)": STEP_NORMALIZATIONS,
        "task (`task.name`)": TASKS,
        "attack (`attack.name`)": ATTACKS,
        "privatizer (`privacy.privatizer`)": PRIVATIZERS,
        "participation (`participation.policy`)": PARTICIPATION,
        "selection (`selection.policy`)": SELECTION,
        "shift detector (`shift.detector`)": SHIFT_DETECTORS,
        "exporter (`monitoring.exporters`)": EXPORTERS,
    }
    rows = [
        (point, f"`{name}`", "" if registry is EXPORTERS else options(registry.factory(name)))
        for point, registry in points.items()
        for name in own(registry)
    ]
    return table(("point", "member", "options"), rows)


def metrics() -> str:
    """Every metric, as it is declared, with the panel that shows it."""
    head = ("metric", "type", "meaning", "when it looks wrong", "panel")
    return table(head, [(f"`{each.full_name}`", *_told_of(each)) for each in METRICS])


def _told_of(metric: Metric) -> tuple[str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    kind = f"{metric.kind}, by {labels}" if labels else metric.kind
    meaning = metric.page or metric.help[0].lower() + metric.help[1:].rstrip(".")
    panel = f"none: {metric.panel.why}" if isinstance(metric.panel, NoPanel) else metric.panel
    return kind, meaning, metric.wrong, panel


def exit_codes() -> str:
    """What a command's exit code says."""
    rows = [
        (0, "success"),
        (errors.EXIT_FAILED, "it could not start or go on (`RunError`)"),
        (errors.EXIT_USAGE, "a mistake in the command or the configuration (`UsageError`)"),
        (errors.EXIT_INTERRUPTED, "interrupted, as by Ctrl-C"),
    ]
    return table(("code", "meaning"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "aggregators": aggregators,
    "compressors": compressors,
    "strategies": strategies,
    "members": members,
    "exit-codes": exit_codes,
    "metrics": metrics,
}


def filled(page: str) -> str:
    """The page with its tables as they are now. KeyError for a name that is none of TABLES."""
    return _BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}", page)


def pages() -> dict[Path, str]:
    """Every page that has such a table, as it should be."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
    return {path: filled(text) for path, text in texts.items() if _BLOCK.search(text)}


if __name__ == "__main__":
    with ended_in_a_line():
        for path, text in pages().items():
            path.write_text(text, encoding="utf-8")
