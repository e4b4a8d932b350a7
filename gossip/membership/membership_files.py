"""A node's membership on disk: its certificate, the swarm's manifests and roster, the pre-shared key, and an inbox.

    certificate   what is shown in every handshake, in the format of docs/private-swarms.md
    manifests     the chain of the swarm's manifests
    conflicts     others of the same numbers that admins signed as well, for the operator; only where there are any
    roster        who came and who was revoked
    swarm.key     libp2p's pre-shared key, where the swarm has one
    inbox/*.item  what an admin on this machine has signed, to be picked up by a running node (inbox_task.py)

Everything is written whole or not at all, with mode 0600. What is damaged is said to be so, with what to do.
"""

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from gossip.core.errors import LocalError, RemoteError
from gossip.core.membership_limits import MAX_CERTIFICATE_BYTES
from gossip.core.secret_file import read_private, write_private
from gossip.membership import (
    Certificate,
    ManifestChain,
    Roster,
    dump_roster,
    load_own_chain,
    load_roster,
    parse_certificate,
)
from gossip.membership.manifest_chain import MAX_CHAIN_BYTES, pack_manifests
from gossip.membership.roster_sync import MAX_ROSTER_BYTES
from gossip.transport.pnet import PresharedKey

SUFFIX: Final = ".item"
"""The suffix of files in the inbox; other files there are left alone."""


class MembershipFiles:
    """The files of one node in one swarm. Nothing is read or written before it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbox = folder / "inbox"
        self._unwritten: set[str] = set()

    @property
    def behind(self) -> bool:
        """Whether the newest roster or manifests could not be written, or are being written."""
        return bool(self._unwritten)

    @property
    def joined(self) -> bool:
        """Whether this folder belongs to a swarm."""
        return self._manifests.exists()

    def load_certificate(self) -> Certificate | None:
        """Return this node's certificate; None where it has none (an open swarm, or one with a list). Raises
        LocalError."""
        path = self.folder / "certificate"
        if not path.exists():
            return None
        try:
            return parse_certificate(read_private(path, MAX_CERTIFICATE_BYTES, "the certificate", refuse_shared=True))
        except RemoteError as error:
            raise LocalError(
                f"the certificate {path} is damaged: {error.detail or error}; take it from a copy, or ask an admin "
                "for another invite"
            ) from error

    def save_certificate(self, certificate: Certificate) -> None:
        """Save this node's certificate. Raises LocalError."""
        write_private(self.folder / "certificate", certificate.raw, "the certificate")

    def load_manifests(self) -> ManifestChain:
        """Return the swarm's manifests. Raises LocalError, also when there are none."""
        data = read_private(self._manifests, MAX_CHAIN_BYTES, "the swarm's manifests", refuse_shared=False)
        try:
            chain = load_own_chain(data)
        except LocalError as error:
            raise LocalError(
                f"{self._manifests}: {error}; take it from a copy or another node's folder, or join again by an invite"
            ) from error
        if self._conflicts.exists():
            with suppress(RemoteError):  # what it raises of each is that it is a conflict
                chain.extend(read_private(self._conflicts, MAX_CHAIN_BYTES, "the conflicts", refuse_shared=False))
        return chain

    def save_manifests(self, chain: ManifestChain) -> None:
        """Save the swarm's manifests. Raises LocalError: then the roster, which is saved after them, is not saved
        either."""
        self._unwritten.add("manifests")
        try:
            write_private(self._manifests, chain.dump(), "the swarm's manifests")
            if chain.conflicts:
                write_private(self._conflicts, pack_manifests(tuple(chain.conflicts.values())), "the conflicts")
        except LocalError:
            self._unwritten.add("roster")
            raise
        self._unwritten.discard("manifests")

    def load_roster(self, chain: ManifestChain) -> Roster:
        """Return the roster of the chain's swarm; an empty one where there is no file. Takes 0.2 ms for each member.
        Raises LocalError on damage: a node that silently began with an empty roster would admit revoked peers until it
        meets others."""
        path, admins = self.folder / "roster", chain.newest.terms.admins
        if not path.exists():
            return Roster(chain.swarm, admins)
        data = read_private(path, MAX_ROSTER_BYTES, "the roster", refuse_shared=False)
        try:
            return load_roster(data, chain.swarm, admins)
        except LocalError as error:
            raise LocalError(
                f"{path}: {error}; delete it to learn it anew from other members, of which one must be up"
            ) from error

    def save_roster(self, roster: Roster) -> None:
        """Save the roster. Raises LocalError."""
        self.save_roster_dump(dump_roster(roster))

    def save_roster_dump(self, dump: bytes) -> None:
        """Save the result of `dump_roster`; any thread may call it. Raises LocalError."""
        self._unwritten.add("roster")
        write_private(self.folder / "roster", dump, "the roster")
        self._unwritten.discard("roster")

    def load_psk(self) -> PresharedKey | None:
        """Return the pre-shared key, if the swarm has one. Raises LocalError."""
        path = self.folder / "swarm.key"
        return PresharedKey.read(path) if path.exists() else None

    def save_psk(self, key: bytes) -> None:
        """Save the 32 bytes of the pre-shared key, in libp2p's format. Raises LocalError, also when the file holds
        another key. The same one is there after a join that was cut short, and at another invite to the swarm."""
        psk = PresharedKey(key)
        if self.load_psk() != psk:
            psk.write(self.folder / "swarm.key")

    def hand_over(self, item: bytes) -> Path:
        """Leave what an admin has signed for this node, if it runs, or runs next: a roster's item (`pack_item`) or
        manifests (`pack_manifests`). Raises LocalError. The node removes the file when it has processed it."""
        path = self.inbox / f"{secrets.token_hex(8)}{SUFFIX}"
        write_private(path, item, "the item")
        return path

    @property
    def _conflicts(self) -> Path:
        return self.folder / "conflicts"

    @property
    def _manifests(self) -> Path:
        return self.folder / "manifests"
