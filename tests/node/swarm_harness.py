"""Swarms made in a folder by the functions behind the commands, without a passphrase: sealing takes half a second."""

import time
from pathlib import Path
from typing import Any

from gossip.core.keyfile import Cost, seal
from gossip.membership import Role
from node.cli import main
from node.config.toml_source import Raw
from node.swarm.accept_invite import Membership, membership, read_invite
from node.swarm.create import CreatedSwarm, CreateRequest, create
from node.swarm.folder import SwarmFolder
from node.swarm.inviting import Wish, give

DIGITS: Raw = {"task": {"name": "digits"}, "train": {"rounds": 3, "inner_steps": 2}}
CHEAP = Cost(operations=1, memory_bytes=1 << 20)
AT = ("127.0.0.1", 4001)
"""Where the founder's node says it is; no test listens there."""


def founded(out: Path, raw: Raw | None = None, **wish: Any) -> CreatedSwarm:
    """A swarm in `out`."""
    wanted = {"name": "lab", "at": AT, "first": Wish(uses=10, full=True), **wish}
    return create(out, DIGITS if raw is None else raw, CreateRequest(**wanted), None)


def line_of(folder: SwarmFolder, **wish: Any) -> str:
    """One more invite, which is taken up where no member answers."""
    return give(folder, folder.authority(None), Wish(**{"full": True, **wish}))


def joined(node_dir: Path, line: str, given: Raw | None = None) -> Membership:
    """A member's folder by an invite."""
    member = membership(node_dir, given or {}, read_invite(line))
    assert member is not None
    member.settle(None)
    return member


def appointed_role(folder: SwarmFolder, node_dir: Path, role: Role) -> Membership:
    """A member of this role."""
    return joined(node_dir, line_of(folder, role=role))


def seal_cheaply(monkeypatch: Any) -> None:
    """Passphrases that take a millisecond, not half a second."""
    for module in ("gossip.core.identity", "gossip.membership.authority"):
        monkeypatch.setattr(f"{module}.seal", lambda *given, **how: seal(*given, **{**how, "cost": CHEAP}))


def now() -> int:
    """Unix seconds."""
    return int(time.time())


def said(capsys: Any, *words: object) -> tuple[int, str, str]:
    """A command's exit code, output and errors."""
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def mistake(capsys: Any, *words: object) -> str:
    """What a command that is wrong says: one line, and exit code 2."""
    code, out, err = said(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    assert err.startswith("error: ")
    return err
