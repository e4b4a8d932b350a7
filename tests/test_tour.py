"""docs/tour.md says what the code does: its files, functions, quotes, metrics, events and counts."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| `([\w/]+\.py)` \| ([^|]+) \|", TOUR, re.MULTILINE)
WAYS = {
    "a gradient to a neighbour's model (1 to 5)": TOUR.partition("## 1. ")[2].partition("## Two shorter ways")[0],
    "an invite to admission, of a short line": TOUR.partition("**An invite ")[2].partition("**One number")[0],
    "an invite to admission, of a full line": "\n".join(
        row
        for row in TOUR.partition("**An invite ")[2].partition("**One number")[0].splitlines()
        if not row.startswith("| A short line:")
    ),
    "one number of a round to its panel": TOUR.partition("**One number")[2].partition("## How many")[0],
}


def files_of(way: str) -> list[str]:
    """The files of a way, in the order in which it passes them first."""
    return list(dict.fromkeys(re.findall(r"^\| [^|]+ \| `([\w/]+\.py)` \|", WAYS[way], re.MULTILINE)))


def definitions(tree: ast.AST, prefix: str = "") -> set[str]:
    """`function`, `Class`, `Class.method` and module-level names."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= definitions(node, f"{node.name}.")
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def named_in(path: str) -> set[str]:
    """The modules that a file imports, and the names in them, with dots."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def file_of(name: str) -> str | None:
    """The file of a module, or of a package its `__init__.py`."""
    path = name.replace(".", "/")
    ways = (f"{folder}{path}{ending}" for folder in ("", "monitoring/") for ending in (".py", "/__init__.py"))
    return next((way for way in ways if (ROOT / way).is_file()), None)


@cache
def imports_of(path: str) -> frozenset[str]:
    """The files that a file imports, and those that a package hands on which it imports."""
    direct = {each for name in named_in(path) if (each := file_of(name))}
    handed = {
        each
        for package in direct
        if package.endswith("__init__.py")
        for name in named_in(package)
        if (each := file_of(name))
    }
    return frozenset(direct | handed)


def linked(path: str, other: str) -> bool:
    """Whether one imports the other, or both import an interface (`base.py`) by which one calls the other."""
    ours, theirs = imports_of(path), imports_of(other)
    return other in ours or path in theirs or any(each.endswith("/base.py") for each in ours & theirs)


def test_every_file_of_the_tour_has_the_functions_that_it_names():
    assert len(ROWS) > 60
    for _, path, names in ROWS:
        assert (ROOT / path).is_file(), path
        known = definitions(tree_of(path))
        for name in re.findall(r"`([\w.]+)`", names):
            assert name in known, f"{path} has no {name}"


def test_every_other_file_that_the_tour_names_is_there():
    for path in re.findall(r"`((?:p2ptrain|gossip|node|tests)/[\w./]+)`", TOUR):
        assert (ROOT / path).exists(), path


def test_every_quote_stands_in_its_file():
    quotes = re.findall(r"^```python\n# (\S+)\n(.*?)^```", TOUR, re.MULTILINE | re.DOTALL)
    lines = [(path, line.strip()) for path, text in quotes for line in text.splitlines()]
    assert 10 <= len(lines) <= 20
    for path, line in lines:
        assert line in {each.strip() for each in (ROOT / path).read_text(encoding="utf-8").splitlines()}, line


def test_every_metric_and_event_of_the_tour_is_on_the_page_for_operators():
    for name in re.findall(r"`(p2ptrain_\w+)`", TOUR):
        assert f"| `{name}` |" in OPERATIONS, name
    for event in re.findall(r"event `(\w+)`", TOUR):
        assert f"| `{event}` |" in OPERATIONS, event
    fields = re.search(r"^\| `round` \| ([^|]+) \|", OPERATIONS, re.MULTILINE)
    assert fields is not None
    assert set(re.findall(r"event `round`: `(\w+)`", TOUR)) <= set(fields[1].split())


@pytest.mark.parametrize("way", WAYS)
def test_the_files_of_a_way_follow_from_imports(way: str):
    files = files_of(way)
    panel = [path for path in files if path.startswith("monitoring/")]  # reached by the metric's name, over HTTP
    for path in files:
        assert path in panel or any(linked(path, each) for each in files if each != path), path


def test_the_counts_are_those_of_the_tables():
    told = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \|$", TOUR.partition("<!-- counted:")[2], re.MULTILINE)
    assert {way: int(count) for way, count, _ in told} == {way: len(files_of(way)) for way in WAYS}
    for way, count, wanted in told:
        assert int(count) <= int(wanted) + 1, f"{way} has become longer"


def test_every_file_that_contributing_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:p2ptrain|gossip|node|tests|scripts|monitoring|docs|examples)/[\w./-]+)", text)
    assert len(named) > 50
    for path in named:
        assert "NAME" in path or (ROOT / path).exists(), path
