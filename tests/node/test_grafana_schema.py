"""Grafana's own types read our dashboards, and find every field that we write where it belongs.

Grafana publishes what its files may hold as generated classes (grafana-foundation-sdk). What these do not know, or
would have elsewhere or as another type, does not come out again as it went in; the options of the panels and the
queries of Prometheus' data source are read by their plugins' types, not as anything at all.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from asked import script
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel

register_default_plugins()

MAKER = script("make_dashboards")
OPTIONS = {"timeseries": timeseries.Options, "stat": stat.Options, "table": table.Options}


def written(name: str) -> dict[str, Any]:
    return json.loads((MAKER.FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def understood(model: dict[str, Any]) -> dict[str, Any]:
    return json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(copy.deepcopy(model))))


def lost(model: object, again: object, path: str = "") -> Iterator[str]:
    """Where what was read differs from what stands there; fields that Grafana adds do not."""
    if isinstance(model, dict) and isinstance(again, dict):
        for key, value in model.items():
            yield from lost(value, again.get(key, "nothing"), f"{path}.{key}")
    elif isinstance(model, list) and isinstance(again, list) and len(model) == len(again):
        for number, (value, other) in enumerate(zip(model, again, strict=True)):
            yield from lost(value, other, f"{path}[{number}]")
    elif model != again:
        yield f"{path}: {model!r} became {again!r}"


@pytest.mark.parametrize("name", [dashboard.name for dashboard in MAKER.ALL])
def test_grafanas_types_know_every_field(name: str) -> None:
    model = written(name)
    assert list(lost(model, understood(model))) == []


@pytest.mark.parametrize("name", [dashboard.name for dashboard in MAKER.ALL])
def test_panels_and_queries_are_read_by_their_plugins(name: str) -> None:
    panels = Dashboard.from_json(written(name)).panels or []
    kinds = [each for each in panels if isinstance(each, Panel)]
    assert len(kinds) >= 8
    assert all(isinstance(each, Panel | RowPanel) for each in panels)
    for panel in kinds:
        assert type(panel.options) is OPTIONS[panel.type_val], panel.title
        assert panel.targets, panel.title
        assert all(type(target) is prometheus.Dataquery for target in panel.targets), panel.title


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    model = written("node")
    panel = next(each for each in model["panels"] if each["type"] == "timeseries")
    panel["descripton"] = panel.pop("description")
    panel["options"]["legend"]["colour"] = "red"
    panel["targets"][0]["query"] = panel["targets"][0].pop("expr")
    model["refreshed"] = True
    found = {each.partition(":")[0].rpartition(".")[2] for each in lost(model, understood(model))}
    assert found == {"descripton", "colour", "query", "refreshed"}
