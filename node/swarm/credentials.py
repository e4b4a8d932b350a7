"""What a node's folder says of who the node is: its key, and its membership of a private swarm where it has one.

Whether a node is in a private swarm is a matter of its folder and of nothing else: no option makes a member's node run
openly by mistake.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.membership import Manifest
from gossip.membership.private_swarm import PrivateMembership
from gossip.membership.refusal import EndedError
from gossip.transport.base import Admission
from node.swarm.folder import membership_of
from node.swarm.version import check_version
from node.system.errors import RunError
from node.system.run_dir import IDENTITY

if TYPE_CHECKING:
    from gossip.transport.pnet import PresharedKey


class ManifestListeners:
    """Passes newer manifests on to a listener that is set later: admission exists before the node does."""

    def __init__(self) -> None:
        self.to: Callable[[Manifest], None] | None = None

    def __call__(self, manifest: Manifest) -> None:
        """A newer manifest was accepted."""
        if self.to is not None:
            self.to(manifest)


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What a node shows and checks in handshakes. `private`, `psk`: None in an open swarm. `news`: of newer
    manifests."""

    identity: Identity
    private: PrivateMembership | None
    psk: "PresharedKey | None"
    news: ManifestListeners

    @property
    def admission(self) -> Admission | None:
        """Return who may connect; None: everybody."""
        return None if self.private is None else self.private.admission

    def secrets(self) -> tuple[bytes, ...]:
        """Return what no log may show."""
        # The pre-shared key stands in its file as text: its last line.
        return (
            self.identity.seed,
            *(() if self.psk is None else (bytes.fromhex(self.psk.text().split()[-1].decode()),)),
        )


def load(node_dir: Path, passphrase: bytes | None) -> Credentials:
    """Load the credentials of a node's folder; make the key where there is none. RunError, LocalError: an encrypted key
    without its passphrase, damaged files, a membership that has ended or was revoked, a swarm that needs a newer
    program."""
    identity, files, news = (
        Identity.load_or_create(node_dir / IDENTITY, passphrase),
        membership_of(node_dir),
        ManifestListeners(),
    )
    if not files.joined:
        return Credentials(identity=identity, private=None, psk=None, news=news)
    try:
        private = PrivateMembership.load(files, identity.peer_id, on_manifest=news)
    except LocalError as error:
        advice = error.advice if isinstance(error, EndedError) else "ask an admin for a new invite"
        raise RunError(str(error), f"the membership lies in {files.folder}; {advice}") from error
    check_version(private.admission.chain.newest.terms)
    return Credentials(identity=identity, private=private, psk=files.load_psk(), news=news)
