"""Which rank of a site this process is, by what torchrun says in the environment. It imports no torch."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class SiteProcess:
    """This process among those that torchrun has started."""

    rank: int
    count: int
    local_rank: int
    """Among those of this machine: the number of its GPU."""
    local_count: int = 1
    """Of this machine."""
    restarts: int = 0
    """How often torchrun may start the ranks again."""

    def launcher(self) -> list[str]:
        """Return the words before those of a `p2ptrain` command that start as many ranks on this machine."""
        return ["torchrun", "--nproc-per-node", str(self.local_count), "-m", "p2ptrain"]


def site_process(variables: Mapping[str, str] = os.environ) -> SiteProcess | None:
    """Return what this process is; None where torchrun has not started it."""
    try:
        return SiteProcess(
            rank=int(variables["RANK"]),
            count=int(variables["WORLD_SIZE"]),
            local_rank=int(variables["LOCAL_RANK"]),
            local_count=int(variables.get("LOCAL_WORLD_SIZE", 1)),
            restarts=int(variables.get("TORCHELASTIC_MAX_RESTARTS", 0)),
        )
    except (KeyError, ValueError):
        return None


def leave(code: int) -> None:
    """End this process at once, where it is in a group of torch's: the group's threads outlive it, and one that needs
    Python while that ends would abort the process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
