"""The page's scripts and styles as text for one file: modules of `node/page/static` and of this folder, in their order.

The scripts are ES modules that a node's page loads by themselves. A file on disk may load none, so each becomes a
function, whose exports the later ones take: what they share stands once, in the modules.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from node.page.status_server import FOLDER as PAGE

OWN: Final = Path(__file__).parent / "static"

MODULES: Final = (PAGE / "words.js", PAGE / "chart.js", PAGE / "exchanges.js", OWN / "plane.js", OWN / "report.js")
"""In an order in which each comes after those that it imports."""

STYLES: Final = (PAGE / "uplot.css", PAGE / "page.css", OWN / "report.css")

_IMPORT: Final = re.compile(r"^import (\{[^}]*\}) from \"\./([\w.]+)\";$", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (const|function|class) (\w+)", re.MULTILINE)
_MODULE_WORD: Final = re.compile(r"^\s*(?:import|export)\b", re.MULTILINE)


def script(modules: Sequence[Path] = MODULES) -> str:
    """Return the library and the modules as one script. ValueError on a form of import or export that it cannot
    carry."""
    bodies = [_whole(module) for module in modules]
    library = (PAGE / "uplot.js").read_text(encoding="utf-8")
    return f'{library}\n(() => {{\n"use strict";\nconst modules = {{}};\n{"".join(bodies)}}})();\n'


def _whole(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    names = [name for _, name in _EXPORT.findall(source)]
    body = _IMPORT.sub(lambda found: f'const {found[1]} = modules["{found[2]}"];', source)
    body = _EXPORT.sub(lambda found: f"{found[1]} {found[2]}", body)
    if _MODULE_WORD.search(body):
        raise ValueError(f"{path.name} has an import or export of a form that a report's script cannot carry")
    return f'modules["{path.name}"] = (() => {{\n{body}\nreturn {{ {", ".join(names)} }};\n}})();\n'


def styles() -> str:
    """Return all styles."""
    return "\n".join(path.read_text(encoding="utf-8") for path in STYLES)


def licence() -> str:
    """Return the library's licence, which goes with every copy of it."""
    return (PAGE / "uplot.LICENSE").read_text(encoding="utf-8")
