"""Who may import whom: the contracts of pyproject.toml, held as a test; and what names and folders promise."""

import ast
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("p2ptrain", "gossip", "node")
TRIO = {"bootstrap.py", "context.py", "handlers.py", "server.py", "service.py", "session.py"}
"""Files of gossip/ itself that perform, beside every `*_task.py` and the transports."""
CONVENTION = {"__init__.py", "base.py"}
"""File names that may stand in several folders: `base.py` has the contract of an extension point."""


def test_the_import_contracts_hold() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def ours(folder: str) -> list[Path]:
    """Its Python files, but for those of packages that were installed there."""
    return [path for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts]


def imported(path: Path) -> Iterator[str]:
    """The modules that are imported when this one is: nothing inside functions, nothing for type checkers alone."""
    yield from _imported(ast.parse(path.read_text(encoding="utf-8")).body)


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    for each in body:
        match each:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{name.name}" for name in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=rest):
                yield from _imported(rest)
            case ast.If(body=inner, orelse=rest) | ast.Try(body=inner, orelse=rest):
                yield from _imported([*inner, *rest])


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them as top-level modules, and so do they each other's harnesses."""
    names = Counter(path.name for path in ours("tests"))
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_and_no_class_has_the_name_of_another(package: str) -> None:
    files: dict[str, list[str]] = defaultdict(list)
    classes: dict[str, list[str]] = defaultdict(list)
    for path in ours(package):
        where = str(path.relative_to(ROOT))
        files[path.name].append(where)
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each, ast.ClassDef):
                classes[each.name].append(where)
    assert len(files) > 30
    assert {name: paths for name, paths in files.items() if len(paths) > 1 and name not in CONVENTION} == {}
    assert {name: paths for name, paths in classes.items() if len(paths) > 1} == {}


def test_in_gossip_only_what_performs_imports_trio() -> None:
    performs = {
        path
        for path in ours("gossip")
        if path.name.endswith("_task.py") or "transport" in path.parts or path.name in TRIO
    }
    for path in ours("gossip"):
        libraries = {name.partition(".")[0] for name in imported(path)}
        assert not libraries & {"trio", "socket"} or path in performs, path
    tasks = [path for path in performs if path.name.endswith("_task.py")]
    assert len(tasks) > 20
    assert [path for path in tasks if "trio" not in set(imported(path))] == []


def test_the_deciding_parts_of_gossip_import_no_performing_ones_and_not_each_other_in_a_circle() -> None:
    below: dict[str, set[str]] = defaultdict(set)
    for path in ours("gossip"):
        folder, *rest = path.relative_to(ROOT / "gossip").with_suffix("").parts
        decides = rest and folder != "transport" and not path.name.endswith("_task.py")
        if not decides:
            continue
        for name in imported(path):
            package, *parts = name.split(".")
            if package == "gossip" and parts:
                assert not parts[-1].endswith("_task"), (path, name)
                assert parts[0] not in ("service", "session", "server", "handlers"), (path, name)
                if parts[0] != folder and (ROOT / "gossip" / parts[0]).is_dir():
                    below[folder].add(parts[0])
    order = list(TopologicalSorter(below).static_order())  # raises CycleError
    assert order[0] == "core"


OWN_WORDS = re.compile(
    r"\b(earshot|hearsay|council|heirs?|whoever|told of|none any more|put out|let in|sent away|lost the thread)\b", re.I
)
"""Words of this project's own that stood for terms of the field. Add one only where it has no honest use."""
OLD_NAMES = {"benchmarks.md"}
"""Pages that quote what was printed or measured then. Decisions keep their words, too."""
PLAIN_FOLDERS = ("node/bench", "node/cli", "node/config", "node/doctor", "node/swarm", "node/system", "node/up")
"""Folders whose comments and docstrings are held to that. Add one when it has none of these words."""


def test_pages_use_the_terms_of_the_field() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/how-to/*.md")]
    assert len(pages) > 20
    for page in pages:
        if page.name not in OLD_NAMES:
            said = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
            assert OWN_WORDS.findall(said) == [], page


@pytest.mark.parametrize("folder", PLAIN_FOLDERS)
def test_comments_docstrings_and_messages_use_the_terms_of_the_field(folder: str) -> None:
    spoken = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for path in ours(folder):
        with tokenize.open(path) as file:
            said = [each for each in tokenize.generate_tokens(file.readline) if each.type in spoken]
        assert [each.start[0] for each in said if OWN_WORDS.search(each.string)] == [], path
