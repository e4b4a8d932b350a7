"""The generated tables of docs/ are what scripts/reference_tables.py writes today."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_tables", ROOT / "scripts" / "reference_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_tables_are_what_the_script_writes(maker: ModuleType) -> None:
    pages = maker.pages()
    assert {path.name for path in pages} == {"methods.md", "operations.md", "reference.md"}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run: make reference"


def test_every_table_stands_in_a_page(maker: ModuleType) -> None:
    written = "".join(maker.pages().values())
    for name in maker.TABLES:
        assert f"<!-- generated: {name} -->" in written


def test_a_changed_value_is_written_and_the_text_around_stays(maker: ModuleType) -> None:
    page = "before\n<!-- generated: exit-codes -->\n\n| wrong |\n<!-- /generated -->\nafter\n"
    filled = maker.filled(page)
    assert filled.startswith("before\n")
    assert filled.endswith("<!-- /generated -->\nafter\n")
    assert "| 130 | interrupted, as by Ctrl-C |" in filled
    assert "wrong" not in filled
    assert maker.filled(filled) == filled
