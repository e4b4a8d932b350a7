"""Whether this program is new enough for a swarm."""

import re
from importlib.metadata import PackageNotFoundError, version

from gossip.core.limits import PROTOCOL_VERSION
from gossip.membership import ManifestBody
from node.system.errors import RunError


def own_version() -> str:
    """Return the version of the installed program; empty where it is not installed."""
    try:
        return version("p2ptrain")
    except PackageNotFoundError:
        return ""


def check_version(terms: ManifestBody, ours: str | None = None) -> None:
    """Raise RunError when the swarm asks for a newer program. `ours`: the program's version, by default the installed
    one."""
    if terms.min_protocol > PROTOCOL_VERSION:
        raise _too_old(f"protocol {terms.min_protocol}", f"protocol {PROTOCOL_VERSION}")
    mine = own_version() if ours is None else ours
    if terms.min_app and mine and _numbers(mine) < _numbers(terms.min_app):
        raise _too_old(f"p2ptrain {terms.min_app}", mine)


def _too_old(needed: str, ours: str) -> RunError:
    return RunError(f"the swarm needs {needed} or newer, and this is {ours}", "install a newer p2ptrain")


def _numbers(text: str) -> tuple[int, ...]:
    """`0.4.1rc2` is 0.4.1: who tries what is to be released is new enough."""
    return tuple(int(each) for each in re.findall(r"\d+", text.partition("rc")[0])[:3])
