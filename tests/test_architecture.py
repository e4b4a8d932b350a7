"""Who may import whom: the contracts of pyproject.toml, held as a test; and what names and folders promise."""

import ast
import dataclasses
import random
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from gossip.bootstrap_state import BootstrapState
from gossip.core.api import RunInfo
from gossip.core.config import GossipConfig
from gossip.core.identity import Identity
from gossip.core.ids import Digest, RunId
from gossip.discovery.peerstore import PeerStore
from gossip.engine import Engine
from gossip.updates.mesh import Mesh

ROOT = Path(__file__).parent.parent
PACKAGES = ("p2ptrain", "gossip", "node")
TRIO = {"bootstrap.py", "context.py", "eager_lock.py", "handlers.py", "relay_service.py", "server.py"} | {
    "service.py",
    "session.py",
}
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
        if "integrations" not in path.parts:  # one name, a module a framework
            for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
                classes[name].append(where)
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
PLAIN_FOLDERS = ("gossip", "node", "p2ptrain")
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
        if OWN_WORDS.search(path.read_text(encoding="utf-8")) is None:
            continue  # in none of its parts either, which take a second to tell apart
        with tokenize.open(path) as file:
            said = [each for each in tokenize.generate_tokens(file.readline) if each.type in spoken]
        assert [each.start[0] for each in said if OWN_WORDS.search(each.string)] == [], path


# -- the engine: events in, actions out (decision 0053)

ENGINES = {"engine", "_engine", "bootstrap_state", "_bootstrap_state"}
"""Names under which a state machine is held."""
ASKED = {
    "_mesh": (Mesh, {"admit", "lose", "drop", "vanish", "depart", "present", "absent", "met", "look_round"}),
    "_peerstore": (PeerStore, {"learn", "reached", "forget", "recall", "dump"}),
}
"""Parts that some tasks are given for questions alone: the field, the class, and the methods that change it."""
COMPOSES = {ROOT / "gossip" / "service.py", ROOT / "gossip" / "bootstrap.py"}
"""Files that give a task the parts that it works with."""


def parts() -> frozenset[str]:
    """The public fields of both state machines that are objects with a behaviour of their own."""
    identity, rng, config = Identity(bytes(32)), random.Random(0), GossipConfig()
    run = RunInfo(run_id=RunId(bytes(16)), genesis=Digest(bytes(32)))
    engine = Engine(identity=identity, config=config, run=run, rng=rng)
    fields = (vars(engine) | vars(BootstrapState(identity, config.named, rng))).items()
    ours = {name: it for name, it in fields if name[0] != "_" and type(it).__module__.startswith("gossip.")}
    return frozenset(name for name, it in ours.items() if not dataclasses.is_dataclass(it))


def is_engine(node: ast.AST | None) -> bool:
    return (isinstance(node, ast.Name) and node.id in ENGINES) or (
        isinstance(node, ast.Attribute) and node.attr in ENGINES
    )


def named(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment, and what it is given; of `a, b = c, d` each pair too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                yield target, node.value
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)


def reaches(tree: ast.AST, parts: frozenset[str], *, composes: bool) -> list[str]:
    """Where code reaches through an engine to one of its parts, changes a field of it, or hides it under another name.
    `composes`: a part may be an argument of a call."""
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = [target for target, value in named(tree) if is_engine(value) and not is_engine(target)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_engine(node.value):
            over = above[above[node]] if isinstance(above[node], ast.keyword) else above[node]
            handed = composes and isinstance(over, ast.Call) and over.func is not node
            chained = isinstance(over, ast.Attribute)
            if chained or not isinstance(node.ctx, ast.Load) or (node.attr in parts and not handed):
                found.append(node)
    return [f"{node.lineno}: {ast.unparse(above[node])}" for node in found]


@pytest.mark.slow
def test_nothing_reaches_through_the_engine_to_its_parts() -> None:
    """What happened is a method of the engine, what is to be performed is an action that it leaves, and a task that
    works with one part is given it by name."""
    known = parts()
    assert known >= {"mesh", "peerstore", "publisher", "traffic"}
    own = {ROOT / "gossip" / "engine.py", ROOT / "gossip" / "bootstrap_state.py"}
    found = {}
    for path in (path for folder in ("gossip", "node") for path in ours(folder) if path not in own):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in ENGINES):  # to parse and walk them all takes seconds
            continue
        if it := reaches(ast.parse(text), known, composes=path in COMPOSES):
            found[str(path.relative_to(ROOT))] = it
    assert found == {}


@pytest.mark.parametrize(
    ("code", "composes"),
    [
        ("self._engine.mesh.lose(peer)", True),
        ("context.engine.neighbours.get(peer)", False),
        ("mesh, now = self._context.engine.mesh, 0.0", True),
        ("self._dht = context.engine.dht", False),
        ("return_of(self._engine.traffic)", False),
        ("self._engine.outvoted_liars = True", True),
        ("state = self._engine", False),
        ("machine, now = context.engine, 0.0", False),
        ("self.bootstrap_state.peer_scores.refuse(peer)", True),
    ],
)
def test_a_reach_through_the_engine_is_seen(code: str, composes: bool) -> None:
    assert len(reaches(ast.parse(code), parts(), composes=composes)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "engine = self._context.engine",
        "self._engine.peer_lost(peer, now)",
        "Dialler(context, engine.mesh, peerstore=engine.peerstore)",
        "peer in self._engine.neighbours",
        "engine.seated().values()",
    ],
)
def test_events_questions_and_parts_that_are_handed_over_are_fine(code: str) -> None:
    assert reaches(ast.parse(code), parts(), composes=True) == []


@pytest.mark.parametrize("task", ["dialler_task.py", "lookup_task.py"])
def test_who_finds_peers_changes_neither_mesh_nor_peerstore(task: str) -> None:
    """What became of a dial is an event."""
    used = set()
    for node in ast.walk(ast.parse((ROOT / "gossip" / "discovery" / task).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr in ASKED:
            part, changing = ASKED[node.value.attr]
            assert all(hasattr(part, name) for name in changing)
            assert isinstance(node.ctx, ast.Load), ast.unparse(node)
            assert node.attr not in changing, ast.unparse(node)
            used.add(node.value.attr)
    assert used == set(ASKED)
