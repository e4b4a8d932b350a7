"""How a node's folder becomes a member's, and which settings a member's node has: the swarm's and its own.

The line is needed once. What it gave lies in the node's folder (`membership/`), beside `local.toml` with this
machine's own settings, so that the same folder goes on without either.
"""

import re
import secrets
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import tomli_w

from gossip.core.backoff import peer_in
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.membership_limits import MAX_LINE_CHARS, TOLERANCE_S
from gossip.membership import (
    Certificate,
    Invite,
    InviteBundle,
    Manifest,
    ManifestChain,
    Policy,
    Role,
    ShortInvite,
    parse_any,
)
from gossip.membership.invite_code import is_whole, unwrapped
from gossip.membership.signed import NONCE_BYTES
from node.config.sections import AUTO_REGION
from node.config.toml_source import Raw, merge
from node.swarm import agreed_settings, parsing
from node.swarm.base_model import check_base, task_in
from node.swarm.data import digest_of_data
from node.swarm.folder import membership_of
from node.swarm.minimum import check_minimum
from node.swarm.version import check_version
from node.system.errors import UsageError
from node.system.light_roles import WITHOUT_MODEL
from node.system.run_dir import IDENTITY, write_atomic

LOCAL: Final = "local.toml"
STDIN: Final = "-"
_BEGINS: Final = re.compile(r"(?:^|[^A-Za-z0-9_/.-])p2p[0-9]")
"""An invite as an argument of the command line, which may have been quoted twice, or broken by a mail."""

_RUNS_AS: Final = {
    Role.TRAINER: "trainer",
    Role.OBSERVER: "observer",
    Role.BOOTSTRAP: "bootstrap",
    Role.RELAY: "relay",
}
"""Which node does what a certificate is for."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A node's swarm, before the node runs. `invitation` is yet to be redeemed; None where that was done."""

    node_dir: Path
    chain: ManifestChain
    role: Role
    own: Raw
    """This machine's own settings."""
    raw: Raw
    """All settings: the swarm's and this machine's own."""
    invitation: InviteBundle | None = None

    def settle(self, passphrase: bytes | None) -> None:
        """Make the folder a member's, where it is not, and keep the own settings. LocalError, UsageError."""
        identity = Identity.load_or_create(self.node_dir / IDENTITY, passphrase)
        if self.invitation is not None:
            _redeem(self.node_dir, self.chain, self.invitation, identity)
        keep_own(self.node_dir, self.own)


def read_invite(word: str) -> InviteBundle | ShortInvite:
    """Return an invite from its line, a file with it, or stdin (`-`), as it stands there. UsageError: cut, mistyped, of
    another format."""
    if word == STDIN:
        text = _typed()
    elif parsing.is_file(word):
        text = parsing.read_text(Path(word), "the invite")
    elif _BEGINS.search(word):
        text = word
    else:  # what it is may be most of a line, which belongs in no message
        raise UsageError(
            "the invite is neither a line that begins with p2p nor a file that is there",
            "give the file's path, or the whole line",
        )
    try:
        return parse_any(text)
    except LocalError as error:
        raise UsageError(str(error), "paste the whole line, or ask for another invite") from None


def _typed() -> str:
    """What is pasted: to the end of the line that an invite is, in however many lines a mail has broken it."""
    text = ""
    while (line := sys.stdin.readline()) and len(text) < 2 * MAX_LINE_CHARS:
        text += line
        try:
            if is_whole(unwrapped(text)):
                break
        except LocalError:
            break  # which is said when it is read
    return text


Fetch = Callable[[ShortInvite], InviteBundle]
"""Gets what a short invite leaves out."""


def membership(
    node_dir: Path, given: Raw, invitation: InviteBundle | ShortInvite | None, fetch: Fetch | None = None
) -> Membership | None:
    """Of a node's folder, by an invite or as it lies there; None where there is neither. Writes nothing, and asks
    nobody (`fetch`) but for the manifests of a short invite which the folder has not. UsageError on an invite that has
    ended, on one of another swarm, and on settings that contradict the swarm's."""
    files = membership_of(node_dir)
    if invitation is None and not files.joined:
        return None
    certificate = files.load_certificate() if files.joined else None
    chain = files.load_manifests() if files.joined else None
    if invitation is not None:
        if chain is not None and chain.swarm != invitation.invite.swarm:
            name = chain.newest.terms.name
            raise UsageError(f"{node_dir} is a member of another swarm ({name})", "give another --run-dir or --name")
        taken = certificate is not None and certificate.grant.id == invitation.invite.id
        if not taken:  # a service, or a command of the shell's history, is started with its line for years
            check_usable(invitation, time.time())
        if isinstance(invitation, InviteBundle):
            chain = _together(chain, invitation.chain)
        elif not taken:
            invitation = _completed(invitation, chain, fetch)
            chain = invitation.chain
        if taken:
            invitation = None  # redeemed before: a line that is given again takes no other use
    assert chain is not None
    assert not isinstance(invitation, ShortInvite)
    check_version(chain.newest.terms)
    grant: Invite | Certificate | None = certificate if invitation is None else invitation.invite
    role, region = (Role.TRAINER, "") if grant is None else (grant.role, grant.region)
    own: Raw = read_own(node_dir)
    merge(own, agreed_settings.own_part(given, task_in(agreed_settings.raw_of(chain.newest.terms.settings))))
    mine = () if certificate is None else certificate.lineage
    raw = _all_settings(chain.newest, given, own, role, mine)
    _set_region(raw, region)
    check_minimum(chain.newest.terms.settings, raw, joins=invitation is not None)
    _check_data(chain.newest, raw)
    check_base(chain.newest.terms.settings, raw)
    return Membership(node_dir=node_dir, chain=chain, role=role, own=own, raw=raw, invitation=invitation)


def _completed(short: ShortInvite, ours: ManifestChain | None, fetch: Fetch | None) -> InviteBundle:
    """By the folder's own manifests, or by those that are fetched."""
    if ours is not None and ours.holds(short.named):
        try:
            return short.complete(ours)
        except RemoteError as error:
            raise UsageError(f"the invite does not fit the swarm as it is now: {error.detail or error}") from error
    if fetch is None:
        raise UsageError(
            "the invite is a short one, and its manifests were not fetched", "ask for one made with --full"
        )
    whole = fetch(short)
    return replace(whole, chain=_together(ours, whole.chain))


def check_usable(invitation: InviteBundle | ShortInvite, now: float) -> None:
    """Raise UsageError for an invite that has ended, or begins far ahead of this clock."""
    invite = invitation.invite
    if invite.expires is not None and now > invite.expires + TOLERANCE_S:
        raise UsageError(f"the invite has ended: {parsing.moment(invite.expires)}", "ask for another one")
    if invite.issued_at > now + TOLERANCE_S:
        raise UsageError(
            f"the invite is from the future: {parsing.moment(invite.issued_at)}", "set this machine's clock"
        )


def ending(invitation: InviteBundle, now: float) -> tuple[str, ...]:
    """Return a warning about an invite that ended a moment ago by this clock, and may still be accepted."""
    ends = invitation.invite.expires
    if ends is None or now <= ends:
        return ()
    within = f"members whose clocks agree take it for {TOLERANCE_S // 60} minutes more, and no longer"
    return (f"the invite ended on {parsing.moment(ends)}: {within}",)


def read_own(node_dir: Path) -> Raw:
    """Return this machine's own settings from the node's folder. UsageError on a damaged file."""
    path = node_dir / LOCAL
    if not path.exists():
        return {}
    try:
        return tomllib.loads(parsing.read_text(path, "the node's own settings"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}", "mend that line, or delete the file") from None


def keep_own(node_dir: Path, own: Raw) -> None:
    """Write this machine's own settings, for the next start."""
    node_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(node_dir / LOCAL, tomli_w.dumps(own).encode())


def _together(ours: ManifestChain | None, theirs: ManifestChain) -> ManifestChain:
    """Of a fork, whose two sides enough admins have signed, the operator takes the invite's side by taking the invite;
    not an older one, as nobody else may take a node back. UsageError."""
    if ours is None:
        return theirs
    try:
        ours.extend(theirs.dump())
    except RemoteError as error:
        if ours.newest.digest == theirs.newest.digest:  # it heals the fork
            return ours
        if error.reason is Reason.EQUIVOCATION and theirs.newest.version >= ours.newest.version:
            return theirs
        raise UsageError(
            f"the invite's manifests do not fit those in the folder: {error.detail or error}",
            "join by it in a fresh folder (--run-dir)",
        ) from error
    return ours


def _redeem(node_dir: Path, chain: ManifestChain, invitation: InviteBundle, identity: Identity) -> None:
    """The certificate last: with it the folder is a member's."""
    terms, files = chain.newest.terms, membership_of(node_dir)
    if terms.policy is Policy.ALLOW and identity.peer_id not in terms.allow:
        hint = f"ask an admin to put {identity.peer_id} on it (swarm rotate --allow), then try again"
        raise UsageError(f"the swarm {terms.name} keeps a list, and this node is not on it", hint)
    now, nonce = int(time.time()), secrets.token_bytes(NONCE_BYTES)
    certificate = invitation.redeem(identity.peer_id, issued_at=max(now, invitation.invite.issued_at), nonce=nonce)
    if invitation.psk is not None:
        files.save_psk(invitation.psk)
    files.save_certificate(certificate)
    files.save_manifests(chain)


def _all_settings(newest: Manifest, given: Raw, own: Raw, role: Role, mine: Sequence[str]) -> Raw:
    """`mine`: the keys of this node, earlier ones included: nobody answers by those any more."""
    agreed_settings.under(
        newest.terms.settings, newest.swarm.hex(), given
    )  # what contradicts is said of what was given now
    raw = agreed_settings.under(newest.terms.settings, newest.swarm.hex(), own)
    network, node = raw.setdefault("network", {}), raw.setdefault("node", {})
    known = [each for each in newest.terms.bootstrap if peer_in(each) not in mine]
    network["peers"] = list(dict.fromkeys([*network.get("peers", ()), *known]))
    if _RUNS_AS[role] not in WITHOUT_MODEL:
        agreed_settings.check_code(newest.terms.settings, own)
    if node.setdefault("role", _RUNS_AS[role]) != _RUNS_AS[role]:
        raise UsageError(f"--role {node['role']} contradicts the invite: its role is {role.value}", "leave it out")
    return raw


def _set_region(raw: Raw, region: str) -> None:
    """A certificate's region is the node's. Raises UsageError where its settings name another one."""
    if not region:
        return
    node = raw.setdefault("node", {})
    if node.get("region", AUTO_REGION) == AUTO_REGION:
        node["region"] = region
    if node["region"] != region:
        said = f"node.region={node['region']!r} contradicts the certificate, which is of region {region} alone"
        raise UsageError(said, "leave node.region out, or ask an admin for another invite")


def _check_data(newest: Manifest, raw: Raw) -> None:
    wanted = agreed_settings.data_digest_in(newest.terms.settings)
    if wanted is None or raw.get("node", {}).get("role") in WITHOUT_MODEL:
        return
    data = raw.get("task", {}).get("data")
    if not isinstance(data, str):
        raise UsageError("all members of this swarm learn from the same data", "say where they are: --data PATH")
    if digest_of_data(Path(data)) != wanted:
        hint = f"the swarm's have the digest {wanted[:16]}...: take them from where its founder did"
        raise UsageError(f"the data in {data} are not the swarm's", hint)
