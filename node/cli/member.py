"""What --invite, --swarm and a member's folder mean to `p2ptrain node` and `p2ptrain doctor`."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from node import run_dir as folders
from node.errors import UsageError

if TYPE_CHECKING:
    from node.config_source import Raw
    from node.swarm.joining import Membership


def run_dir_of(run_dir: Path | None, swarm: Path | None, invite: str | None) -> Path:
    """The run folder: the one given, the founder's, or a fresh name. UsageError where two contradict each other."""
    if swarm is None:
        return run_dir or folders.fresh_run_dir(datetime.now())
    from node.swarm.folder import SwarmFolder

    if invite is not None or run_dir is not None:
        raise UsageError("--swarm is the founder's folder, which has its own node", "leave --invite and --run-dir out")
    SwarmFolder(swarm).chain()
    return swarm


def membership_in(run_dir: Path, raw: "Raw", invite: str | None) -> "Membership | None":
    """What the folder or the invite makes of this node: a private swarm's member, or (None) nothing of the kind."""
    if invite is None and not run_dir.exists():
        return None
    from node.sections import NodeConfig
    from node.swarm import joining

    section = raw.get("node")
    name = section.get("name", NodeConfig.name) if isinstance(section, dict) else NodeConfig.name
    invitation = None if invite is None else joining.read_invite(invite)
    return joining.membership(run_dir / str(name), raw, invitation)


def passphrase_in(folder: Path, file: Path | None) -> bytes | None:
    """Of the node's key, where that lies under one, or is yet to be made. UsageError."""
    from gossip.identity import Identity
    from node.swarm.passphrases import from_file, passphrase_for

    key = folder / folders.IDENTITY
    if not key.exists():
        return None if file is None else from_file(file)
    return passphrase_for(file, f"the key {key}") if Identity.is_sealed(key) else None


def secrets_of(member: "Membership | None") -> tuple[bytes | None, ...]:
    """What no log may show of the invite that is being taken up; the node's own keys tell themselves."""
    invitation = None if member is None else member.invitation
    return () if invitation is None else (invitation.secret.seed, invitation.psk)
