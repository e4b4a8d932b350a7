"""Figures of the code: files, lines, lengths, names that exist twice, imports between packages that go both ways."""

import ast
import statistics
from collections import defaultdict
from pathlib import Path

from node.system.script_end import ended_in_a_line

PACKAGES = ("p2ptrain", "gossip", "node")
CONVENTION = {"__init__.py", "base.py"}
"""File names that every package may have: `base.py` is the contract of an extension point."""


def spread(values: list[int]) -> str:
    """Median, 90th percentile and largest."""
    ordered = sorted(values)
    return f"{statistics.median(ordered):.0f}/{ordered[len(ordered) * 9 // 10]}/{ordered[-1]}"


def main() -> None:
    """Print one line a figure."""
    lines: list[int] = []
    functions: list[int] = []
    files: dict[tuple[str, str], list[Path]] = defaultdict(list)
    classes: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted(Path(package).rglob("*.py")):
            text = path.read_text()
            lines.append(text.count("\n"))
            files[package, path.name].append(path)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
                if isinstance(node, ast.ClassDef):
                    classes[package, node.name].append(path)
    print(f"files {len(lines)}, lines {sum(lines)}, lines a file {spread(lines)}, lines a function {spread(functions)}")
    for what, names in (("file", files), ("class", classes)):
        twice = {key: paths for key, paths in names.items() if len(paths) > 1 and key[1] not in CONVENTION}
        print(f"{what} names that exist twice in a package: {len(twice)}")
        for (package, name), paths in sorted(twice.items()):
            print(f"  {package}: {name}: {', '.join(map(str, paths))}")


if __name__ == "__main__":
    with ended_in_a_line():
        main()
