"""The model that a private swarm begins from: its manifest names the digest of the weights, and a newcomer's own copy
is checked against it before anything is written."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gossip.membership.settings import Setting, Settings
from node.config.toml_source import Raw
from node.swarm import agreed_settings
from node.system.errors import UsageError
from node.system.light_roles import WITHOUT_MODEL

DIGEST: Final = "digest"
HUB: Final = "hub"
"""What the founder's copy is called on the hub, with its commit; not there for a folder of its own."""

_HEX: Final = re.compile(r"[0-9a-f]{64}")


def task_in(raw: Raw) -> object:
    """Return the name of the task; None where there is none."""
    section = raw.get("task")
    return section.get("name") if isinstance(section, dict) else None


def check_base(settings: Settings, raw: Raw) -> None:
    """Check this machine's copy of the base model against what the manifest says. UsageError."""
    section = agreed_settings.base_in(settings)
    wanted = section.get(DIGEST)
    if not section or _own(raw, "node", "role") in WITHOUT_MODEL:
        return
    if not (isinstance(wanted, str) and _HEX.fullmatch(wanted)):  # it is printed below, and an admin wrote it
        raise UsageError("the swarm's manifest names its base model by something that is no digest", "do not join")
    model = _own(raw, "task", "model")
    if not isinstance(model, str):
        message = f"this swarm trains on a base model with the digest {wanted[:16]}..., which each member brings"
        raise UsageError(message, f"say where it is: {_where(section)}")
    from p2ptrain.tasks.hf.base_model import folder_with_weights

    folder = folder_with_weights(model)
    if folder is None or digest_of_base(folder) != wanted:
        hint = f"the swarm's has the digest {wanted[:16]}...: take it from where its founder did ({_where(section)})"
        raise UsageError(f"the model in {model} is not the swarm's base model", hint)


def _where(section: Mapping[str, Setting]) -> str:
    from p2ptrain.tasks.hf.hub import hub_name

    name = section.get(HUB)
    return f"--model {name}" if isinstance(name, str) and hub_name(name) is not None else "--model FOLDER"


def _own(raw: Raw, section: str, key: str) -> object:
    """A setting; None also where the section is a mistake, which the configuration names later."""
    keys = raw.get(section)
    return keys.get(key) if isinstance(keys, dict) else None


def digest_of_base(folder: Path) -> str:
    """Return the digest of the weights in a folder, in hex digits. Reads all of them once. Raises TaskError."""
    from p2ptrain.tasks.hf.base_model import digest_of_weights

    return digest_of_weights(folder).hex()
