"""`swarm revoke`, `rotate` and `sign`: what admins decide after the founding, and how it gets to the nodes.

What is signed goes into the inbox of a node on this machine, which passes it on to all members by gossip. Where k
admins must sign, a proposal is a file that they sign one after another. The one who adds the k-th signature hands it
over.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gossip.core.errors import LocalError, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.membership_limits import MAX_CHAIN, MAX_MANIFEST_BYTES
from gossip.core.secret_file import read_private, write_private
from gossip.membership import (
    Manifest,
    ManifestBody,
    ManifestChain,
    Policy,
    Revocation,
    Roster,
    next_version,
    pack_item,
    pack_manifests,
    parse_manifest,
    revoke_grant,
    revoke_peer,
)
from gossip.membership.inbox_task import MAX_INBOX_BYTES
from gossip.membership.invite_code import PREFIX, SHORT
from gossip.membership.manifest_chain import MAX_CHAIN_BYTES
from gossip.membership.signed import Signer, unpack_exact
from node.swarm import agreed_settings, parsing
from node.swarm.accept_invite import read_invite
from node.swarm.effective_manifest import MORE_ROUNDS, rounds_of
from node.swarm.folder import SwarmFolder, membership_of
from node.swarm.pending import known
from node.swarm.views import member_dir, round_of
from node.system.errors import UsageError

AHEAD_ROUNDS: Final = 10
"""How far ahead of our node's round a change is set where nobody says when: a manifest reaches all within seconds, and
rounds of the fastest runs take one."""

_AGAIN: Final = "it has to be proposed again"

_LEAST_PREFIX: Final = 6
"""Characters of an id or a peer's end that may stand for the whole, where only one fits."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is to differ in the next version. None: as it is."""

    settings: Mapping[str, Any]
    policy: Policy | None = None
    allow: frozenset[PeerId] | None = None
    max_members: int | None = None
    bootstrap: tuple[str, ...] | None = None
    admins: tuple[bytes, ...] | None = None
    threshold: int | None = None


@dataclass(frozen=True, kw_only=True)
class ChangeOutcome:
    """What a change has made. `file`: the proposal, while signatures are missing; `handed_to`: nodes' folders. `here`:
    the round that our node is in, where it has trained."""

    manifest: Manifest
    before: Manifest
    here: int | None
    signed: int
    needed: int
    file: Path | None
    handed_to: tuple[Path, ...]


def targets(folder: SwarmFolder, others: Sequence[Path]) -> tuple[Path, ...]:
    """Return the nodes' folders that something signed goes to. UsageError when there is none, or one is no member's."""
    found = [*([folder.node_dir] if folder.known else []), *map(member_dir, others)]
    if not found and not folder.authority_file.exists():
        raise UsageError(f"{folder.path} is no swarm's folder", "give the one of p2ptrain swarm create (--out)")
    if not found:
        raise UsageError(f"{folder.path} has no node", "give a member's folder with --to")
    return tuple(dict.fromkeys(found))


def revoke(folder: SwarmFolder, authority: Signer, word: str, reason: str, to: tuple[Path, ...]) -> Revocation:
    """Sign that a peer, or an invite with all who joined by it, is revoked, and hand it over. Of a peer that has
    changed its key, the first key is revoked as well: else that one could name another successor. UsageError."""
    chain, roster = known(membership_of(to[0]))
    _check_admin(authority, chain.newest)
    what, now = _meant(word, folder, roster), int(time.time())
    if isinstance(what, bytes):
        revocation = revoke_grant(authority, chain.swarm, what, issued_at=now, reason=reason)
    else:
        revocation = revoke_peer(authority, chain.swarm, what, issued_at=now, reason=reason)
    roots = {each.root for each in roster.certificates if what in each.lineage} - {what}
    of_roots = [revoke_peer(authority, chain.swarm, root, issued_at=now, reason=reason) for root in sorted(roots)]
    for node_dir in to:
        for each in (revocation, *of_roots):
            membership_of(node_dir).hand_over(pack_item(each))
    return revocation


def rotate(
    folder: SwarmFolder, authority: Signer, change: Change, at_round: int | None, out: Path | None, to: tuple[Path, ...]
) -> ChangeOutcome:
    """Make the next version, sign it, and hand it over or (where more must sign) leave it in a file. UsageError."""
    chain, _ = known(membership_of(to[0]))
    newest = chain.newest
    _check_admin(authority, newest)
    terms = _changed(newest.terms, change)
    applies_at = _applies_at(chain, change, at_round, to[0])
    proposed = next_version(newest, terms, applies_at=applies_at, version=chain.next_number)
    manifest = proposed.signed_by(authority)
    return _deliver(chain, manifest, out or folder.path / f"proposal-{manifest.version}.p2p", to)


def check_change(folder: SwarmFolder, change: Change, at_round: int | None, to: tuple[Path, ...]) -> None:
    """Check what can be checked of a change before a passphrase is asked for. UsageError."""
    chain, _ = known(membership_of(to[0]))
    _changed(chain.newest.terms, change)
    _applies_at(chain, change, at_round, to[0])


def sign(
    folder: SwarmFolder,
    authority: Signer,
    proposal: tuple[ManifestChain, Manifest],
    file: Path,
    to: tuple[Path, ...],
) -> ChangeOutcome:
    """Add our signature to a proposal as it was read from `file`, which may hold another one by now. With the last
    signature needed it is handed over. UsageError."""
    chain, manifest = proposal
    _check_admin(authority, chain.newest)
    check_proposal(folder, proposal, file, to)
    return _deliver(chain, manifest.signed_by(authority), file, to)


def check_proposal(
    folder: SwarmFolder, proposal: tuple[ManifestChain, Manifest], file: Path, to: tuple[Path, ...]
) -> int | None:
    """Check that a proposal can still be what was meant: weeks may lie between two signatures. Return the round that
    our node is in, None where there is none to ask. UsageError."""
    chain, manifest = proposal
    if folder.known and not _follows(known(folder.files)[0], manifest):
        raise UsageError(f"{file} does not follow the newest version of the swarm", _AGAIN)
    here = _round_of_any(to)
    changes = agreed_settings.differing(chain.newest.terms.settings, manifest.terms.settings)
    ends, rounds = rounds_of(chain), changes.get("train.rounds", (None, None))[1]
    if here is None or ends is None or not changes:
        return here
    if isinstance(rounds, int) and rounds <= here:
        raise UsageError(f"train.rounds={rounds} would end the run at once: the swarm is in round {here}", _AGAIN)
    if here >= ends and not isinstance(rounds, int):
        hint = f"it has to be proposed again, with more rounds: --set train.rounds={ends + MORE_ROUNDS}, for example"
        raise UsageError(f"the run is over, {here} rounds of {ends} are trained already", hint)
    return here


def read_proposal(file: Path) -> tuple[ManifestChain, Manifest]:
    """Return the swarm's chain, and the version that is proposed. UsageError."""
    try:
        data = read_private(file, MAX_CHAIN_BYTES, "the proposal", refuse_shared=False)
        fields = unpack_exact(data, MAX_CHAIN_BYTES, MAX_CHAIN)
        first, *others = [parse_manifest(fields.binary(MAX_MANIFEST_BYTES)) for _ in range(fields.left)]
        chain, proposed = ManifestChain(first), others.pop()
        for each in others:
            chain.accept(each)
    except LocalError as error:
        raise UsageError(str(error)) from None
    except (RemoteError, ValueError, IndexError) as error:
        raise UsageError(f"{file} is no proposal, or damaged ({error})", "p2ptrain swarm rotate makes one") from None
    if not _follows(chain, proposed):
        raise UsageError(f"{file} is a proposal for another swarm or version", _AGAIN)
    return chain, proposed


def _deliver(chain: ManifestChain, manifest: Manifest, file: Path, to: tuple[Path, ...]) -> ChangeOutcome:
    before = chain.newest
    needed, signed = before.terms.threshold, len(manifest.signers & frozenset(before.terms.admins))
    data = pack_manifests((*chain.spine(), manifest))
    waits = signed < needed
    if waits or file.exists():
        write_private(file, data, "the proposal")
    if not waits:
        chain.accept(manifest)
        for node_dir in to:
            membership_of(node_dir).hand_over(_all_of(chain))
    return ChangeOutcome(
        manifest=manifest,
        before=before,
        here=_round_of_any(to),
        signed=signed,
        needed=needed,
        file=file if waits else None,
        handed_to=() if waits else to,
    )


def _round_of_any(to: tuple[Path, ...]) -> int | None:
    return max((here for each in to if (here := round_of(each)) is not None), default=None)


def _all_of(chain: ManifestChain) -> bytes:
    """All versions, as one in between may hold in rounds before the newest; of a very long history the shortest way."""
    dump = chain.dump()
    return dump if len(dump) <= MAX_INBOX_BYTES else pack_manifests(chain.spine())


def _changed(terms: ManifestBody, change: Change) -> ManifestBody:
    settings = agreed_settings.changed(terms.settings, change.settings)
    _check_settings(settings)
    policy = terms.policy if change.policy is None else change.policy
    allow = terms.allow if change.allow is None else change.allow
    after = replace(
        terms,
        settings=settings,
        policy=policy,
        allow=allow if policy is Policy.ALLOW else frozenset(),
        max_members=terms.max_members if change.max_members is None else change.max_members,
        bootstrap=terms.bootstrap if change.bootstrap is None else change.bootstrap,
        admins=terms.admins if change.admins is None else tuple(sorted(set(change.admins))),
        threshold=terms.threshold if change.threshold is None else change.threshold,
    )
    if not 1 <= after.threshold <= len(after.admins):
        raise UsageError(
            f"--k {after.threshold} of {len(after.admins)} admins cannot be", "name all admins with --admins"
        )
    if after == terms:
        raise UsageError("nothing would change", "say what is to: --set train.learning_rate=0.001, for example")
    return after


def _check_settings(settings: agreed_settings.Table) -> None:
    from node.config.schema import from_raw

    from_raw(agreed_settings.raw_of(settings))


def _applies_at(chain: ManifestChain, change: Change, at_round: int | None, node_dir: Path) -> int:
    newest = chain.newest
    if not change.settings:
        if at_round is not None:
            raise UsageError("--at-round without --set", "who is a member goes by the newest version at once")
        return newest.applies_at
    here = round_of(node_dir)
    if here is None and at_round is None:
        raise UsageError(
            "the node here has not trained yet, so its round says nothing", "--at-round N; 0 before the swarm begins"
        )
    ends, rounds = rounds_of(chain), change.settings.get("train.rounds")
    more = ends is not None and isinstance(rounds, int) and rounds > ends
    at = (here or 0) + AHEAD_ROUNDS if at_round is None else at_round
    if ends is not None:
        if more and at_round is None:
            at = min(at, ends)  # a round behind the run's end would never come
        _check_reached(at, ends, here, rounds, more=more)
    if here is not None and at <= here and at != ends:
        raise UsageError(f"round {at} is over: the swarm is in round {here}", f"--at-round {here + AHEAD_ROUNDS}, say")
    if at_round is not None and at < newest.applies_at and not more:
        hint = f"--at-round {newest.applies_at} or later"
        raise UsageError(f"version {newest.version} holds from round {newest.applies_at}, which is later", hint)
    at = max(at, newest.applies_at)
    if isinstance(rounds, int) and rounds <= at:
        raise UsageError(
            f"train.rounds={rounds} would end the run before round {at}", "give more rounds, or an earlier one"
        )
    return at


def _check_reached(at: int, ends: int, here: int | None, rounds: Any, *, more: bool) -> None:
    """UsageError for a change that no round would ever bring about: all of the run's are over by then."""
    if here is not None and here >= ends and not more:
        said = f"train.rounds={rounds}: " if rounds is not None else ""
        hint = f"give the run more rounds with it: --set train.rounds={ends + MORE_ROUNDS}, for example"
        raise UsageError(f"{said}the run is over, {here} rounds of {ends} are trained already", hint)
    if at < ends or (more and at == ends):
        return
    if more:
        hint = f"leave --at-round out: what has more rounds holds from round {ends} at the latest"
    elif ends - 1 > (here or 0):
        hint = f"--at-round {ends - 1} or earlier"
    else:
        hint = f"add --set train.rounds={ends + MORE_ROUNDS}, for example"
    raise UsageError(f"round {at} would never come: the run has {ends} rounds", hint)


def _follows(chain: ManifestChain, manifest: Manifest) -> bool:
    newest = chain.newest
    return manifest.swarm == chain.swarm and manifest.previous == newest.digest and manifest.version > newest.version


def _check_admin(authority: Signer, newest: Manifest) -> None:
    if authority.public_key not in newest.terms.admins:
        raise UsageError("this key is no admin's of the swarm", "p2ptrain swarm show lists the admins")


def _meant(word: str, folder: SwarmFolder, roster: Roster) -> PeerId | Digest:
    """A peer, by its id or the end of it; or an invite, by its line, a file with it, its id (or beginning) or name."""
    if word.startswith((PREFIX, SHORT)) or parsing.is_file(word):
        return read_invite(word).invite.id
    peers = {each.peer for each in roster.certificates}
    if len(word) == 52:
        return parsing.peer_in_word(word)
    grants = {each.id for each in folder.given()} | {each.grant.id.hex() for each in roster.certificates}
    if len(word) == 64 and all(each in "0123456789abcdef" for each in word):
        return Digest(bytes.fromhex(word))
    end = word.removeprefix("..")
    found: set[PeerId | Digest] = set()
    if len(end) >= _LEAST_PREFIX:
        found |= {each for each in peers if each.endswith(end)}
        found |= {Digest(bytes.fromhex(each)) for each in grants if each.startswith(word)}
    found |= {Digest(bytes.fromhex(each.id)) for each in folder.given() if each.name == word and word}
    if len(found) != 1:
        what = "no member or invite is" if not found else f"{len(found)} members or invites are"
        raise UsageError(f"{what} called {word!r}", "p2ptrain swarm members lists both; give a whole id")
    return found.pop()
