"""Who may have a connection, and who makes room for a newcomer: bounds in all, by network, and by handshakes under way.

Keys are free and addresses are not, so strangers are bounded by the network they call from: a /24 of IPv4, a /48 of
IPv6 (what a site is given). Within a bound nobody is refused while somebody idle is there: the connection that was
used longest ago goes, never that of a neighbour. Networks of our own (loopback, a LAN, a router that hides the caller)
are bounded in all only. Nothing here is I/O: `libp2p_host` says who comes, is used and goes, and closes what is named.
"""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, Generic, TypeVar

from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.core.networks import network_at, parsed_host

LOCAL_NETWORKS: Final = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)
"""Loopback, RFC 1918, link-local and unique local addresses: one's own machines, or a proxy before them."""

Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class ConnectionBounds:
    """How many connections there may be. Raises LocalError for what cannot work."""

    inbound: int = 256
    """Thirty times the degree of 8."""
    dialled: int = 32
    """Beyond the inbound ones, or strangers would decide whether we can dial: four times the degree."""
    of_network: int = 32
    """Inbound ones of one network: a lab's machines, or as many customers behind one address; an eighth of all."""
    of_peer: int = 4
    """Both ends may dial at once, and one dead connection may linger beside its successor."""
    handshakes: int = 64
    """Under way at once. One more ends the oldest, so that silent sockets, which cost nothing, keep nobody out."""
    handshakes_of_network: int = 16
    """The same of one network: a quarter, or one caller's silent sockets would cut short everybody else's."""
    handshake_s: float = 10.0
    """Three messages: a lost one is repeated after 1, 3 and 7 s."""
    handshakes_per_s: float = 60.0
    """Begun in a second, after a burst of four seconds' worth. Each costs 6 ms of computing: a third of a core."""
    unbounded_networks: tuple[str, ...] = LOCAL_NETWORKS
    """Networks, each as 192.0.2.0/24 or 2001:db8::/48, whose callers are bounded in all only."""
    allow: tuple[str, ...] = ()
    """Networks whose callers alone are taken; empty: those of all."""

    def __post_init__(self) -> None:
        counts = (self.inbound, self.dialled, self.of_network, self.of_peer)
        if min(*counts, self.handshakes, self.handshakes_of_network) < 1:
            raise LocalError("every bound of connections must be at least 1")
        if self.handshake_s <= 0 or self.handshakes_per_s <= 0:
            raise LocalError("handshake_s and handshakes_per_s must be positive")
        Networks(self.unbounded_networks)
        CallerNetworks(self.allow)


class CallerNetworks:
    """Networks whose callers are taken; with none, everybody's. Raises LocalError for what is no network."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self._allow = parsed_networks(allow)

    def __contains__(self, host: str | None) -> bool:
        """Return whether a caller from this IP address is taken; none where nobody knows the address."""
        return not self._allow or _within(parsed_host(host or ""), self._allow)

    def include(self, host: str) -> bool:
        """Return whether an IP address is in one of the networks that are named."""
        return _within(parsed_host(host), self._allow)


def parsed_networks(networks: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks. Raises LocalError for what is none."""
    try:
        return tuple(map(ipaddress.ip_network, networks))
    except ValueError as error:
        raise LocalError(f"{error}: one looks like 192.0.2.0/24 or 2001:db8::/48") from error


def _within(address: IPv4Address | IPv6Address | None, networks: tuple[IPv4Network | IPv6Network, ...]) -> bool:
    return address is not None and any(address.version == each.version and address in each for each in networks)


class Networks:
    """Which network a caller belongs to. Raises LocalError for what is no network."""

    def __init__(self, unbounded: tuple[str, ...]) -> None:
        self._unbounded = parsed_networks(unbounded)

    def of(self, host: str | None) -> str | None:
        """The network of an IP address; None for one that is not bounded, and for what is no IP address."""
        return self.named(host) or None

    def named(self, host: str | None) -> str | None:
        """Return the network as `of` does, but "" for an address that is not bounded and None for no IP address."""
        address = parsed_host(host or "")
        if address is None:
            return None
        if _within(address, self._unbounded):
            return ""
        return network_at(address)


@dataclass(frozen=True)
class _Holder:
    peer: PeerId
    network: str | None


class ConnectionSlots(Generic[Key]):
    """Connections that hold a place, the one that was used longest ago first. `keeps`: says who is never let go."""

    def __init__(self, most: int, of_network: int, keeps: Callable[[PeerId], bool]) -> None:
        self._most = most
        self._of_network = of_network
        self._keeps = keeps
        self._holders: OrderedDict[Key, _Holder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def refusal(self, network: str | None) -> str | None:
        """Why a caller from `network` need not even begin: all its places are taken, by peers that are kept."""
        if self._full_of(network) and not any(self._loose(network)):
            return "too_many_of_network"
        if len(self) >= self._most and not any(self._loose()):
            return "too_many_connections"
        return None

    def take(self, key: Key, peer: PeerId, network: str | None) -> Key | None:
        """Give `key` a place. Whose connection must be closed for it, if any: at worst its own."""
        full = self._full_of(network)
        self._holders[key] = _Holder(peer, network)
        if full or len(self) > self._most:
            loser = next(self._loose(network if full else None), key)
            self.leave(loser)
            return loser
        return None

    def used(self, key: Key) -> None:
        """Something of ours went over it: it goes last now."""
        if key in self._holders:
            self._holders.move_to_end(key)

    def leave(self, key: Key) -> None:
        """It is gone."""
        self._holders.pop(key, None)

    def _full_of(self, network: str | None) -> bool:
        held = sum(it.network == network for it in self._holders.values())
        return network is not None and held >= self._of_network

    def _loose(self, network: str | None = None) -> Iterator[Key]:
        """Those that may have to go, the longest unused first; of one network, or of all."""
        for key, it in self._holders.items():
            if network in (None, it.network) and not self._keeps(it.peer):
                yield key


class Handshakes(Generic[Key]):
    """Handshakes under way, the oldest first. When there are too many, the most crowded network's oldest goes."""

    def __init__(self, most: int, of_network: int) -> None:
        self._most = most
        self._of_network = of_network
        self._networks: OrderedDict[Key, str | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._networks)

    def begin(self, key: Key, network: str | None) -> Key | None:
        """One more; which has to be cut short for it, if any."""
        mine = [each for each, its in self._networks.items() if its == network]
        loser: Key | None = None
        if network is not None and len(mine) >= self._of_network:
            loser = mine[0]
        elif len(self) >= self._most:
            crowds = Counter(its for its in self._networks.values() if its is not None)
            loser = max(self._networks, key=lambda each: crowds.get(self._networks[each] or "", 1))
        if loser is not None:
            self.end(loser)
        self._networks[key] = network
        return loser

    def end(self, key: Key) -> None:
        """It has come to an end, one way or the other."""
        self._networks.pop(key, None)
