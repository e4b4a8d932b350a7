"""The versions of a manifest that a member holds, each signed by enough of the admins of the one before.

A version may follow with a gap when it is signed by the admins of the newest version held: they could have signed all
between as well. So a newcomer needs the founding manifest, those that changed the admins, and the newest; a member that
was away needs no more; and old versions can be dropped. Of two versions with one number the first stays, and the second
is a conflict for the operator: enough admins signed twice. Admins heal it by skipping a number.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import SwarmId
from gossip.core.membership_limits import MAX_CHAIN, MAX_CONFLICTS, MAX_MANIFEST_BYTES
from gossip.core.wire import pack
from gossip.membership.manifest import Manifest, parse_manifest
from gossip.membership.signed import unpack_exact

MAX_CHAIN_BYTES: Final = MAX_CHAIN * (MAX_MANIFEST_BYTES + 8)


class ManifestChain:
    """Begins with a founding manifest that its own admins signed. Raises RemoteError(FORGED | PROTOCOL) otherwise."""

    def __init__(self, founding: Manifest) -> None:
        if founding.version != 1:
            raise RemoteError(Reason.PROTOCOL, "a swarm begins with version 1 of its manifest")
        _check_signed(founding, founding)
        self._held = [founding]
        self._conflicts: dict[int, Manifest] = {}

    @property
    def swarm(self) -> SwarmId:
        """The swarm's id."""
        return self._held[0].swarm

    @property
    def newest(self) -> Manifest:
        """The newest version, even before its round has come: membership follows it at once."""
        return self._held[-1]

    @property
    def conflicts(self) -> Mapping[int, Manifest]:
        """By version: the later seen of two manifests of one number that enough admins signed."""
        return self._conflicts

    @property
    def forked(self) -> bool:
        """Whether no version is held yet that is newer than all conflicts, and so may have healed them."""
        return any(number >= self.newest.version for number in self._conflicts)

    @property
    def next_number(self) -> int:
        """The number of the next version; one is skipped after a fork, which that heals."""
        return max(self._conflicts) + 2 if self.forked else self.newest.version + 1

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self._held)

    def at_round(self, round_: int) -> Manifest:
        """Return the version whose settings hold in a round: the newest of those whose round has come."""
        return next(each for each in reversed(self._held) if each.applies_at <= round_)

    def accept(self, manifest: Manifest) -> bool:
        """Add a version; return whether it was new. Raises RemoteError(WRONG_SWARM | FORGED | EQUIVOCATION |
        OVERSIZE)."""
        if manifest.swarm != self.swarm:
            raise RemoteError(Reason.WRONG_SWARM, "the manifest of another swarm")
        last = self.newest
        if manifest.version <= last.version:
            return self._compare(manifest)
        self._check_follows(manifest, last)
        if manifest.version == last.version + 1 and manifest.previous != last.digest:
            raise self._conflict(manifest, "follows another version than ours")
        self._make_room()
        self._held.append(manifest)
        return True

    def extend(self, data: bytes) -> int:
        """Add the versions of another's `dump`; return how many were new. Raises RemoteError as `accept` does, but only
        after all were tried: the version that heals a fork may come after it."""
        new, error = 0, None
        for each in _parse_all(data):
            try:
                new += self.accept(each)
            except RemoteError as refused:
                error = error or refused
        if error is not None:
            raise error
        return new

    def spine(self, through: bytes = b"") -> tuple[Manifest, ...]:
        """Return the shortest chain to the newest version, through the version whose digest begins with `through` if
        that is held: what a newcomer needs."""
        kept = [self._held[0]]
        for before, each in pairwise(self._held):
            named = bool(through) and each.digest.startswith(through)
            if each is self.newest or named or not _same_admins(before, each):
                kept.append(each)
        return tuple(kept)

    def removal_of(self, admin: bytes) -> tuple[Manifest, ...]:
        """Return what shows a member that this key is no admin any more: the changes of admins through the latest that
        removed it, without the founding manifest; () where it is an admin now, or never was one. No later manifest is
        among them."""
        removed = [at for at, (before, each) in enumerate(pairwise(self._held), 1) if _removes(admin, before, each)]
        if not removed or admin in self.newest.terms.admins:
            return ()
        last = removed[-1]
        changes = (each for before, each in pairwise(self._held[:last]) if not _same_admins(before, each))
        return (*changes, self._held[last])

    def holds(self, digest: bytes) -> bool:
        """Return whether a version is held whose digest begins with these bytes."""
        return any(each.digest.startswith(digest) for each in self._held)

    def dump(self) -> bytes:
        """Return all versions held, for the disk and for other members."""
        return pack_manifests(tuple(self._held))

    def _compare(self, manifest: Manifest) -> bool:
        """Decide about a version that is not newer than ours: it is known, forgotten, forged or a conflict."""
        for at, held in enumerate(self._held):
            if held.version == manifest.version and held.digest != manifest.digest:
                self._check_follows(manifest, self._held[max(0, at - 1)])
                raise self._conflict(manifest, "is not ours of this number")
        return False

    def _check_follows(self, manifest: Manifest, before: Manifest) -> None:
        """Check that enough admins of the version before have signed. What those of the other side of a fork signed
        is a conflict, and not forged: on that side it holds, and who has it did no wrong."""
        try:
            _check_signed(manifest, before)
        except RemoteError:
            if any(_is_signed(manifest, it) for it in self._conflicts.values() if it.version < manifest.version):
                raise self._conflict(manifest, "follows another version than ours") from None
            raise

    def _conflict(self, manifest: Manifest, what: str) -> RemoteError:
        if len(self._conflicts) < MAX_CONFLICTS:
            self._conflicts.setdefault(manifest.version, manifest)
        return RemoteError(Reason.EQUIVOCATION, f"version {manifest.version} of the manifest {what}")

    def _make_room(self) -> None:
        if len(self._held) < MAX_CHAIN:
            return
        for at in range(1, MAX_CHAIN - 1):
            if _same_admins(self._held[at - 1], self._held[at]):
                del self._held[at]
                return
        raise RemoteError(Reason.OVERSIZE, "more changes of admins than a chain holds")


def load_chain(data: bytes) -> ManifestChain:
    """Return the chain of a dump. Raises RemoteError; a file of our own that raises is damaged."""
    first, *others = _parse_all(data)
    chain = ManifestChain(first)
    for each in others:
        if each.version <= chain.newest.version or not chain.accept(each):
            raise RemoteError(Reason.PROTOCOL, "versions out of order")
    return chain


def load_own_chain(data: bytes) -> ManifestChain:
    """Return the chain of a file of our own. Raises LocalError."""
    try:
        return load_chain(data)
    except RemoteError as error:
        raise LocalError(f"the swarm's manifest is damaged: {error.detail or error}") from error


def pack_manifests(manifests: tuple[Manifest, ...]) -> bytes:
    """Pack manifests for `load_chain`."""
    return pack(tuple(each.raw for each in manifests))


def _parse_all(data: bytes) -> list[Manifest]:
    fields = unpack_exact(data, MAX_CHAIN_BYTES, MAX_CHAIN)
    if not fields.left:
        raise RemoteError(Reason.MALFORMED, "a chain has a first version")
    return [parse_manifest(fields.binary(MAX_MANIFEST_BYTES)) for _ in range(fields.left)]


def _check_signed(manifest: Manifest, before: Manifest) -> None:
    if not _is_signed(manifest, before):
        count = _signed_by(manifest, before)
        raise RemoteError(Reason.FORGED, f"{count} of the {before.terms.threshold} admins that must sign have")


def _is_signed(manifest: Manifest, before: Manifest) -> bool:
    """Return whether enough of the admins of `before` have signed; other signatures do not count."""
    return _signed_by(manifest, before) >= before.terms.threshold


def _signed_by(manifest: Manifest, before: Manifest) -> int:
    return len(manifest.signers & frozenset(before.terms.admins))


def _removes(admin: bytes, before: Manifest, manifest: Manifest) -> bool:
    return admin in before.terms.admins and admin not in manifest.terms.admins


def _same_admins(one: Manifest, other: Manifest) -> bool:
    return (one.terms.admins, one.terms.threshold) == (other.terms.admins, other.terms.threshold)
