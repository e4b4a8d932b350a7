"""What stands in monitoring/ fits what a node serves."""

import importlib.util
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
from swarm_story import node_events

from node.metrics import Metrics, metric_names

ROOT = Path(__file__).parents[2] / "monitoring"
DASHBOARD = ROOT / "grafana" / "dashboards" / "p2ptrain.json"


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bp2ptrain_[a-z0-9_]+", text))


@pytest.fixture
def served() -> set[str]:
    metrics = Metrics()
    for event in node_events(0):
        metrics.observe(event)
    return metric_names(metrics)


def test_the_dashboard_is_what_the_script_makes():
    assert DASHBOARD.read_text() == script("make_dashboard").text(), "run: python monitoring/make_dashboard.py"


def test_every_panel_shows_metrics_that_there_are(served):
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
    assert len(panels) >= 12
    for panel in panels:
        for target in panel["targets"]:
            assert names_in(target["expr"]), panel["title"]
            assert names_in(target["expr"]) <= served, panel["title"]


def test_the_panels_that_may_be_empty_are_there_and_one_of_them_shows_drops():
    shown = {panel["title"]: names_in(json.dumps(panel)) for panel in json.loads(DASHBOARD.read_text())["panels"]}
    may_be_empty = script("try_expressions").MAY_BE_EMPTY
    assert may_be_empty <= shown.keys()
    assert [title for title in may_be_empty if "p2ptrain_drops_total" in shown[title]]


def test_panels_do_not_overlap():
    taken = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_every_alert_watches_a_metric_that_there_is(served):
    text = (ROOT / "alerts.yml").read_text()
    expressions = re.findall(r"expr: (.*)", text)
    assert len(expressions) == text.count("- alert:")
    for expression in expressions:
        assert names_in(expression) <= served, expression


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Answers(BaseHTTPRequestHandler):
    """A Prometheus that gives every query the same answer."""

    results: ClassVar[list[object]] = []

    def do_GET(self):
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": self.results}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(("results", "code"), [([], 1), ([{}, {}], 0)])
def test_every_expression_is_tried_and_empty_panels_are_a_fault(results, code, capsys, monkeypatch):
    monkeypatch.setattr(Answers, "results", results)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert script("try_expressions").main(f"http://127.0.0.1:{server.server_port}") == code
        finally:
            server.shutdown()
            thread.join()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("alert") for line in lines) == (ROOT / "alerts.yml").read_text().count("- alert:")
    assert sum(line.startswith("panel") for line in lines) == DASHBOARD.read_text().count('"expr"')
    assert all(("2 series" if results else "empty") in line for line in lines)


def test_prometheus_reads_the_files_that_there_are():
    config = (ROOT / "prometheus.yml").read_text()
    assert "alerts.yml" in config
    assert "targets/*.json" in config
    assert (ROOT / "targets").is_dir()
