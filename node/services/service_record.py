"""What a service starts, and where. It lies as JSON in the service's own file, so that no second file can differ."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from node.system.errors import RunError, UsageError

DEFAULT_NAME: Final = "node"

NO_INVITE: Final = "P2PTRAIN_INVITE"
"""A variable that no service is started with: an invite is redeemed once, and is refused when it has ended."""

CARRIED: Final = (
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "TORCH_HOME",
    "XDG_CACHE_HOME",
    "TZ",
)
"""Variables that a service gets from the shell that installs it: where modules, libraries, caches and devices are, and
the time zone of `network.quiet_hours`. None of them holds a secret. HF_TOKEN and the like belong in a file of mode
0600."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Letters that file names, systemd and launchd take as they are; as a node's folder is named."""


@dataclass(frozen=True, kw_only=True)
class ServiceRecord:
    """One service. `argv` is what is started, its interpreter first, in the working directory `folder`."""

    name: str
    argv: tuple[str, ...]
    folder: Path
    node_dir: Path
    """The node's own folder, where its events and checkpoints are."""
    environment: dict[str, str]

    @property
    def python(self) -> Path:
        """Return the path of the interpreter."""
        return Path(self.argv[0])

    def to_json(self) -> str:
        """Return the record on one line, in ASCII."""
        return json.dumps(asdict(self), default=str)


def parse_record(text: str, where: Path) -> ServiceRecord:
    """Return the record in `text`, which the file `where` holds. RunError where it is none."""
    try:
        raw = json.loads(text)
        return ServiceRecord(
            name=str(raw["name"]),
            argv=tuple(map(str, raw["argv"])),
            folder=Path(raw["folder"]),
            node_dir=Path(raw["node_dir"]),
            environment={str(key): str(value) for key, value in raw["environment"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{where} is damaged", "install the service again with --replace") from None


def check_name(name: str) -> str:
    """Return the name. UsageError where it cannot be a service's."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"service name {name!r} is not usable", "letters, digits, dots and dashes, 64 at most")
    return name


def carried(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that a service needs, of those of a shell."""
    return {name: environment[name] for name in CARRIED if environment.get(name)}
