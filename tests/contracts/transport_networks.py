"""The networks that the transport contract runs on. A new member adds one line."""

import random
from collections.abc import Callable

from gossip.identity import Identity
from gossip.ids import PeerId
from gossip.transport.base import Stream, Transport
from gossip.transport.libp2p import Libp2pConfig, Libp2pTransport
from gossip.transport.memory import MemoryNetwork
from gossip.transport.paced import Paced

Attach = Callable[[Identity], Transport]
"""Makes a node's transport on one network; each test gets a network of its own."""


def memory() -> Attach:
    network = MemoryNetwork(random.Random(1))
    return lambda identity: network.attach(identity.peer_id)


def libp2p() -> Attach:
    return lambda identity: Libp2pTransport(Libp2pConfig(), identity.seed)


def paced(network: Callable[[], Attach]) -> Callable[[], Attach]:
    """Within limits that a test does not feel."""

    def made() -> Attach:
        attach = network()
        return lambda identity: Paced(attach(identity), up=256e6, down=256e6)

    return made


class _Bulky(Libp2pTransport):
    """All its streams are for bulk."""

    async def open_stream(self, peer: PeerId, protocol: str, *, bulk: bool = True) -> Stream:
        return await super().open_stream(peer, protocol, bulk=True)


def libp2p_bulk() -> Attach:
    return lambda identity: _Bulky(Libp2pConfig(), identity.seed)


TRANSPORT_NETWORKS: dict[str, Callable[[], Attach]] = {
    "memory": memory,
    "libp2p": libp2p,
    "libp2p for bulk": libp2p_bulk,
    "memory within limits": paced(memory),
    "libp2p within limits": paced(libp2p),
}
