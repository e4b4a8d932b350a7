"""Who may import whom: the contracts of pyproject.toml, held as a test."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_import_contracts_hold() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def ours(folder: str) -> list[Path]:
    """Its Python files, but for those of packages that were installed there."""
    return [path for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts]


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them as top-level modules, and so do they each other's harnesses."""
    names = Counter(path.name for path in ours("tests"))
    assert not [name for name, count in names.items() if count > 1]
