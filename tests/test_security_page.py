"""docs/security.md claims nothing without a test: every one that it names exists, and every table's row names one."""

import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


@cache
def functions_of(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^ *(?:async )?def (\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_test_that_is_named_exists() -> None:
    files = {path.name: path for path in TESTS.rglob("test_*.py")}
    named = NAMED.findall(PAGE)
    missing = [f"{file}::{name}" for file, name in named if file not in files or name not in functions_of(files[file])]
    assert not missing
    assert len(re.findall(r"test_\w+\.py", PAGE)) == len(named) + 1, "a test that is named otherwise"  # this file


def test_every_claim_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| holds ")]
    assert rows
    assert not [row for row in rows if not NAMED.search(row) or row.count("|") != 4]


def test_every_adversary_says_what_does_not_hold() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    of_adversaries = [section for section in sections if "| holds |" in section]
    assert len(of_adversaries) >= 10
    assert not [section.splitlines()[0] for section in of_adversaries if "What does not hold:" not in section]


def test_every_link_within_the_page_leads_somewhere() -> None:
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
    linked = set(re.findall(r"\(#([a-z0-9-]+)\)", PAGE))
    assert linked == anchors
