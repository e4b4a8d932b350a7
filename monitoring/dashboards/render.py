"""Grafana's JSON model of a dashboard: layout, variables and links are made here and are the same in all of them."""

import json
from typing import Any

from dashboards.model import VARIABLES, Dashboard, Panel, Query, scoped

GRID_WIDTH = 24
"""Grafana's grid."""

SCHEMA = 41
"""Of Grafana 12; later ones convert it as they load it."""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NODE_LINK = {
    "title": "This node",
    "url": "/d/p2ptrain-node/?var-node=${__field.labels.node}&${datasource:queryparam}&${__url_time_range}",
}

Json = dict[str, Any]


def text(dashboard: Dashboard) -> str:
    """The file's content."""
    return json.dumps(model_of(dashboard), indent=2) + "\n"


def model_of(dashboard: Dashboard) -> Json:
    """The dashboard as Grafana's JSON model."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.help,
        "tags": ["p2ptrain"],
        "timezone": "browser",
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [_links()],
        "templating": {"list": [_source(), *(_variable(index) for index in range(len(VARIABLES)))]},
        "annotations": {"list": []},
        "panels": _panels(dashboard),
    }


def _panels(dashboard: Dashboard) -> list[Json]:
    panels: list[Json] = []
    y = 0
    for row in dashboard.rows:
        panels.append(_row(row.title, y, len(panels) + 1))
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > GRID_WIDTH:
                x, y, tallest = 0, y + tallest, 0
            place = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            panels.append(_panel(panel, place, len(panels) + 1))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return panels


def _row(title: str, y: int, number: int) -> Json:
    place = {"h": 1, "w": GRID_WIDTH, "x": 0, "y": y}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, place: Json, number: int) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "targets": [_target(panel, query, order) for order, query in enumerate(panel.queries)],
        **({"transformations": _columns(panel)} if panel.kind == "table" else {}),
    }


def _defaults(panel: Panel) -> Json:
    steps = [{"color": panel.base, "value": None}, *({"color": name, "value": at} for at, name in panel.levels)]
    defaults: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.empty:
        defaults["noValue"] = panel.empty
    if panel.kind == "timeseries":
        style = "line" if panel.levels else "off"
        defaults["custom"] = {"lineWidth": 2, "fillOpacity": 5, "thresholdsStyle": {"mode": style}}
        defaults["color"] = {"mode": "palette-classic"}
        defaults["links"] = [NODE_LINK] if any("{{node}}" in query.legend for query in panel.queries) else []
    return defaults


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduce, "colorMode": "value", "graphMode": "area", "textMode": "auto"}
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _target(panel: Panel, query: Query, order: int) -> Json:
    target: Json = {"refId": _letter(order), "expr": scoped(query.expr), "datasource": SOURCE}
    if panel.kind == "table":
        return target | {"format": "table", "instant": True}
    return target | {"legendFormat": query.legend}


def _columns(panel: Panel) -> list[Json]:
    """One row for each set of labels, with a column for each query."""
    several = len(panel.queries) > 1
    names = {
        (f"Value #{_letter(order)}" if several else "Value"): query.legend for order, query in enumerate(panel.queries)
    }
    organize = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": names}
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]


def _letter(order: int) -> str:
    return chr(ord("A") + order)


def _links() -> Json:
    """To the other dashboards, with what is chosen here."""
    return {
        "title": "p2ptrain",
        "type": "dashboards",
        "tags": ["p2ptrain"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }


def _source() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "current": {},
    }


def _variable(index: int) -> Json:
    """Each offers what there is under the ones before it."""
    name = VARIABLES[index]
    before = ",".join(f'{each}=~"${each}"' for each in VARIABLES[:index])
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": f"label_values(p2ptrain_round{{{before}}}, {name})",
        "refresh": 2,
        "sort": 7,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
