"""The table of docs/operations.md says of each alert how it was provoked: none is left out, none is claimed in vain."""

import re
from pathlib import Path

from asked import alerts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
LIVE = (ROOT / "tests" / "integration" / "test_alerts_live.py").read_text(encoding="utf-8")
HEARD = re.findall(r"it\.hear\((.*)\)|return (.*) in it\.firing\(\)", LIVE)
"""What it waits for; that something is silent shows nothing."""
ROWS = dict(re.findall(r"^\| \[(\w+)\]\(#\w+\) \| [^|]+ \| ([^|]+) \|[^|]*\|$", PAGE, re.MULTILINE))


def test_every_alert_has_its_row():
    assert sorted(ROWS) == sorted(question.asker for question in alerts())


def test_what_is_said_to_fire_in_life_is_heard_by_the_live_test_and_nothing_else_is():
    for name, provoked in ROWS.items():
        assert (f'"{name} ' in str(HEARD)) == (not provoked.startswith("promtool alone")), name
