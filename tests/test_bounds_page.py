"""docs/security.md#bounds says what the code does: every bound that it names has the value that it gives.

A bound stands there as `module.CONSTANT` = value, in the unit that the constant has. That the tests named beside it
exist is held by test_security_page.py.
"""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
BOUNDS = PAGE.partition("\n## Bounds\n")[2].partition("\n## ")[0]
NAMED = re.findall(r"`([\w.]+)\.([A-Z][A-Z0-9_]+)` = ([\d.,]+)", BOUNDS)

PACKAGES = ("gossip", "node", "p2ptrain")


def value_of(module: str, constant: str) -> float:
    """Of the one module with this constant whose path ends so."""
    tail = module.replace(".", "/") + ".py"
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if str(path).endswith(f"/{tail}")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    values = [value for name in names if (value := getattr(importlib.import_module(name), constant, None)) is not None]
    assert len(values) == 1, f"{module}.{constant}: {names}"
    return float(values[0])


def test_there_is_a_table():
    assert len(NAMED) > 40


@pytest.mark.parametrize(("module", "constant", "value"), NAMED, ids=[f"{module}.{name}" for module, name, _ in NAMED])
def test_a_bound_is_what_the_page_says(module: str, constant: str, value: str):
    assert value_of(module, constant) == pytest.approx(float(value.rstrip(".,").replace(",", "")))


def test_every_row_of_the_table_names_a_bound():
    rows = [line for line in BOUNDS.splitlines() if line.startswith("| ") and not line.startswith("| holds at most")]
    without = [row for row in rows if not re.search(r"`[\w.]+\.[A-Z][A-Z0-9_]+` = |`network\.|`places\.Bounds", row)]
    assert not without
