"""Compiles all that a run imports, each of its processes a part: all of them need all of it, at the same moment."""

import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from itertools import islice
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).resolve().parent.parent
OURS = ("tests", "p2ptrain", "gossip", "node")


def compile_part(config: pytest.Config, number: int, count: int) -> None:
    """Compile part `number` of `count` parts, from 0, of what is not compiled yet: in a fresh clone it takes half a
    minute of a core. A file that cannot be compiled is left to whoever imports it."""
    if sys.dont_write_bytecode:
        return
    for path in islice(_sources(), number, None, count):
        try:
            if path.name.startswith("test_"):
                _rewrite(config, path)
            else:
                SourceFileLoader(path.stem, str(path)).get_code(path.stem)
        except (SyntaxError, ValueError, OSError):
            continue


def _sources() -> Iterator[Path]:
    for folder in OURS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def _rewrite(config: pytest.Config, path: Path) -> None:
    """As pytest's own import of a test file does, which has no name for this half of it."""
    folder = rewrite.get_cache_dir(path)
    compiled = folder / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite.try_makedirs(folder) and rewrite._read_pyc(path, compiled) is None:
        source, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, compiled)
