"""A swarm's state beside a framework's own checkpoint: two files in its folder."""

import json
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gossip.core.atomic_file import write_atomic
from node.system.errors import UsageError

TENSORS: Final = "p2ptrain_swarm.safetensors"
META: Final = "p2ptrain_swarm.json"
"""Written last: with it the state is whole."""


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write `Swarm.state_dict()` into `folder`, in place of one that is there. Raises OSError."""
    (folder / META).unlink(missing_ok=True)  # or it would say of the new tensors what it said of the old ones
    save_file({name: value.contiguous() for name, value in state["tensors"].items()}, folder / TENSORS)
    rest = {name: value for name, value in state.items() if name != "tensors"}
    write_atomic(folder / META, json.dumps(rest).encode())


def load_state(folder: Path) -> dict[str, Any]:
    """Return what `save_state` has written; {} where there is nothing whole. Raises UsageError where it is damaged."""
    if not (folder / META).is_file():
        return {}
    try:
        rest = json.loads((folder / META).read_bytes())
        return {**rest, "tensors": load_file(folder / TENSORS)}
    except (ValueError, TypeError, OSError, SafetensorError) as error:
        raise UsageError(
            f"the swarm's state in {folder} is damaged ({error})", "resume from the checkpoint before"
        ) from None
