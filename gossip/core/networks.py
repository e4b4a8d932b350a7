"""Which network a peer is in, and how much of a limited resource the members of one network may hold.

Keys are free and addresses are not: what one customer commonly has is a /24 of IPv4 or a /48 of IPv6. So members are
counted by network. Where several networks compete, one of them holds a part of the places and no more; where all
members are of one network, nobody is bounded. `None` stands for an unknown network, as behind a relay: all such peers
count as one network. "" stands for a network of our own (loopback, a LAN): there each machine counts for itself.
"""

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from gossip.core.ids import PeerId

IPV4_PREFIX: Final = 24
IPV6_PREFIX: Final = 48
"""The prefix that one customer commonly has: a /24 is the smallest block that is routed, RFC 6177 gives a site a
/48."""

PARTS: Final = 4
"""One network may hold one of so many parts. Chosen: of the default degree of 8 a part is 2, which f = 2 tolerates;
with eight parts, two machines of one lab would be one too many in every swarm."""

UNKNOWN: Final = "?"
"""The group of all peers whose network is not known."""


MAX_HOSTS: Final = 1024
"""Hosts of which the network is remembered: four times the records of a peerstore."""

NOT_SAID: Final = "-"
"""The network of a peer of which nobody has said where it is."""


def parsed_host(host: str) -> IPv4Address | IPv6Address | None:
    """Return an IP address without its scope, and mapped IPv4 as IPv4; None for anything else."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped  # or one host would have two names
    return address


def network_at(address: IPv4Address | IPv6Address) -> str:
    """Return the /24 or /48 that an IP address is in."""
    prefix = IPV4_PREFIX if address.version == 4 else IPV6_PREFIX
    return str(ip_network(f"{address}/{prefix}", strict=False))


def network_of(address: str) -> str | None:
    """Return the network that a multiaddr leads to, as far as its text says. "" also where it names no host of the
    internet; None where it leads to no machine of its own: through a relay, or nowhere."""
    if "/p2p-circuit/" in address:
        return None
    protocol, _, rest = address.removeprefix("/").partition("/")
    if protocol.startswith("dns"):
        return "dns"  # one wildcard makes a million names of one machine
    if protocol not in ("ip4", "ip6"):
        return ""
    return _network_of_host(rest.partition("/")[0])


@lru_cache(maxsize=MAX_HOSTS)  # parsing takes 16 us, and those of all known members are asked for often
def _network_of_host(host: str) -> str | None:
    address = parsed_host(host)
    if address is None:
        return None
    return network_at(address) if address.is_global else ""


def group_of(peer: PeerId, network: str | None) -> str:
    """Return the group under which a peer is counted."""
    if network is None:
        return UNKNOWN
    return network or peer


def share_of(places: int, groups: int) -> int:
    """Return how many of these places one group may hold, rounded up: a quarter, or an equal part where there are fewer
    groups; at least one, and all where there is one group."""
    return max(1, -(-places // max(1, min(PARTS, groups))))


def largest_share(sizes: Collection[int], least: int) -> int:
    """Return how many members of one group may count at most, so that none exceeds its part of all that count; at least
    `least`. `sizes`: members of each group."""
    for share in range(max(sizes, default=0), least, -1):
        if share <= share_of(sum(min(size, share) for size in sizes), len(sizes)):
            return share
    return least


def bounded(peers: Iterable[PeerId], group: Callable[[PeerId], str], most: int) -> list[PeerId]:
    """Return the first `most` of these peers of each group, in the order given."""
    counted: Counter[str] = Counter()
    chosen = []
    for peer in peers:
        if counted[group(peer)] < most:
            counted[group(peer)] += 1
            chosen.append(peer)
    return chosen


def in_turn(peers: Iterable[PeerId], group: Callable[[PeerId], str], rng: random.Random) -> list[PeerId]:
    """Return these peers in a random order in which groups take turns: even when one group has many members, the first
    few come from as many groups as there are."""
    of_group: OrderedDict[str, list[PeerId]] = OrderedDict()
    for peer in peers:
        of_group.setdefault(group(peer), []).append(peer)
    for members in of_group.values():
        rng.shuffle(members)
    groups = list(of_group.values())
    rng.shuffle(groups)
    rounds = max(map(len, groups), default=0)
    return [members[turn] for turn in range(rounds) for members in groups if turn < len(members)]
