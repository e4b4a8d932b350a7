"""Which of this machine's addresses to hand to others: where the default route leaves, they most likely reach us."""

import ipaddress
from collections.abc import Sequence
from typing import Final

from gossip.transport.default_route import default_sources, likely_sources

UNDIALABLE: Final = "IPv6 alone leads out of this machine, and it listens on IPv4 alone"
LISTEN_ON_IPV6: Final = "give --listen /ip6/::/tcp/4001"
UNDIALABLE_WARNING: Final = f"nobody else can dial this node: {UNDIALABLE}; {LISTEN_ON_IPV6}"


def best_address(addresses: Sequence[str], sources: Sequence[str] | None = None) -> str:
    """Return the multiaddr of `addresses` (one at least) to hand out: on the default route, or on an interface
    where there is none, else not loopback, else the first.

    `sources`: this machine's addresses towards the rest of the world, best first; None: the system is asked.
    """
    hosts = {address: _host(address) for address in addresses}
    for source in likely_sources() if sources is None else sources:
        for address, host in hosts.items():
            if host == _parsed(source):
                return address
    return next((address for address, host in hosts.items() if not _is_loopback(host)), addresses[0])


def is_undialable(listens_on: Sequence[str], announce: Sequence[str], sources: Sequence[str] | None = None) -> bool:
    """Return whether nobody else can dial this machine, since IPv6 alone leads out of it and it listens on IPv4 alone,
    as by default. A node that is to be dialled on its own machine alone, or at addresses that its owner announces, is
    as it was meant. `sources` as of `best_address`."""
    found = default_sources() if sources is None else sources
    for_others = [address for address in listens_on if not _is_loopback(_host(address))]
    on_ipv4_alone = bool(for_others) and all(address.startswith("/ip4/") for address in for_others)
    return not announce and on_ipv4_alone and bool(found) and all(":" in source for source in found)


def _host(address: str) -> str:
    parts = address.split("/")
    return _parsed(parts[2]) if len(parts) > 2 else ""


def _parsed(host: str) -> str:
    """One spelling for an IP address; a name stays as it is."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
