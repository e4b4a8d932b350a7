"""The p2ptrain that is to come: one wheel, made by pip from a version or a path, and what it says of itself.

Its code runs in another process only. What is looked at is the very file that is installed afterwards.
"""

import sys
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Final
from zipfile import BadZipFile, ZipFile

from node.services.installed_package import PACKAGE
from node.services.service_manager import Done, Run
from node.system.errors import RunError, UsageError

PIP_S: Final = 3600.0
"""Seconds for pip: it may have torch to fetch, over a slow line. Chosen."""

ASK_S: Final = 60.0
"""Seconds for a new interpreter that imports one small module."""

_WIRE: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from gossip.core.limits import PROTOCOL_VERSION
print(PROTOCOL_VERSION)
"""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A wheel of p2ptrain."""

    wheel: Path
    version: str
    wire: int
    """The protocol version of its messages."""


def pip(run: Run, *words: str) -> Done:
    """Run pip of this environment, with its own configuration and the user's (PIP_INDEX_URL, PIP_NO_INDEX, ...)."""
    return run(
        (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", *words), timeout_s=PIP_S
    )


def require_pip(run: Run) -> None:
    """Raise RunError where this environment has no pip."""
    if pip(run, "--version").code:
        raise RunError(f"the environment of {sys.executable} has no pip", "python -m ensurepip, in that environment")


def candidate(run: Run, to: str, folder: Path) -> Candidate:
    """Have pip fetch or build what is to come in `folder`, and return it. UsageError for a path that is not there;
    RunError where pip fails, or it is no p2ptrain."""
    done = pip(run, "wheel", "--no-deps", "--wheel-dir", str(folder), _requirement(to))
    if done.code:
        raise RunError(f"pip cannot get p2ptrain {to}: {done.why()}", "give a version that pip finds, or a path")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise RunError(f"{to} is {len(wheels)} packages, not one", "give one wheel, one sdist or one checkout")
    name, version = _name_and_version(wheels[0])
    if name != PACKAGE:
        raise UsageError(f"{to} is {name or 'no package'}, not {PACKAGE}", "give a p2ptrain")
    return Candidate(wheel=wheels[0], version=version, wire=wire_version(run, wheels[0]))


def wire_version(run: Run, wheel: Path) -> int:
    """Return the protocol version of a wheel, asked of its own code in a process apart. RunError where it says none."""
    done = run((sys.executable, "-I", "-S", "-c", _WIRE, str(wheel)), timeout_s=ASK_S)
    if done.code or not done.out.strip().isdigit():
        raise RunError(f"{wheel.name} does not say which wire version it speaks ({done.why()})", "is it a p2ptrain?")
    return int(done.out)


def _requirement(to: str) -> str:
    if to[:1].isdigit() and "/" not in to and not Path(to).exists():
        return f"{PACKAGE}=={to}"
    path = Path(to).expanduser()
    if not path.exists():
        raise UsageError(f"there is no {to}", "give a version such as 0.2.0, or the path of a wheel, sdist or checkout")
    return str(path.absolute())


def _name_and_version(wheel: Path) -> tuple[str, str]:
    try:
        with ZipFile(wheel) as files:
            (meta,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
            told = HeaderParser().parsestr(files.read(meta).decode("utf-8", "replace"))
    except (OSError, BadZipFile, ValueError) as error:
        raise RunError(f"{wheel.name} is damaged ({error})", "get it again") from None
    return str(told["Name"] or "").lower(), str(told["Version"] or "")
