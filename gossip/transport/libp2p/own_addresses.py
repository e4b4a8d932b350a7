"""Where this node can be dialled, as the machine's interfaces are now."""

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final

from multiaddr import Multiaddr

from gossip.core.ids import PeerId
from gossip.transport.libp2p.multiaddrs import dialable
from gossip.transport.libp2p.tcp import host_and_port

LOOK_S: Final = 10.0
"""Seconds between two looks at the interfaces, which take some 60 us. Chosen: below the time in which a lost network's
connections are found to be dead."""


class OwnAddresses:
    """Follows the interfaces of a node that listens on all of them: a laptop is carried to another network, a node
    starts before the network is there, and IPv6 hands out another address each day. `bound`: where it listens."""

    def __init__(self, bound: Sequence[Multiaddr], peer: PeerId, clock: Callable[[], float]) -> None:
        self._bound = bound
        self._peer = peer
        self._clock = clock
        self._look_at = float("-inf")
        self._found: tuple[str, ...] = ()

    def current(self) -> tuple[str, ...]:
        """Return the multiaddrs, with `/p2p/<peer id>`. While there is no network those of before stay: nobody hears
        of others meanwhile, and it is mostly the same network that comes back."""
        if (now := self._clock()) >= self._look_at:
            self._look_at = now + LOOK_S
            found = dialable(self._bound, self._peer)
            if not self._found or not all(map(_is_loopback, found)):
                self._found = found
        return self._found


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(host_and_port(Multiaddr(address))[0]).is_loopback
