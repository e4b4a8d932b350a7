"""What makes a service a member of a private swarm: the admission that its transport asks, and the files that store it.

files = MembershipFiles(folder)
private = PrivateSwarm.load(files, identity.peer_id, on_manifest=...)
transport = Libp2pTransport(..., admission=private.gate)
service = GossipService(..., transport=transport, private=private)
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gossip.core.config import GossipConfig
from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.membership import Manifest, MembershipAdmission
from gossip.membership.membership_files import MembershipFiles


def of_swarm(config: GossipConfig, private: "PrivateMembership") -> GossipConfig:
    """Return the config with the swarm's own id. Raises LocalError when it names another one."""
    swarm = private.admission.chain.swarm
    if config.swarm_id not in (None, swarm):
        raise LocalError("the config names another swarm than the membership is of")
    return replace(config, swarm_id=swarm)


def ignore_manifest(manifest: Manifest) -> None:
    """Default callback: applies no manifest."""


@dataclass(frozen=True, kw_only=True)
class PrivateMembership:
    """A node's membership. `on_manifest` is called on the event loop with each newer manifest that is accepted, to be
    applied at its round; it must be quick and must not raise."""

    admission: MembershipAdmission
    files: MembershipFiles
    on_manifest: Callable[[Manifest], None] = ignore_manifest

    @classmethod
    def load(
        cls,
        files: MembershipFiles,
        peer: PeerId,
        *,
        on_manifest: Callable[[Manifest], None] = ignore_manifest,
        now: Callable[[], float] = time.time,
    ) -> "PrivateMembership":
        """Load the membership on disk. `now` in unix seconds. Raises LocalError on damaged files, or when our own
        membership is not valid. Takes 0.2 ms for each known member."""
        chain = files.load_manifests()
        admission = MembershipAdmission(
            peer=peer,
            certificate=files.load_certificate(),
            chain=chain,
            roster=files.load_roster(chain),
            now=now,
        )
        return cls(admission=admission, files=files, on_manifest=on_manifest)
