"""Private swarms of simulated nodes: an admin's folder, and members' folders beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.swarm.accept_invite import membership, read_invite
from node.swarm.create import CreateRequest, create
from node.swarm.folder import SwarmFolder
from node.swarm.inviting import Wish


def found_private(folder: Path, learning: dict[str, Any], names: Sequence[str]) -> SwarmFolder:
    """A private swarm of these, whose folders in `folder` are members'; the admin's is `folder/lab`."""
    wish = CreateRequest(name="lab", at=("127.0.0.1", 4001), first=Wish(uses=len(names), full=True))
    made = create(folder / "lab", {"task": {"name": "digits"}, **learning}, wish, None)
    for name in names:
        member = membership(folder / name, {}, read_invite(made.line))
        assert member is not None
        member.settle(None)
    return made.folder
