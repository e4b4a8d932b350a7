"""What the dashboards and alerts of monitoring/ ask of Prometheus, taken apart: metrics, labels, and labels' values."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

MONITORING = Path(__file__).parents[1] / "monitoring"
ALERTS = (MONITORING / "alerts.yml").read_text(encoding="utf-8")

OF_TARGETS = {"swarm", "run", "node", "instance", "job"}
"""Labels that every scraped series has: ours of the targets file, and Prometheus' own."""
OF_PROMETHEUS = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}
"""Series that it makes itself."""

_SELECTOR = re.compile(r"\b(p2ptrain_\w+|up|ALERTS)(?:\{([^}]*)\})?(?![\w\"|])")
_MATCHER = re.compile(r'(\w+)(=~|=|!=|!~)"([^"]*)"')


@dataclass(frozen=True)
class Question:
    """One query of a panel, or an alert's expression; `shown`: labels that its legend or its words name."""

    asker: str
    expr: str
    shown: frozenset[str]
    may_be_empty: bool = True

    @property
    def selectors(self) -> list[tuple[str, dict[str, set[str]]]]:
        """Each metric, with the values that are asked of its labels (none where any will do)."""
        found = []
        for name, inside in _SELECTOR.findall(self.expr):
            wanted = {
                label: set(value.split("|")) if how in {"=", "=~"} else set()
                for label, how, value in _MATCHER.findall(inside)
            }
            found.append((name, wanted))
        return found

    @property
    def grouped(self) -> set[str]:
        """Labels of `by`, `on` and the like."""
        inside = re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", self.expr)
        return {label.strip() for labels in inside for label in labels.split(",") if label.strip()}


def script(name: str) -> ModuleType:
    """A module of monitoring/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, MONITORING / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def panels() -> list[Question]:
    """Every query of every panel."""
    return [
        Question(
            f"{dashboard.title}: {panel.title}",
            query.expr,
            frozenset(re.findall(r"\{\{(\w+)\}\}", query.legend)),
            bool(panel.empty),
        )
        for dashboard in script("make_dashboards").ALL
        for panel in dashboard.panels
        for query in panel.queries
    ]


def alerts() -> list[Question]:
    """Every alert."""
    return [
        Question(
            re.search(r"- alert: (\w+)", rule)[1],
            re.search(r"expr: (.*)", rule)[1],
            frozenset(re.findall(r"\$labels\.(\w+)", rule)),
        )
        for rule in re.split(r"(?=- alert:)", ALERTS)[1:]
    ]
