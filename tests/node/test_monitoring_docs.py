"""docs/operations.md says what the code does: every metric, event, alert and default that it names, and no others."""

import ast
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from gossip.core.api import EventName
from gossip.transport.drop_reasons import DROPS
from node.config.schema import Config
from node.events import event_types
from node.metrics.node_metrics import Metrics
from node.system import run_dir

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
ALERTS = (ROOT / "monitoring" / "alerts.yml").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GPU_METRICS = {f"p2ptrain_gpu_memory_{kind}_bytes" for kind in ("allocated", "reserved", "free")}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str, pattern: str) -> list[str]:
    return re.findall(rf"^\| `({pattern})` \|", text, re.MULTILINE)


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")


def headings(page: Path) -> set[str]:
    outside = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", outside, re.MULTILINE)}


def vocabulary() -> dict[str, set[str]]:
    """The fields of each event, of all types that share its name, but for its time."""
    found: dict[str, set[str]] = {}
    for kind in event_types.kinds():
        found.setdefault(kind.name, set()).update(field.name for field in fields(kind) if field.name != "ts")
    return found


def test_the_table_of_metrics_has_every_metric_and_no_other():
    rows = first_cells(section("Metrics"), r"p2ptrain_\w+")
    assert len(rows) == len(set(rows))
    assert set(rows) - GPU_METRICS == {family.name for family in Metrics().registry.collect()} - GPU_METRICS
    assert set(rows) >= GPU_METRICS


def test_the_table_of_metrics_has_their_types():
    types = dict(re.findall(r"^\| `(p2ptrain_\w+)` \| (\w+)", section("Metrics"), re.MULTILINE))
    for family in Metrics().registry.collect():
        assert types[family.name] == family.type, family.name


def test_the_table_of_drops_has_every_kind_and_no_other():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section("Metrics").partition("### What is dropped")[2], re.MULTILINE)
    assert dict(rows) == DROPS


def test_every_kind_that_the_transport_counts_has_a_name():
    folder = ROOT / "gossip" / "transport"
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((folder / "libp2p").glob("*.py")))
    counted = set(re.findall(r"(?:\.note|violated)\(\"(\w+)\"", code))
    assert len(counted) > 3
    assert counted <= DROPS.keys()


def test_the_table_of_events_has_every_event_and_field_and_no_other():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section("Events"), re.MULTILINE)
    told = {event: set(re.sub(r"; of a bootstrap node", " ", cell).split()) for event, cell in rows}
    assert len(rows) == len(told)
    assert told == vocabulary()


@pytest.mark.slow
def test_every_type_of_event_is_told_somewhere_or_is_one_of_the_networks():
    names = set()
    for path in set((ROOT / "node").rglob("*.py")) - set((ROOT / "node" / "bench").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call):
                names.add(getattr(call.func, "attr", getattr(call.func, "id", "")))
    ends = {"Finished", "Interrupted"}  # by a variable, in node/roles/trainer.py
    untold = [kind for kind in event_types.kinds() if kind.__name__ not in names | ends]
    assert {kind.name for kind in untold} == set(get_args(EventName)) - {"warning"}


def test_every_alert_has_its_runbook_entry_and_every_entry_its_alert():
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    links = re.findall(r"runbook: docs/operations\.md#(\S+)", ALERTS)
    assert links == [anchor(alert) for alert in alerts]
    entries = re.findall(r"^### (\w+)$", section("Alerts"), re.MULTILINE)
    assert sorted(entries) == sorted(alerts)


def test_what_panels_and_alerts_refer_to_is_there():
    files = [ROOT / "monitoring" / "alerts.yml", *(ROOT / "monitoring" / "grafana" / "dashboards").glob("*.json")]
    named = {anchor for file in files for anchor in re.findall(r"docs/operations\.md#([\w-]+)", file.read_text())}
    assert len(named) > 20
    assert named <= headings(ROOT / "docs" / "operations.md")


def test_the_defaults_of_the_page_are_those_of_the_code():
    rows = re.findall(r"^\| `(\w+)\.(\w+)`[^|]* \| ([^|]+) \|", section("Tuning"), re.MULTILINE)
    assert len(rows) >= 20
    for part, key, text in rows:
        said = None if text == "none" else tomllib.loads(f"v = {text}")["v"]  # TOML has no word for none
        assert said == getattr(getattr(Config(), part), key), f"{part}.{key}"


def test_every_file_of_a_run_is_described():
    files = section("What lies in a run folder")
    for name in (
        *(run_dir.LOCK, run_dir.IDENTITY, run_dir.EVENTS, run_dir.SUMMARY, run_dir.CONFIG, run_dir.CHECKPOINTS),
        *(run_dir.EPOCH, run_dir.ADDRESSES, run_dir.STDERR, run_dir.PEERS, run_dir.TARGETS, run_dir.LOG),
    ):
        assert re.search(rf"[`/]{re.escape(name)}[`/]", files), name


def test_the_design_page_names_files_that_there_are_and_every_decision():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:p2ptrain|gossip|node|tests|examples)/[\w./]*)`", page):
        assert (ROOT / path).exists(), path
    listed = re.findall(r"\]\(decisions/(\S+)\)", page)
    assert listed == sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_the_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, fragment = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        assert other.exists(), target
        if fragment:
            assert fragment in headings(other), target


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
@pytest.mark.parametrize(
    "command",
    ["check config monitoring/prometheus.yml", "check rules monitoring/alerts.yml"],
)
def test_promtool_has_nothing_to_say_against(command):
    done = subprocess.run(["promtool", *command.split()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_promtool_finds_no_fault_with_a_nodes_page():
    page = Metrics().exposition()
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
