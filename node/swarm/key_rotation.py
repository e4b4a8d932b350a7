"""`id rotate`: another key for a node, which the old one names as its successor, so that a membership goes on.

The new key waits in a file beside the old one until the certificate names it. When the machine dies in between,
running it again finishes what was begun.
"""

import time
from pathlib import Path
from typing import Final

from gossip.core.atomic_file import rename_durably
from gossip.core.backoff import peer_in
from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.membership import rotate, rotated
from node.swarm.folder import membership_of
from node.swarm.pending import known
from node.system.errors import UsageError

_NEXT: Final = ".next"
"""Suffix of the new key's file until it takes its place."""


def renamed_bootstrap(node_dir: Path) -> list[str]:
    """Return the swarm's bootstrap addresses with this node's present key in the place of earlier ones; none where no
    address names an earlier one. LocalError on damaged files."""
    files = membership_of(node_dir)
    certificate = files.load_certificate() if files.joined else None
    if certificate is None:
        return []
    *former, present = certificate.lineage
    named = known(files)[0].newest.terms.bootstrap
    renamed = [f"{at.rpartition('/')[0]}/{present}" if peer_in(at) in former else at for at in named]
    return renamed if renamed != list(named) else []


def replace_key(file: Path, passphrase: bytes | None) -> Identity:
    """Make a new key, under the same passphrase if there is one. The caller holds the folder's lock. UsageError for a
    member that is one by its name on a list; LocalError after as many keys as a certificate holds."""
    old, files, beside = Identity.load(file, passphrase), membership_of(file.parent), Path(f"{file}{_NEXT}")
    new = Identity.load_or_create(beside, passphrase)
    if not files.joined:
        rename_durably(beside, file)
        return new
    certificate = files.load_certificate()
    if certificate is None:
        beside.unlink()
        raise UsageError(
            "this node is a member by its name, and a new key has another", "an admin has to list that one"
        )
    if certificate.peer == old.peer_id:
        try:
            longer = rotated(certificate, rotate(old, new.peer_id, issued_at=int(time.time())))
        except LocalError as error:
            beside.unlink()
            raise UsageError(f"the certificate takes no other key: {error}", "ask an admin for an invite") from None
        files.save_certificate(longer)
    rename_durably(beside, file)
    return new
