"""Writes grafana/dashboards/p2ptrain.json: the panels as data, so that a change is one line and the layout follows.

    python monitoring/make_dashboard.py

A test holds the JSON to this script, and every metric that a panel names to node/metrics.py.
"""

import json
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).parent / "grafana" / "dashboards" / "p2ptrain.json"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS, HEIGHT = 3, 8
GRID_WIDTH = 24
"""Grafana's grid."""

NODES = '{instance=~"$node"}'
BY_NODE = "{{node}} {{instance}}"

# Row: [(title, unit, [(PromQL, legend), ...]), ...]
ROWS: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "Learning": [
        ("Held-out loss", "none", [(f"p2ptrain_eval_loss{NODES}", BY_NODE)]),
        ("Training loss", "none", [(f"p2ptrain_train_loss{NODES}", BY_NODE)]),
        ("Round", "none", [(f"p2ptrain_round{NODES}", BY_NODE)]),
        ("Consensus distance (L2)", "none", [(f"p2ptrain_consensus_distance{NODES}", BY_NODE)]),
        ("Tokens a second", "none", [(f"rate(p2ptrain_tokens_total{NODES}[1m])", BY_NODE)]),
        ("Utilization", "percentunit", [(f"p2ptrain_utilization{NODES}", BY_NODE)]),
        ("Steps skipped a minute", "none", [(f"rate(p2ptrain_skipped_steps_total{NODES}[5m]) * 60", BY_NODE)]),
    ],
    "Swarm": [
        (
            "Neighbours and members",
            "none",
            [
                (f"p2ptrain_neighbours{NODES}", f"{BY_NODE} neighbours"),
                (f"p2ptrain_members{NODES}", f"{BY_NODE} members"),
                (f"p2ptrain_peers_known{NODES}", f"{BY_NODE} known"),
            ],
        ),
        (
            "Nodes by reachability, as peers have shown it",
            "none",
            [(f"sum by (state) (p2ptrain_reachability{NODES})", "{{state}}")],
        ),
        ("Spectral gap of the known graph (0: in parts)", "none", [(f"p2ptrain_spectral_gap{NODES}", BY_NODE)]),
        ("Robust margin (below 0: no promise)", "none", [(f"p2ptrain_robust_margin{NODES}", BY_NODE)]),
        ("Most stale neighbour (rounds)", "none", [(f"p2ptrain_staleness_rounds{NODES}", BY_NODE)]),
        (
            "Rounds closed a minute, by what closed them",
            "none",
            [(f"sum by (by) (rate(p2ptrain_rounds_closed_total{NODES}[5m])) * 60", "{{by}}")],
        ),
        (
            "Updates refused a minute, by reason",
            "none",
            [
                (
                    'sum by (reason) (rate(p2ptrain_updates_total{instance=~"$node",result="rejected"}[5m])) * 60 > 0',
                    "{{reason}}",
                )
            ],
        ),
        (
            "Refused, by peer",
            "none",
            [(f"topk(10, sum by (peer) (p2ptrain_peer_rejected_total{NODES}))", "{{peer}}")],
        ),
        (
            "Weight of a member by its staleness (1: fresh)",
            "none",
            [(f"avg by (peer) (p2ptrain_peer_weight{NODES})", "{{peer}}")],
        ),
    ],
    "Network and time": [
        (
            "Update and snapshot bytes a second",
            "Bps",
            [
                (f"sum by (direction) (rate(p2ptrain_update_bytes_total{NODES}[1m]))", "updates {{direction}}"),
                (f"sum by (direction) (rate(p2ptrain_snapshot_bytes_total{NODES}[1m]))", "snapshots {{direction}}"),
            ],
        ),
        ("Compression ratio", "none", [(f"p2ptrain_compression_ratio{NODES}", BY_NODE)]),
        (
            "Slowest link of a quorum, and what an update takes",
            "bytes",
            [
                (f"p2ptrain_link_bytes_per_second{NODES}", f"{BY_NODE} link, a second"),
                (f"p2ptrain_payload_bytes{NODES}", f"{BY_NODE} update"),
            ],
        ),
        (
            "Steps of the next round",
            "none",
            [(f"p2ptrain_inner_steps{NODES}", BY_NODE)],
        ),
        (
            "Rung of the adaptive compressor (nodes)",
            "none",
            [(f"sum by (rung) (p2ptrain_rung{NODES})", "{{rung}}")],
        ),
        (
            "Round and closing time (median)",
            "s",
            [
                (f"histogram_quantile(0.5, sum by (le) (rate(p2ptrain_round_seconds_bucket{NODES}[5m])))", "round"),
                (f"histogram_quantile(0.5, sum by (le) (rate(p2ptrain_close_seconds_bucket{NODES}[5m])))", "closing"),
            ],
        ),
        (
            "Time to pull a blob (median and 99%)",
            "s",
            [
                (f"histogram_quantile(0.5, sum by (le) (rate(p2ptrain_blob_seconds_bucket{NODES}[5m])))", "median"),
                (f"histogram_quantile(0.99, sum by (le) (rate(p2ptrain_blob_seconds_bucket{NODES}[5m])))", "99%"),
            ],
        ),
        (
            "What waits or is under way (highest of 5 minutes)",
            "none",
            [(f"max by (queue) (max_over_time(p2ptrain_queue_depth{NODES}[5m]))", "{{queue}}")],
        ),
        (
            "Dropped by the transport a minute, by kind",
            "none",
            [(f"sum by (kind) (rate(p2ptrain_drops_total{NODES}[5m])) * 60 > 0", "{{kind}}")],
        ),
        (
            "Event loop lag (99%)",
            "s",
            [
                (
                    "histogram_quantile(0.99, sum by (le, instance, node) "
                    f"(rate(p2ptrain_event_loop_lag_seconds_bucket{NODES}[5m])))",
                    BY_NODE,
                )
            ],
        ),
        ("Late steps of the newest correction", "none", [(f"p2ptrain_late_steps{NODES}", BY_NODE)]),
        (
            "Checkpoint age and memory",
            "none",
            [
                (f"p2ptrain_checkpoint_age_seconds{NODES}", f"{BY_NODE} checkpoint, s"),
                (f"p2ptrain_rss_bytes{NODES} / 1e6", f"{BY_NODE} memory, MB"),
            ],
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(_row(title, y, len(panels) + 1))
        y += 1
        for index, panel in enumerate(row):
            panels.append(_panel(panel, index, y, len(panels) + 1))
        y += HEIGHT * -(-len(row) // COLUMNS)
    return {
        "uid": "p2ptrain",
        "title": "p2ptrain swarm",
        "tags": ["p2ptrain"],
        "timezone": "browser",
        "schemaVersion": 41,
        "version": 1,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_variable()]},
        "annotations": {"list": []},
        "panels": panels,
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _variable() -> dict[str, Any]:
    return {
        "name": "node",
        "label": "Node",
        "type": "query",
        "datasource": SOURCE,
        "query": "label_values(p2ptrain_round, instance)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _row(title: str, y: int, number: int) -> dict[str, Any]:
    return {"id": number, "type": "row", "title": title, "gridPos": {"h": 1, "w": GRID_WIDTH, "x": 0, "y": y}}


def _panel(panel: tuple[str, str, list[tuple[str, str]]], index: int, y: int, number: int) -> dict[str, Any]:
    title, unit, queries = panel
    width = GRID_WIDTH // COLUMNS
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": width, "x": width * (index % COLUMNS), "y": y + HEIGHT * (index // COLUMNS)},
        "fieldConfig": {"defaults": {"unit": unit, "custom": {"lineWidth": 2, "fillOpacity": 5}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + order), "expr": query, "legendFormat": legend, "datasource": SOURCE}
            for order, (query, legend) in enumerate(queries)
        ],
    }


if __name__ == "__main__":
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(text(), encoding="utf-8")
