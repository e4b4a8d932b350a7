"""Asks a running Prometheus every question that the dashboard and the alerts ask, and says which have an answer.

    python monitoring/try_expressions.py [http://127.0.0.1:9090]

One line an expression: how many series it gives now, or `empty`. An alert's expression is empty while all is well, and
so are the two panels of refusals while nothing is refused, that of drops while nothing is dropped, and that of weights
while every node is alone. Any other panel that is empty has nothing to show: no node is scraped, or its metric is gone.
Exit code 1 when that is so, or when Prometheus refuses an expression.
"""

import json
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
DASHBOARD = HERE / "grafana" / "dashboards" / "p2ptrain.json"
ALERTS = HERE / "alerts.yml"
TIMEOUT_S = 10.0
"""A loaded Prometheus answers such queries within a second."""

MAY_BE_EMPTY = {
    "Updates refused a minute, by reason",
    "Refused, by peer",
    "Dropped by the transport a minute, by kind",
    "Weight of a member by its staleness (1: fresh)",
}


def panels() -> Iterator[tuple[str, str]]:
    """Title and expression of every query of the dashboard, for all nodes."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$node", ".*")


def alerts() -> Iterator[tuple[str, str]]:
    """Name and expression of every alert."""
    text = ALERTS.read_text(encoding="utf-8")
    yield from re.findall(r"- alert: (\w+)\n(?:\s+#.*\n)*\s+expr: (.*)", text)


def series(base: str, expression: str) -> int:
    """How many series the expression gives now. Raises OSError, or ValueError with what Prometheus says."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{base}/api/v1/query?{query}", timeout=TIMEOUT_S) as answer:
            return len(json.load(answer)["data"]["result"])
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error).get("error", str(error))) from error


def main(base: str) -> int:
    """Print the table; the exit code."""
    bad = 0
    for kind, questions in (("panel", panels()), ("alert", alerts())):
        for name, expression in questions:
            count = series(base, expression)
            may_be_empty = kind == "alert" or name in MAY_BE_EMPTY
            bad += count == 0 and not may_be_empty
            print(f"{kind}  {f'{count} series' if count else 'empty':<10} {name}: {expression}")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main((sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9090").rstrip("/")))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
