"""Writes grafana/dashboards/*.json from dashboards/: the panels as data, so that a change is one line.

    python monitoring/make_dashboards.py

A test holds the JSON to this script, and every metric and label that a panel names to what a node serves.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from dashboards import ALL  # noqa: E402
from dashboards.render import text  # noqa: E402

FOLDER = HERE / "grafana" / "dashboards"


def files() -> dict[Path, str]:
    """Every file, by its path."""
    return {FOLDER / f"{dashboard.name}.json": text(dashboard) for dashboard in ALL}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
