"""Metrics are declared once: what is declared is what a node serves, what panels ask for, and what events have."""

import json
import re
from pathlib import Path

import pytest
from asked import alerts, panels, script
from typed_events import said, typed

from node.events.event_types import RoundClosed, RoundTrained
from node.metrics.declared import DECLARED, METRICS, NoPanel
from node.metrics.node_metrics import Metrics
from node.metrics.sources import Total, Value

ENDINGS = re.compile(r"_(total|bucket|sum|count)$")


BEFORE = Path(__file__).parents[1] / "data" / "metrics-before-types.json"
"""By role: records in which no two numbers are the same, and what the release before this table served after them."""


def asked_in(expr: str) -> set[str]:
    """The declared names of the metrics in a query."""
    return {ENDINGS.sub("", name) for name in re.findall(r"\bp2ptrain_(\w+)", expr)}


def test_every_panel_that_is_declared_is_there_and_asks_for_its_metric():
    shown: dict[str, set[str]] = {}
    for dashboard in script("make_dashboards").ALL:
        for panel in dashboard.panels:
            names = set().union(*(asked_in(query.expr) for query in panel.queries))
            shown[f"{dashboard.title.removeprefix('p2ptrain: ')} / {panel.title}"] = names
    for metric in METRICS:
        if not isinstance(metric.panel, NoPanel):
            assert metric.name in shown.get(metric.panel, set()), metric.panel
    seen = set().union(*shown.values())
    unseen = {metric.name for metric in METRICS if isinstance(metric.panel, NoPanel)}
    assert not unseen & seen, "a panel shows it: name that"
    assert all(metric.panel.why for metric in METRICS if isinstance(metric.panel, NoPanel))


def test_panels_and_alerts_ask_for_declared_metrics_alone():
    asked = set().union(*(asked_in(each.expr) for each in (*panels(), *alerts())))
    assert len(asked) > 40
    assert asked <= DECLARED.keys()


def test_a_node_serves_what_is_declared_under_its_name_and_help():
    of_gpu = {metric.full_name for metric in METRICS if metric.name.startswith("gpu_")}
    served = {family.name: (family.documentation, family.type) for family in Metrics().registry.collect()}
    declared = {metric.full_name: (metric.help, metric.kind) for metric in METRICS}
    assert len(declared) == len(METRICS)
    assert served == {name: told for name, told in declared.items() if name not in of_gpu}


def test_a_field_that_no_event_has_cannot_be_a_source():
    with pytest.raises(AssertionError, match="RoundClosed has no field members_known"):
        Value(RoundClosed, "members_known")
    assert Total(RoundTrained, "accepted").field == "accepted", "a field of the type that it extends"


def test_a_counter_that_failed_checkpoints_raise_is_served():
    metrics = Metrics()
    for _ in range(3):
        metrics.observe(said("checkpoint_failed", round=1, why="full"))
    assert b"p2ptrain_checkpoint_failures_total 3.0" in metrics.exposition()


@pytest.mark.parametrize("role", ["trainer", "observer", "bootstrap"])
def test_what_a_node_serves_is_what_it_served_before_metrics_were_declared(role):
    told = json.loads(BEFORE.read_text(encoding="utf-8"))[role]
    metrics = Metrics()
    for record in told["records"]:
        metrics.observe(typed(record))
    served = [line for line in metrics.exposition().decode().splitlines() if not line.startswith("#")]
    assert set(told["served"]) <= set(served)
