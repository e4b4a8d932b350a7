"""What stands in monitoring/ is whole: dashboards as their script makes them, alerts that are tried, files that fit.

That they ask for nothing that a node does not serve is held in tests/sim/test_what_is_asked.py.
"""

import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from asked import ALERTS, MONITORING, script

MAKER = script("make_dashboards")
TRIER = script("try_expressions")
DASHBOARDS = MAKER.ALL
IDS = [dashboard.name for dashboard in DASHBOARDS]
RULE_TESTS = sorted(path.name for path in MONITORING.glob("alerts_*test.yml"))


def model(dashboard: Any) -> dict[str, Any]:
    return json.loads((MAKER.FOLDER / f"{dashboard.name}.json").read_text())


def test_the_dashboards_are_what_the_script_makes_and_there_are_no_others():
    there = {path: path.read_text() for path in MAKER.FOLDER.glob("*.json")}
    assert there == MAKER.files(), "run: python monitoring/make_dashboards.py"
    assert IDS == ["overview", "node", "network", "robustness", "quality"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=IDS)
def test_every_panel_says_what_it_shows_what_to_do_and_where_it_stands(dashboard):
    taken = set()
    titles = [panel.title for panel in dashboard.panels]
    assert len(titles) == len(set(titles)) >= 8
    for panel in model(dashboard)["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=IDS)
def test_every_query_is_of_the_chosen_swarm_run_and_node(dashboard):
    found = model(dashboard)
    names = [variable["name"] for variable in found["templating"]["list"]]
    assert names == ["datasource", "swarm", "run", "node"]
    for panel in found["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            selectors = re.findall(r"(p2ptrain_\w+|\bup|ALERTS)(\{[^}]*\})?", target["expr"])
            assert selectors, panel["title"]
            for name, inside in selectors:
                chosen = names[1:3] if name == "ALERTS" else names[1:]
                assert [label for label in names if f'{label}=~"${label}"' in inside] == chosen, panel["title"]


def test_the_page_says_which_panels_may_be_empty_and_when():
    page = (MONITORING.parent / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", page.partition("These panels may be empty:")[2], re.MULTILINE)
    expected = [
        (dashboard.title.removeprefix("p2ptrain: "), panel.title, panel.empty)
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        if panel.empty
    ]
    assert rows[1 : 1 + len(expected)] == expected


def test_dashboards_lead_to_each_other():
    uids = [model(dashboard)["uid"] for dashboard in DASHBOARDS]
    assert len(set(uids)) == 5
    for dashboard in DASHBOARDS:
        found = model(dashboard)
        assert [link["tags"] for link in found["links"]] == [found["tags"]] == [["p2ptrain"]]
        assert found["links"][0]["includeVars"]
        assert set(re.findall(r"/d/([\w-]+)", json.dumps(found))) <= set(uids)


def test_the_home_of_the_compose_file_is_a_dashboard():
    home = re.search(
        r"HOME_DASHBOARD_PATH: /var/lib/grafana/dashboards/(\S+)", (MONITORING / "docker-compose.yml").read_text()
    )
    assert (MAKER.FOLDER / home[1]).is_file()


class Answers(BaseHTTPRequestHandler):
    """A Prometheus that gives every query the same answer."""

    code: ClassVar[int] = 200
    answer: ClassVar[dict[str, object]] = {}

    def do_GET(self):
        self.send_response(self.code)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer).encode())

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("code", "answer", "exit_code", "said"),
    [
        (200, {"data": {"result": []}}, 1, "empty"),
        (200, {"data": {"result": [{}, {}]}}, 0, "2 series"),
        (400, {"error": "parse error"}, 1, "parse error"),
    ],
    ids=["empty", "full", "refused"],
)
def test_every_expression_is_tried_and_empty_panels_are_a_fault(code, answer, exit_code, said, capsys, monkeypatch):
    monkeypatch.setattr(Answers, "code", code)
    monkeypatch.setattr(Answers, "answer", answer)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert TRIER.main(f"http://127.0.0.1:{server.server_port}") == exit_code
        finally:
            server.shutdown()
            thread.join()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("alert") for line in lines) == ALERTS.count("- alert:")
    queries = sum(path.read_text().count('"expr"') for path in MAKER.FOLDER.glob("*.json"))
    assert sum(line.startswith("panel") for line in lines) == queries
    assert all(said in line for line in lines)


def test_every_alert_is_tried_firing_and_not():
    tests = "".join((MONITORING / name).read_text() for name in RULE_TESTS)
    tried = re.findall(r"alertname: (\w+)\n\s+exp_alerts:(.*)", tests)
    for alert in re.findall(r"- alert: (\w+)", ALERTS):
        assert {quiet.strip() for name, quiet in tried if name == alert} == {"[]", ""}, alert


def test_every_alert_has_a_severity_words_and_a_runbook():
    for rule in re.split(r"(?=- alert:)", ALERTS)[1:]:
        assert re.search(r"severity: (warning|critical)\b", rule)
        for key in ("summary: ", "action: ", "runbook: docs/operations.md#"):
            assert key in rule, rule


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
@pytest.mark.parametrize("name", RULE_TESTS)
def test_the_alerts_fire_when_they_should_and_only_then(name):
    done = subprocess.run(
        ["promtool", "test", "rules", name], cwd=MONITORING, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_the_files_that_there_are():
    config = (MONITORING / "prometheus.yml").read_text()
    assert "alerts.yml" in config
    assert "targets/*.json" in config
    assert (MONITORING / "targets").is_dir()


def test_a_script_needs_no_installed_package():
    """Whoever watches a swarm need not have one: Python alone is enough."""
    for path in (*Path(MONITORING).glob("*.py"), *(MONITORING / "dashboards").glob("*.py")):
        for module in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE):
            assert module in {
                "collections",
                "dashboards",
                "dataclasses",
                "json",
                "pathlib",
                "re",
                "sys",
                "typing",
                "urllib",
            }
