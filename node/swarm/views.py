"""What there is to see of a swarm: in an invite, in an admin's folder, in a member's."""

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gossip.membership import Certificate, InviteBundle, ManifestChain, Policy, Roster, ShortInvite
from gossip.membership.check_membership import expired
from node.events.log import read_events
from node.events.progress import NodeProgress
from node.swarm import agreed_settings
from node.swarm.folder import NODE, SwarmFolder, membership_of
from node.system.errors import RunError, UsageError
from node.system.run_dir import EVENTS, LOCK


def member_dir(path: Path) -> Path:
    """Return the node's folder in an admin's, a run's or a node's folder. UsageError when none of them is a
    member's."""
    beside = sorted(each for each in path.glob("*") if each.is_dir()) if path.is_dir() else []
    for each in (path / NODE, path, *beside):
        if membership_of(each).joined:
            return each
    raise UsageError(f"{path} is no swarm's folder", "give the one of swarm create, or a member's run folder")


def progress_of(node_dir: Path) -> NodeProgress | None:
    """Return where the folder's node stands by its events; None where it has none."""
    if not (node_dir / EVENTS).is_file():
        return None
    progress = NodeProgress(node_dir.name)
    for event in read_events(node_dir / EVENTS):
        progress.observe(event)
    return progress


def round_of(node_dir: Path) -> int | None:
    """Return the round that the folder's node is in, or was; None where it never trained."""
    progress = progress_of(node_dir)
    return None if progress is None or progress.started_at is None else progress.rounds_done


def is_running(node_dir: Path) -> bool:
    """Return whether a process has the folder now."""
    try:
        with (node_dir / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def swarm_view(chain: ManifestChain) -> dict[str, Any]:
    """Return what the newest manifest says, as JSON has it. Nothing in it is secret."""
    newest, terms = chain.newest, chain.newest.terms
    return {
        "swarm": newest.swarm.hex(),
        "name": terms.name,
        "version": newest.version,
        "applies_at": newest.applies_at,
        "admins": [each.hex() for each in terms.admins],
        "threshold": terms.threshold,
        "policy": terms.policy.value,
        "allow": sorted(terms.allow) if terms.policy is Policy.ALLOW else None,
        "max_members": terms.max_members or None,
        "bootstrap": list(terms.bootstrap),
        "min_protocol": terms.min_protocol,
        "min_app": terms.min_app,
        "psk": terms.psk_fingerprint is not None,
        "same_data": agreed_settings.data_digest_in(terms.settings),
        "base": dict(agreed_settings.base_in(terms.settings)) or None,
        "recipe": agreed_settings.digest_of_recipe(terms.settings),
        "settings": {name: dict(keys) for name, keys in terms.settings.items() if isinstance(keys, Mapping)},
        "conflicts": sorted(chain.conflicts) if chain.forked else [],
    }


def line_view(invitation: InviteBundle | ShortInvite) -> dict[str, Any]:
    """Return an invite, and its swarm. Of a short invite the swarm is what a member answers now, or else what the line
    alone says, with the reason as `missing`. No use of it is taken."""
    invite = invite_view(invitation)
    if isinstance(invitation, InviteBundle):
        return swarm_view(invitation.chain) | {"invite": invite}
    from node.swarm.fetch_manifests import looked_at

    try:
        return swarm_view(looked_at(invitation).chain) | {"invite": invite}
    except RunError as error:
        return {
            "swarm": invitation.invite.swarm.hex(),
            "bootstrap": list(invitation.addresses),
            "psk": invitation.psk is not None,
            "manifest": invitation.named.hex(),
            "missing": error.line(),
            "invite": invite,
        }


def invite_view(invitation: InviteBundle | ShortInvite) -> dict[str, Any]:
    """Return what an invite gives, without its secret."""
    invite = invitation.invite
    return {
        "id": invite.id.hex(),
        "role": invite.role.value,
        "name": invite.name,
        "issued_at": invite.issued_at,
        "expires": invite.expires,
        "uses": invite.uses,
        "region": invite.region or None,
    }


def invites_view(folder: SwarmFolder, roster: Roster) -> list[dict[str, Any]]:
    """Return the invites that were given out from this folder, with how many have joined by each."""
    struck = {each.target for each in roster.revocations}
    return [
        {
            "id": each.id,
            "role": each.role,
            "name": each.name,
            "issued_at": each.issued_at,
            "expires": each.expires,
            "uses": each.uses,
            "region": each.region or None,
            "joined": sum(it.grant.id.hex() == each.id for it in roster.certificates),
            "revoked": bytes.fromhex(each.id) in struck,
        }
        for each in folder.given()
    ]


def members_view(node_dir: Path, chain: ManifestChain, roster: Roster, now: float) -> list[dict[str, Any]]:
    """Return all who joined with a certificate, and revoked peers that are known by their name alone."""
    progress = progress_of(node_dir) if is_running(node_dir) else None
    here = set() if progress is None else {peer for peer, it in progress.peers.items() if it["here"]}
    me = progress.peer_id if progress else None
    seen = [_member(each, roster, now, connected=_connected(each, me, here, progress)) for each in roster.certificates]
    named = {each for it in roster.certificates for each in it.lineage}
    others = [each for each in roster.revocations if isinstance(each.target, str) and each.target not in named]
    return seen + [
        {
            "peer": each.target,
            "role": None,
            "name": "",
            "since": None,
            "revoked": each.reason or "yes",
            "state": "revoked",
        }
        for each in others
    ]


def _connected(each: Certificate, me: str | None, here: set[str], progress: NodeProgress | None) -> bool | None:
    """None: no node of ours runs, so nobody can tell."""
    return None if progress is None else each.peer == me or each.peer in here


def _member(each: Certificate, roster: Roster, now: float, *, connected: bool | None) -> dict[str, Any]:
    revocation, over = roster.revoked(each), expired(each, now)
    return {
        "peer": each.peer,
        "role": each.role.value,
        "name": each.grant.name,
        "region": each.region or None,
        "since": each.joined_at,
        "expires": each.grant.expires,
        "grant": each.grant.id.hex(),
        "revoked": None if revocation is None else revocation.reason or "yes",
        "state": "revoked" if revocation is not None else "expired" if over else "member",
        "connected": connected,
        "keys": len(each.lineage),
    }
