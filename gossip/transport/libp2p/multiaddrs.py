"""Multiaddrs: what a user or a peer hands us, and what we hand out."""

import ipaddress
import socket
from collections.abc import Iterable

import psutil
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.transport.default_route import likely_sources
from gossip.transport.libp2p.tcp import host_and_port


def parse_listen(address: str) -> Multiaddr:
    """An address to listen on. Raises LocalError unless it is an IP address with a TCP port."""
    parsed = _parse(address)
    host, _ = host_and_port(parsed)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise LocalError(f"{address}: to listen, give an IP address, e.g. /ip4/0.0.0.0/tcp/4001") from None
    return parsed


def parse_dial(address: str) -> tuple[Multiaddr, PeerId]:
    """An address to dial and whom to expect there. Raises LocalError, also where the host is not what its text begins
    with, by which others decide whether it may be dialled."""
    parsed = _parse(address)
    peer = parsed.get_peer_id()
    if peer is None:
        raise LocalError(f"{address}: must end in /p2p/ and the peer id, so that nobody else can answer")
    host_and_port(parsed)
    if address.split("/")[1::2] != [protocol.name for protocol in parsed.protocols()]:
        raise LocalError(
            f"{address!r} has a slash too many"
        )  # multiaddr passes over it, and who reads the host does not
    return parsed, PeerId(peer)


def parse_peer(peer: PeerId) -> ID:
    """libp2p's form of a peer id. Raises LocalError."""
    try:
        return ID.from_string(peer)
    except Exception as error:  # base58, multibase and multihash each have a type of their own
        raise LocalError(f"{peer}: not a peer id") from error


def dialable(bound: Iterable[Multiaddr], peer: PeerId) -> tuple[str, ...]:
    """The bound addresses with `/p2p/<peer>`; an unspecified one (0.0.0.0) becomes those of the interfaces. First those
    by which this machine reaches others: a record holds `MAX_ADDRESSES`, and a machine may have a bridge for each of
    its containers. Loopback comes last: it helps only peers on the same machine."""
    found: dict[str, int] = {}
    sources = likely_sources()
    for address in bound:
        host, port = host_and_port(address)
        anywhere = ipaddress.ip_address(host).is_unspecified
        for each in _interfaces(":" in host) if anywhere else [host]:
            place = _BY_CHOICE if not anywhere or each in sources else _place_of(each)
            found[f"/{'ip6' if ':' in each else 'ip4'}/{each}/tcp/{port}/p2p/{peer}"] = place
    return tuple(sorted(found, key=lambda address: found[address]))


_BY_CHOICE, _BY_CHANCE, _HERE_ALONE = range(3)


def _place_of(host: str) -> int:
    return _HERE_ALONE if ipaddress.ip_address(host).is_loopback else _BY_CHANCE


def _parse(address: str) -> Multiaddr:
    try:
        return Multiaddr(address)
    except Exception as error:  # multiaddr raises a dozen types, ValueError among them
        raise LocalError(f"{address!r} is not a multiaddr, e.g. /ip4/192.0.2.1/tcp/4001/p2p/12D3Koo...") from error


def _interfaces(ipv6: bool) -> list[str]:
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    entries = (entry for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == family)
    return sorted({entry.address for entry in entries if "%" not in entry.address})  # "%": link-local, needs a scope
