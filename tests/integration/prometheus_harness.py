"""A real Prometheus with the configuration that we ship, made faster, and what it says."""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asked import MONITORING
from processes_harness import PATIENCE_S

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus (Debian: prometheus)"
)

MINUTES = {"m": 1, "h": 60, "d": 24 * 60}


def eventually(found: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Ask again and again: neither the nodes nor Prometheus tell us when they have got there."""
    deadline = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def hurried(alerts: str) -> str:
    """Rules whose every duration is a sixtieth: minutes are seconds. Names and thresholds stay, ages aside."""
    shorter = re.sub(r"\b(\d+)([mhd])\b(?!\w)", lambda it: f"{int(it[1]) * MINUTES[it[2]]}s", alerts)
    return shorter.replace("_age_seconds > 3600", "_age_seconds > 60")


@contextmanager
def prometheus(folder: Path, *, hurry: bool = False) -> Iterator[str]:
    """Its address. By the configuration that we ship it scrapes what the files in `folder`/targets name, every second.
    `hurry`: a minute of the alerts lasts a second."""
    config = (MONITORING / "prometheus.yml").read_text()
    alerts = (MONITORING / "alerts.yml").read_text()
    folder.mkdir()
    (folder / "prometheus.yml").write_text(
        re.sub(r"(scrape|evaluation|refresh)_interval: \w+", r"\1_interval: 1s", config)
    )
    (folder / "alerts.yml").write_text(hurried(alerts) if hurry else alerts)
    (folder / "targets").mkdir()
    where = ["--web.listen-address=127.0.0.1:0", f"--storage.tsdb.path={folder / 'data'}"]
    where += ["--query.lookback-delta=5s"] if hurry else []
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder / 'prometheus.yml'}", *where], stderr=log, stdout=log
        )
    try:
        log_text = (folder / "log").read_text
        pattern = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:[1-9]\d*)')
        eventually(lambda: pattern.search(log_text()) is not None, "Prometheus does not listen")
        yield f"http://{pattern.search(log_text())[1]}"
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def ask(base: str, path: str, **params: str) -> Any:
    """What its API answers; None while it starts."""
    try:
        with urllib.request.urlopen(f"{base}/api/v1/{path}?{urllib.parse.urlencode(params)}", timeout=10) as answer:
            return json.load(answer)["data"]
    except urllib.error.URLError:
        return None


def labels(base: str, expression: str) -> list[str]:
    """The label `node` of each series that the expression gives."""
    return sorted(
        each["metric"].get("node", "") for each in (ask(base, "query", query=expression) or {"result": []})["result"]
    )
