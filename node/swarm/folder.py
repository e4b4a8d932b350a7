"""An admin's folder: the authority's key, the invites given out, and in `node/` the node of the swarm's creator.

    authority.key   signs manifests, invites and revocations; under a passphrase
    invite.txt      the first invite
    invites.jsonl   what was given out, without the secrets: what `swarm revoke` finds invites by
    node/           a node's folder: identity.key, membership/ (manifests, certificate, roster, swarm.key, inbox)

Whatever is secret has mode 0600, and the folder 0700. The swarm is known from the node's membership, so that an admin
sees what the node has learned of others.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.keyfile import MAX_SEALED_BYTES, is_sealed
from gossip.core.secret_file import read_private, write_private
from gossip.membership import Authority, Invite, ManifestChain, Role, appoint, appointed
from gossip.membership.membership_files import MembershipFiles
from gossip.membership.signed import Signer
from node.swarm import passphrases
from node.swarm.pending import known
from node.system.errors import UsageError
from node.system.run_dir import IDENTITY

AUTHORITY: Final = "authority.key"
INVITE: Final = "invite.txt"
INVITES: Final = "invites.jsonl"
NODE: Final = "node"
MEMBERSHIP: Final = "membership"
"""In a node's folder."""

_MAX_RECORDS_BYTES: Final = 16 << 20
"""Some 50,000 invites."""


def membership_of(node_dir: Path) -> MembershipFiles:
    """Return the path of the membership in a node's folder, there or not."""
    return MembershipFiles(node_dir / MEMBERSHIP)


@dataclass(frozen=True, kw_only=True)
class Given:
    """An invite that was given out. Times in unix seconds."""

    id: str
    role: str
    name: str
    issued_at: int
    expires: int | None
    uses: int | None
    region: str = ""


class SwarmFolder:
    """An admin's files of a swarm."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node_dir = path / NODE
        self.files = membership_of(self.node_dir)

    @property
    def authority_file(self) -> Path:
        """Return the path of the admin's key."""
        return self.path / AUTHORITY

    @property
    def known(self) -> bool:
        """Return whether the swarm's manifests are here; another admin may have no more than a key."""
        return self.files.joined

    def chain(self) -> ManifestChain:
        """Return the swarm's manifests. UsageError when this is no swarm's folder."""
        if not self.known and self.authority_file.is_file():
            how = f"join with another admin's invite: p2ptrain node --invite FILE --run-dir {self.path}"
            raise UsageError(f"{self.path} has an admin's key, and no node of the swarm yet", how)
        if not self.known:
            raise UsageError(f"{self.path} is no swarm's folder", "give the one that p2ptrain swarm create made")
        return known(self.files)[0]

    def authority(self, passphrase_file: Path | None) -> Signer:
        """Return the admin's key, which a passphrase opens. UsageError when there is none; LocalError on a wrong
        passphrase, and on a file that others may open."""
        file = self.authority_file
        if not file.is_file():
            raise UsageError(f"there is no authority key {file}", "only an admin's folder has one")
        if is_sealed(read_private(file, MAX_SEALED_BYTES, "the authority key", refuse_shared=True)):
            return Authority.load(file, passphrases.passphrase_for(passphrase_file, "the authority key"))
        return Identity.load(file)

    def new_authority(self, passphrase: bytes | None) -> Signer:
        """Make the admin's key: encrypted, or (None) as it is. LocalError when there is one."""
        key = Identity.generate()
        if passphrase is None:
            key.save(self.authority_file)
            return key
        authority = Authority(key.seed)
        authority.save(self.authority_file, passphrase)
        return authority

    def record(self, invite: Invite) -> None:
        """Record an invite that is given out."""
        given = Given(
            id=invite.id.hex(),
            role=invite.role.value,
            name=invite.name,
            issued_at=invite.issued_at,
            expires=invite.expires,
            uses=invite.uses,
            region=invite.region,
        )
        with self._by_itself():
            lines = [json.dumps(asdict(each)) for each in (*self.given(), given)]
            write_private(self.path / INVITES, "".join(f"{line}\n" for line in lines).encode(), "the list of invites")

    @contextmanager
    def _by_itself(self) -> Iterator[None]:
        """Wait until no other command changes the list: of two that read it at once the second would write it without
        the first one's invite. Where the file system has no locks, nothing is waited for."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)  # and with it the lock

    def given(self) -> Iterator[Given]:
        """Return all invites that were given out from this folder. LocalError when the list is damaged."""
        file = self.path / INVITES
        if not file.exists():
            return
        data = read_private(file, _MAX_RECORDS_BYTES, "the list of invites", refuse_shared=False)
        try:
            for line in data.decode().splitlines():
                yield Given(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise LocalError(
                f"{file} is damaged; without it, revoke invites by their line or their whole id"
            ) from error

    def psk(self) -> bytes | None:
        """Return the pre-shared key's 32 bytes, if the swarm has one."""
        key = self.files.load_psk()
        return None if key is None else bytes.fromhex(key.text().decode("ascii").splitlines()[-1])


def settle_node(
    folder: SwarmFolder, authority: Signer, identity: Identity, chain: ManifestChain, psk: bytes | None, *, now: int
) -> None:
    """Make the founder's node: its identity, and a membership that the authority gave it."""
    identity.save(folder.node_dir / IDENTITY)
    appointment = appoint(
        authority, chain.swarm, PeerId(identity.peer_id), role=Role.TRAINER, issued_at=now, name="founder"
    )
    folder.files.save_manifests(chain)
    folder.files.save_certificate(appointed(appointment))
    if psk is not None:
        folder.files.save_psk(psk)


def write_line(path: Path, line: str) -> None:
    """Write an invite to a file that only its owner can read. LocalError."""
    write_private(path, f"{line}\n".encode("ascii"), "the invite")
