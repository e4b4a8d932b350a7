"""A member's folder as it will be once its inbox is emptied: an admin who signs twice builds on what was signed before,
whether the node has picked that up or not."""

from pathlib import Path

from gossip.core.errors import LocalError, RemoteError
from gossip.core.secret_file import read_private
from gossip.membership import ManifestChain, Roster, parse_item
from gossip.membership.manifest_chain import MAX_CHAIN_BYTES
from gossip.membership.membership_files import SUFFIX, MembershipFiles


def known(files: MembershipFiles) -> tuple[ManifestChain, Roster]:
    """Return the manifests and the roster, with what waits in the inbox. LocalError on damaged files; what is damaged
    in the inbox is skipped, as the node does."""
    waiting = [_read(path) for path in sorted(files.inbox.glob(f"*{SUFFIX}"))] if files.inbox.is_dir() else []
    chain = files.load_manifests()
    for data in waiting:
        _take_manifests(chain, data)
    roster, ours = files.load_roster(chain), files.load_certificate()
    if ours is not None and roster.trusts(ours):  # a node that never ran has not told its own roster yet
        roster.put(ours)
    for data in waiting:
        _take_item(roster, data)
    return chain, roster


def _read(path: Path) -> bytes:
    try:
        return read_private(path, MAX_CHAIN_BYTES, "the item", refuse_shared=False)
    except LocalError:  # picked up meanwhile
        return b""


def _take_manifests(chain: ManifestChain, data: bytes) -> None:
    try:
        chain.extend(data)
    except RemoteError:
        return


def _take_item(roster: Roster, data: bytes) -> None:
    try:
        roster.put(parse_item(data))
    except RemoteError:
        return
