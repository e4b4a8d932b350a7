"""Wheels of the tree as it is, and as other releases of it, and an environment whose own p2ptrain pip replaces.

The environment sees the packages that p2ptrain needs where this one has them, and no index is asked.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_CACHE_DIR": "1"}
"""PIP_NO_BUILD_ISOLATION=0 is what turns the isolation off: pip reads it as the option's value, which is negated."""


def release(folder: Path, version: str, changes: Mapping[str, tuple[str, str]] | None = None) -> Path:
    """A checkout of `version` in `folder`; `changes`: in these files, what stands instead of what."""
    for package in ("p2ptrain", "gossip", "node"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    named = {"pyproject.toml": ('version = "0.1.0"', f'version = "{version}"'), **(changes or {})}
    for name, (old, new) in named.items():
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, name
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")
    return folder


def wheel_of(checkout: Path, out: Path) -> Path:
    """The wheel that pip builds of a checkout."""
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(out), str(checkout)]
    subprocess.run(pip, check=True, capture_output=True, env=os.environ | OFFLINE)
    return max(out.glob("*.whl"), key=lambda path: path.stat().st_mtime)


def environment(folder: Path, wheel: Path) -> Path:
    """A virtual environment in which `wheel` is installed; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--no-deps", str(wheel)]
    here = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # there pip may find this checkout
    subprocess.run(install, check=True, capture_output=True, env=here | OFFLINE, cwd=folder)
    return python
