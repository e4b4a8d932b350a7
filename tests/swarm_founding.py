"""Private swarms of simulated nodes: an admin's folder, and members' folders beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.swarm.accept_invite import membership, read_invite
from node.swarm.create import CreateRequest, create
from node.swarm.folder import SwarmFolder
from node.swarm.inviting import Wish


def found_private(
    folder: Path, learning: dict[str, Any], names: Sequence[str], others: Sequence[bytes] = ()
) -> SwarmFolder:
    """A private swarm of these, whose folders in `folder` are members'; the admin's is `folder/lab`. `others`: keys of
    more admins, each of whom signs alone."""
    wish = CreateRequest(
        name="lab", at=("127.0.0.1", 4001), others=tuple(others), first=Wish(uses=len(names), full=True)
    )
    made = create(folder / "lab", {"task": {"name": "digits"}, **learning}, wish, None)
    for name in names:
        join(folder / name, made.line)
    return made.folder


def join(folder: Path, line: str) -> None:
    """Make a member's folder by an invite."""
    member = membership(folder, {}, read_invite(line))
    assert member is not None
    member.settle(None)
