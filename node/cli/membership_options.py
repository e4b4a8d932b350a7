"""What a run folder, --invite and --swarm mean to `p2ptrain node` and `p2ptrain doctor`."""

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from node.system import run_dir as folders
from node.system.errors import UsageError

if TYPE_CHECKING:
    from gossip.membership import InviteBundle, ShortInvite
    from node.config.schema import Config
    from node.config.toml_source import Raw
    from node.swarm.accept_invite import Membership


def run_dir_of(run_dir: Path | None, swarm: Path | None, invite: str | None) -> Path:
    """Return the run folder: the one given, the founder's, or a fresh name. UsageError where two contradict each
    other."""
    if swarm is None:
        return run_dir or folders.fresh_run_dir(datetime.now())
    from node.swarm.folder import SwarmFolder

    if invite is not None or run_dir is not None:
        raise UsageError("--swarm is the founder's folder, which has its own node", "leave --invite and --run-dir out")
    SwarmFolder(swarm).chain()
    return swarm


def settings_in(run_dir: Path, given: "Raw", invite: str | None) -> tuple["Raw", "Membership | None"]:
    """Return all settings of the node that is meant, and its membership of a private swarm. A member's settings are the
    swarm's; those of another node are its folder's. What its owner should know of the folder goes to stderr. Writes
    nothing. UsageError."""
    from node.config import run_settings
    from node.config.sections import NodeConfig
    from node.config.toml_source import merge

    name = run_settings.node_name(run_dir, given)
    if name != NodeConfig.name:
        merge(given, {"node": {"name": name}})
    member = _membership_in(run_dir / name, given, invite)
    if member is not None:
        return member.raw, member
    raw, notes = run_settings.of_node(run_dir / name, given)
    warn(notes)
    return raw, None


def awaiting_peers(config: "Config") -> "Config":
    """Return the settings with one neighbour to wait for before training begins, where peers are named and no number
    is: who names peers does not want to train alone."""
    if not (config.network.named_peers or config.network.behind_relay) or config.node.wait_for:
        return config
    return config.model_copy(update={"node": replace(config.node, wait_for=1)})


def warn(notes: Iterable[str]) -> None:
    """Print warnings on stderr, a line each."""
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)


def _membership_in(node_dir: Path, given: "Raw", invite: str | None) -> "Membership | None":
    if invite is None and not node_dir.exists():
        return None
    from node.swarm import accept_invite

    invitation = None if invite is None else accept_invite.read_invite(invite)
    member = accept_invite.membership(node_dir, given, invitation, lambda short: _fetched(short, given))
    if member is not None and member.invitation is not None:
        warn(accept_invite.ending(member.invitation, time.time()))
    return member


def _fetched(short: "ShortInvite", given: "Raw") -> "InviteBundle":
    from node.swarm.fetch_manifests import fetched

    network = given.get("network", {})
    peers, via, spool = network.get("peers", ()), network.get("via"), network.get("spool")
    return fetched(
        short,
        [each for each in peers if isinstance(each, str)],
        via=via if isinstance(via, str) else None,
        spool=Path(spool) if isinstance(spool, str) else None,
    )


def passphrase_in(folder: Path, file: Path | None) -> bytes | None:
    """Return the passphrase of the node's key, where that is encrypted, or is yet to be made. UsageError."""
    from gossip.core.identity import Identity
    from node.swarm.passphrases import new_from_file, passphrase_for

    key = folder / folders.IDENTITY
    if not key.exists():
        return None if file is None else new_from_file(file)
    return passphrase_for(file, f"the key {key}") if Identity.is_sealed(key) else None


def secrets_of(member: "Membership | None") -> tuple[bytes | None, ...]:
    """Return what no log may show of the invite that is being redeemed. The node's own keys report theirs
    themselves."""
    invitation = None if member is None else member.invitation
    return () if invitation is None else (invitation.secret.seed, invitation.psk)
