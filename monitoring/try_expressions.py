"""Asks a running Prometheus every question that the dashboards and the alerts ask, and says which have an answer.

    python monitoring/try_expressions.py [http://127.0.0.1:9090]

One line an expression: how many series it gives now, or `empty`. An alert's expression is empty while all is well, and
so are the panels that say what it means (`empty` in dashboards/). Any other panel that is empty has nothing to show: no
node is scraped, or its metric is gone. Exit code 1 when that is so, or when Prometheus refuses an expression.
"""

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from dashboards import ALL  # noqa: E402
from dashboards.model import scoped, unscoped  # noqa: E402

ALERTS = HERE / "alerts.yml"
TIMEOUT_S = 10.0
"""A loaded Prometheus answers such queries within a second."""


@dataclass(frozen=True)
class Answer:
    """How many series an expression gives now; `refused`: why Prometheus does not take it at all."""

    kind: str
    name: str
    expr: str
    may_be_empty: bool
    series: int = 0
    refused: str = ""

    @property
    def good(self) -> bool:
        """Whether it is as it should be."""
        return not self.refused and (self.series > 0 or self.may_be_empty)

    def line(self) -> str:
        """For people."""
        found = self.refused or (f"{self.series} series" if self.series else "empty")
        return f"{self.kind}  {found:<10} {self.name}: {self.expr}"


def panels() -> Iterator[tuple[str, str, bool]]:
    """Name and expression of every query, for all nodes, and whether it may be empty."""
    for dashboard in ALL:
        for panel in dashboard.panels:
            for query in panel.queries:
                yield f"{dashboard.title}, {panel.title}", unscoped(scoped(query.expr)), bool(panel.empty)


def alerts() -> Iterator[tuple[str, str, bool]]:
    """The same of every alert."""
    found = re.findall(r"- alert: (\w+)\n(?:\s+#.*\n)*\s+expr: (.*)", ALERTS.read_text(encoding="utf-8"))
    for name, expr in found:
        yield name, expr, True


def answers(base: str) -> Iterator[Answer]:
    """Each with what the Prometheus at `base` says now. Raises OSError when there is none."""
    for kind, questions in (("panel", panels()), ("alert", alerts())):
        for name, expr, may_be_empty in questions:
            try:
                yield Answer(kind, name, expr, may_be_empty, series(base, expr))
            except ValueError as error:
                yield Answer(kind, name, expr, may_be_empty, refused=str(error))


def series(base: str, expression: str) -> int:
    """How many series the expression gives now. Raises OSError, or ValueError with what Prometheus says."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{base}/api/v1/query?{query}", timeout=TIMEOUT_S) as answer:
            return len(json.load(answer)["data"]["result"])
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(json.load(error).get("error", str(error))) from error


def main(base: str) -> int:
    """Print the table; the exit code."""
    good = True
    for answer in answers(base):
        good &= answer.good
        print(answer.line())
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main((sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9090").rstrip("/")))
    except OSError as error:
        sys.exit(f"error: {error}")
