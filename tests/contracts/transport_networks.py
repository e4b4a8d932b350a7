"""The networks that the transport contract runs on. A new member adds one line."""

import random
from collections.abc import Callable

from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.transport.base import Stream, Transport
from gossip.transport.connection_limits import ConnectionBounds
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from gossip.transport.memory.network import MemoryNetwork
from gossip.transport.memory.wan import AccessLink, WideAreaNetwork
from gossip.transport.pnet import PresharedKey
from gossip.transport.throttled import ThrottledTransport

Attach = Callable[[Identity], Transport]
"""Makes a node's transport on one network; each test gets a network of its own."""


def memory() -> Attach:
    network = MemoryNetwork(random.Random(1))
    return lambda identity: network.attach(identity.peer_id)


def memory_over_access_links() -> Attach:
    """Links that a test hardly feels."""
    wan = WideAreaNetwork(random.Random(1), lambda one, other: 0.0005)
    network = MemoryNetwork(random.Random(1), wan=wan)

    def attach(identity: Identity) -> Transport:
        if identity.peer_id not in wan:
            wan.connect(identity.peer_id, AccessLink(up_bytes_per_s=1e9, down_bytes_per_s=1e9, slow_start=True))
        return network.attach(identity.peer_id)

    return attach


def libp2p() -> Attach:
    return lambda identity: Libp2pTransport(Libp2pConfig(), identity.seed)


class Named:
    """An `Admission` for tests: whoever names itself is of the swarm, with the transport's word for its key."""

    def __init__(self, peer: PeerId) -> None:
        self._peer = peer

    def credentials(self) -> bytes:
        return b"a member: " + self._peer.encode("ascii")

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        if credentials != Named(peer).credentials():
            raise RemoteError(Reason.NO_MEMBER, "it names somebody else")


def memory_with_admission() -> Attach:
    network = MemoryNetwork(random.Random(1))
    return lambda identity: network.attach(identity.peer_id, Named(identity.peer_id))


def libp2p_with_admission() -> Attach:
    return lambda identity: Libp2pTransport(Libp2pConfig(), identity.seed, admission=Named(identity.peer_id))


def paced(network: Callable[[], Attach]) -> Callable[[], Attach]:
    """Within limits that a test does not feel."""

    def made() -> Attach:
        attach = network()
        return lambda identity: ThrottledTransport(attach(identity), up=256e6, down=256e6)

    return made


class _Bulky(Libp2pTransport):
    """All its streams are for bulk."""

    async def open_stream(self, peer: PeerId, protocol: str, *, bulk: bool = True) -> Stream:
        return await super().open_stream(peer, protocol, bulk=True)


def libp2p_bulk() -> Attach:
    return lambda identity: _Bulky(Libp2pConfig(), identity.seed)


def libp2p_with_bounds() -> Attach:
    """Where loopback is a network like any other."""
    bounds = ConnectionBounds(unbounded_networks=())
    return lambda identity: Libp2pTransport(Libp2pConfig(bounds=bounds), identity.seed)


def memory_with_networks() -> Attach:
    network = MemoryNetwork(random.Random(1))
    return lambda identity: network.attach(identity.peer_id, network="127.0.0.0/24")


def libp2p_with_psk() -> Attach:
    """Bulk too, or nothing of the suite would go over a data connection behind the key."""
    key = PresharedKey(bytes(range(32)))
    return lambda identity: _Bulky(Libp2pConfig(), identity.seed, psk=key)


TRANSPORT_NETWORKS: dict[str, Callable[[], Attach]] = {
    "memory": memory,
    "memory over access links": memory_over_access_links,
    "libp2p": libp2p,
    "libp2p for bulk": libp2p_bulk,
    "memory with admission": memory_with_admission,
    "libp2p with admission": libp2p_with_admission,
    "libp2p with psk": libp2p_with_psk,
    "memory within limits": paced(memory),
    "libp2p within limits": paced(libp2p),
}

FOR_BULK = {"libp2p for bulk", "libp2p with psk"}
"""Where every stream goes over a data connection, which is for the protocols of the handlers alone."""

SEEN_AS_ONE: dict[str, Callable[[], Attach]] = {
    "memory with networks": memory_with_networks,
    "libp2p with bounds": libp2p_with_bounds,
}
"""Where all peers see each other in the network 127.0.0.0/24; elsewhere they see one of their own."""
