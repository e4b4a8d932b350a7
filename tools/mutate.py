"""Break a hundred places of the core, one at a time, and see which of them the fast tests notice.

    python tools/mutate.py --first 40 --out mutation.json

The places are drawn with a seed, the same number from each part of the core (PARTS), and each is broken in one way: a
comparison or a boolean turned round, a bound moved by one, `return None`, a branch that is never taken. A place has a
name by its module, its function and its text, so that a list of places (`--out`, then `--places`) can be tried again on
another version of the code: a module that was renamed is found by the function and the text.

All is done in a copy of the tree. For each place the test files that mention its module run, those that say most of it
first, with `pytest -x`, for `--seconds` of CPU at most: a place that nothing notices by then has survived, and so has
one whose mutant cannot be told from the original. A mutant that hangs is stopped, and counts as caught. A test counts
where it passes on the whole tree. Tests of real processes are left out. The score is a share of the places tried: it
says something about a suite only beside that of another suite for the same places and the same seconds.
"""

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    *("gossip/core", "gossip/updates", "gossip/blobs", "gossip/discovery", "gossip/membership"),
    *("p2ptrain/aggregate", "p2ptrain/compress", "p2ptrain/sync", "node"),
)
NOT_CORE = ("node/cli", "node/bench", "node/doctor", "node/top", "node/page", "node/up")
"""Of `node`: what people see, and what measures."""

SLOW = ("tests/integration", "tests/interop")
TREES = ("p2ptrain", "gossip", "node", "tests", "docs", "configs", "monitoring", "examples", "pyproject.toml")
"""What the tests need of the tree."""

PLACES = 100
CPU_S = 20.0
"""For one place. Chosen: most that are caught at all are caught within 10 s, 3 of which are imports."""

FILES = 6
"""Of tests, for one place. Chosen: each takes time to be imported, and what is caught is caught by the first few."""

ORDER = Path("mutate_order.py")
AS_GIVEN = '''"""The test files in the order in which they were given, whatever the tests say of their order."""
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    given = [word.split("::")[0] for word in config.args]
    items.sort(key=lambda item: given.index(item.nodeid.split("::")[0]))
'''

INTERRUPTED, NO_TESTS = 2, 5
"""Exit codes of pytest: a test file cannot be imported; none was found."""

FLIPS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the code is broken, and how: `was` becomes `becomes`. `nth` of the same in its function."""

    module: str
    function: str
    kind: str
    was: str
    becomes: str
    nth: int = 0

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.module}:{self.function}: {self.was} -> {self.becomes}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of it."""

    place: Place
    caught: bool
    by: str
    """The first test that failed, or why there is none."""
    seconds: float


class Finder(ast.NodeVisitor):
    """All places of a module, each with the span of text that is replaced."""

    def __init__(self, module: str, text: str) -> None:
        self.found: list[tuple[Place, int, int]] = []
        self._module, self._text, self._names = module, text, []  # type: ignore[var-annotated]
        self._lines = [0]
        for line in text.encode().splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._seen: Counter[Place] = Counter()
        self.visit(ast.parse(text))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if node.name.startswith("__") and node.name != "__init__":
            return
        self._names.append(node.name)
        for each in node.body:  # defaults, annotations and decorators are left alone
            self.visit(each)
        self._names.pop()

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Assert(self, node: ast.Assert) -> None:
        return

    def visit_Raise(self, node: ast.Raise) -> None:
        return

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)  # `x[0]` moved by one ends in an IndexError: that says nothing
        if not isinstance(node.slice, ast.Constant):
            self.visit(node.slice)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = self._of(node.left), self._of(node.comparators[0])
            self._add(node, "comparison", f"{left} {FLIPS[type(node.ops[0])]} {right}")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " or " if isinstance(node.op, ast.And) else " and "
        self._add(node, "boolean", word.join(f"({self._of(each)})" for each in node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, "boolean", f"bool({self._of(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, "boolean", str(not node.value))
        elif isinstance(node.value, int) and self._names:
            self._add(node, "constant", str(node.value + 1))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add(node, "return", "return None")
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        self._add(node.test, "branch", "False")
        self.generic_visit(node)

    def _of(self, node: ast.AST) -> str:
        return ast.get_source_segment(self._text, node) or ""

    def _add(self, node: ast.expr | ast.stmt, kind: str, becomes: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        if not self._names:
            return
        was = " ".join(self._of(node).split())
        place = Place(
            module=self._module, function=".".join(self._names), kind=kind, was=was, becomes=" ".join(becomes.split())
        )
        nth = self._seen[place]
        self._seen[place] += 1
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[node.end_lineno - 1] + node.end_col_offset
        self.found.append((replace(place, nth=nth), start, end))


def sources(root: Path) -> Iterator[str]:
    """Every module of the core."""
    for part in PARTS:
        for path in sorted((root / part).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not name.startswith(NOT_CORE) and path.name != "__init__.py":
                yield name


def drawn(root: Path, seed: int) -> list[Place]:
    """PLACES places, the same number from each part, in a drawn order. No function twice while there are others."""
    rng = random.Random(seed)
    of_part: dict[str, list[Place]] = {part: [] for part in PARTS}
    for name in sources(root):
        part = next(part for part in PARTS if name.startswith(f"{part}/"))
        of_part[part].extend(place for place, _, _ in Finder(name, (root / name).read_text()).found)
    chosen: list[list[Place]] = []
    for places in of_part.values():
        rng.shuffle(places)
        functions: Counter[tuple[str, str]] = Counter()
        order = []
        for place in places:
            functions[place.module, place.function] += 1
            order.append(functions[place.module, place.function])
        ranked = [place for _, place in sorted(zip(order, places, strict=True), key=lambda pair: pair[0])]
        chosen.append(ranked)
    return [each for turn in zip(*chosen, strict=False) for each in turn][:PLACES]


def located(root: Path, place: Place) -> tuple[str, str]:
    """The module in which the place is now, and the text of that module with it broken. LookupError: it is gone."""
    names = list(dict.fromkeys([place.module, *sources(root)]))
    for exact in (True, False):
        for name in names:
            if not (root / name).exists():
                continue
            text = (root / name).read_text()
            for found, start, end in Finder(name, text).found:
                last = place.function.rsplit(".", 1)[-1]
                same = found.function == place.function if exact else found.function.rsplit(".", 1)[-1] == last
                if same and (found.kind, found.was, found.nth) == (place.kind, place.was, place.nth):
                    raw = text.encode()
                    becomes = place.becomes if place.kind == "return" else f"({place.becomes})"
                    return name, (raw[:start] + becomes.encode() + raw[end:]).decode()
    raise LookupError(place.name)


def concerned(root: Path, name: str, function: str) -> list[str]:
    """Test files that mention the module, or what imports it, those that say most of it first."""
    dotted = name.removesuffix(".py").replace("/", ".")
    package, _, leaf = dotted.rpartition(".")
    defined = re.findall(r"^(?:class|def|async def) (\w+)|^([A-Z_]{3,})(?::| =)", (root / name).read_text(), re.M)
    words = {word for pair in defined for word in pair if word and not word.startswith("_")}
    last = function.rsplit(".", 1)[-1].lstrip("_")
    scores = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        test = path.relative_to(root).as_posix()
        if test.startswith(SLOW):
            continue
        text = path.read_text()
        direct = 20 * (dotted in text or f"from {package} import {leaf}" in text)
        said = sum(1 for word in words if re.search(rf"\b{word}\b", text))
        calls = 5 * bool(re.search(rf"\b{last}\b", text)) if last != "init__" else 0
        near = 6 * (path.stem.removeprefix("test_") in leaf or leaf in path.stem)
        home = test.startswith((f"tests/{name.split('/')[0]}/", f"tests/{name.split('/')[-2]}/"))
        contract = 6 * (test.startswith("tests/contracts/") and name.split("/")[-2][:6] in path.stem)
        if score := direct + said + calls + near + contract:
            scores[test] = score + home
    return sorted(scores, key=lambda test: (-scores[test], test))[:FILES]


class Trials:
    """A tree in which places are broken and mended, and what is known of its tests."""

    def __init__(self, root: Path, cpu_s: float, thorough: bool) -> None:
        self._root, self._cpu_s, self._thorough = root, cpu_s, thorough
        (root / ORDER).write_text(AS_GIVEN)
        self._sound: set[str] = set()
        self._unsound: set[str] = set()

    def run(self, place: Place) -> Verdict:
        """Break the place, run the tests that concern it, and mend it. LookupError: there is no such place."""
        name, broken = located(self._root, place)
        tests = concerned(self._root, name, place.function)
        path = self._root / name
        whole = path.read_text()
        began = time.monotonic()
        while True:
            path.write_text(broken)
            try:
                caught, by = self._tested(tests)
            finally:
                path.write_text(whole)
            if not caught or self._passes(by):
                return Verdict(place=place, caught=caught, by=by, seconds=time.monotonic() - began)

    def _passes(self, test: str) -> bool:
        """Whether this test passes on the whole tree; where it does not it is left out from now on."""
        if "::" in test and not {test} & (self._sound | self._unsound):
            (self._unsound if self._tested([test])[0] else self._sound).add(test)
        return test not in self._unsound

    def _tested(self, tests: list[str]) -> tuple[bool, str]:
        """Whether a test fails, and which."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
        left_out = ["soak", "alone", "paired", *([] if self._thorough else ["thorough"])]
        which = " and ".join(f"not {mark}" for mark in left_out)
        command += ["-p", ORDER.stem, "-o", "filterwarnings=ignore", "-m", which]
        command += [word for test in sorted(self._unsound) for word in ("--deselect", test)]
        more = {"PYTHONPATH": str(self._root), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        more |= {"THOROUGH": "1"} if self._thorough else {}
        environment = os.environ | more | {"PYTHONDONTWRITEBYTECODE": ""}  # what is compiled is kept for the next
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [*command, *tests],
                cwd=self._root,
                env=environment,
                stdout=said,
                stderr=said,
                preexec_fn=self._limit,
                start_new_session=True,
            )
            try:
                code = process.wait(10 * self._cpu_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True, "it hangs"
            said.seek(0)
            text = said.read()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return False, "no test in the time given"
        if code in (0, NO_TESTS):
            return False, f"no test of {len(tests)} files"
        if code not in (1, INTERRUPTED) and code > 0:
            raise RuntimeError(text[-2000:])
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.M)
        return True, failed[1] if failed else f"pytest ended with {code}"

    def _limit(self) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(self._cpu_s), int(self._cpu_s) + 5))


def copied(target: Path) -> Path:
    """The tree, as it is now."""
    for each in TREES:
        if (ROOT / each).is_dir():
            shutil.copytree(ROOT / each, target / each, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        elif (ROOT / each).exists():
            shutil.copy(ROOT / each, target / each)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, target / page.name)
    return target


def told(verdicts: list[Verdict]) -> str:
    """A table by part, and the names of those that survived."""
    lines = ["part                  tried  caught"]
    for part in PARTS:
        its = [each for each in verdicts if each.place.module.startswith(f"{part}/")]
        if its:
            lines.append(f"{part:20}  {len(its):5}  {sum(each.caught for each in its):6}")
    caught = sum(each.caught for each in verdicts)
    lines.append(f"{'all':20}  {len(verdicts):5}  {caught:6}  ({caught / max(1, len(verdicts)):.0%})")
    lines += [f"survived: {each.place.name} ({each.by})" for each in verdicts if not each.caught]
    return "\n".join(lines)


def main() -> None:
    """Try the places, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=PLACES, help="how many of the places")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=CPU_S, help="of CPU, for each place")
    parser.add_argument("--thorough", action="store_true", help="with the tests that `make thorough` adds")
    parser.add_argument("--places", type=Path, help="take the places from what --out wrote")
    parser.add_argument("--out", type=Path, help="write the places and the verdicts here, as JSON")
    options = parser.parse_args()
    if options.places:
        places = [Place(**each["place"]) for each in json.loads(options.places.read_text())]
    else:
        places = drawn(ROOT, options.seed)
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        trials = Trials(copied(Path(folder)), options.seconds, options.thorough)
        for place in places[: options.first]:
            try:
                verdict = trials.run(place)
            except LookupError:
                print(f"gone: {place.name}", flush=True)
                continue
            verdicts.append(verdict)
            word = "caught" if verdict.caught else "SURVIVED"
            print(f"{word} {verdict.seconds:.0f} s: {place.name}  [{verdict.by}]", flush=True)
            if options.out:
                options.out.write_text(json.dumps([asdict(each) for each in verdicts], indent=1) + "\n")
    print(told(verdicts))


if __name__ == "__main__":
    main()
