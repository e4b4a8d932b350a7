"""The network as seen from here: ports, addresses, multicast. Nobody is asked anything."""

import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import psutil

from gossip.transport.default_route import default_sources, likely_sources
from node.doctor.finding import Finding, Subject
from node.system.addresses import LISTEN_ON_IPV6, UNDIALABLE, is_undialable

CGNAT: Final = ipaddress.ip_network("100.64.0.0/10")
"""Shared address space (RFC 6598): a provider's own router stands between this one and the internet."""

MDNS_GROUP: Final = "224.0.0.251"
MULTICAST_S: Final = 0.5
"""A packet to one's own socket takes no time."""


def ports(subject: Subject) -> list[Finding]:
    """Check whether each port to listen on is free, and name the program that has it otherwise."""
    return [_port(address) for address in subject.network.listens_on]


def _port(address: str) -> Finding:
    host, port = host_and_port(address)
    if port == 0:
        seen = f"{address}: any free port, at later starts the same where it is free"
        fix = "to be dialled through a router, give a fixed one, such as --listen /ip4/0.0.0.0/tcp/4001"
        return Finding(check="port", level="ok", seen=seen, fix=fix)
    try:
        bound(host, port).close()
    except OSError as error:
        return Finding(check="port", level="problem", seen=f"{address}: {_why(error, port)}", fix=_remedy(error))
    return Finding(check="port", level="ok", seen=f"{address}: free")


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound as a node binds it: no other may share the port. Raises OSError."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ":" in host:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.bind((host, port))
        found.listen(1)
    except OSError:
        found.close()
        raise
    return found


def _why(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"in use by {holder_of(port)}"
    if error.errno == errno.EADDRNOTAVAIL:
        return "no address of this machine"
    return error.strerror or str(error)


def _remedy(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another port with --listen, or end what has it"
    if error.errno == errno.EACCES:
        return "a port above 1023"
    return "listen on /ip4/0.0.0.0/tcp/PORT; a router's address belongs into network.announce"


def holder_of(port: int) -> str:
    """Return which kind of program listens there, as far as this user may see."""
    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                process = psutil.Process(each.pid)
                ours = any("p2ptrain" in word for word in process.cmdline()[:3])
                return f"{'a p2ptrain node' if ours else process.name()} (process {each.pid})"
    return "another program (of another user, perhaps)"


def addresses(subject: Subject, hosts: Sequence[str] | None = None, beside: Sequence[str] | None = None) -> Finding:
    """Report which kinds of addresses this machine has towards the internet or, where it has none, on its own network.
    None of `hosts`, those, and of `beside`, these, asks the system."""
    found = default_sources() if hosts is None else hosts
    kinds = {kind_of(host) for host in found}
    seen = ", ".join(f"{host} ({kind_of(host)})" for host in found)
    if not found and (inside := likely_sources() if beside is None else beside):
        seen = f"{', '.join(inside)}, and no route beyond this network: nodes on it reach each other"
        return Finding(check="addresses", level="ok", seen=seen)
    if not found:
        seen = "no route to anywhere: offline"
        return Finding(check="addresses", level="warning", seen=seen, fix="connect it; on one machine it needs none")
    if is_undialable(subject.network.listens_on, subject.network.announce, found):
        return Finding(check="addresses", level="warning", seen=f"{seen}: {UNDIALABLE}", fix=LISTEN_ON_IPV6)
    if "public" in kinds or subject.network.announce:
        return Finding(check="addresses", level="ok", seen=seen)
    if "shared by the provider" in kinds:
        fix = "ask the provider for an address of your own, or IPv6; until then a member must relay (network.relay)"
        return Finding(check="addresses", level="warning", seen=seen, fix=fix)
    fix = "the router must forward a TCP port to this machine (network.upnp asks it), or a member must relay"
    return Finding(check="addresses", level="warning", seen=seen, fix=fix)


def kind_of(host: str) -> str:
    """Return the kind of an IP address: from where others can dial it."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_loopback:
        return "this machine alone"
    if address.version == 4 and address in CGNAT:
        return "shared by the provider"
    if address.is_link_local:
        return "this link alone"
    return "public" if address.is_global else "private"


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of a multiaddr that the configuration has checked."""
    parts = address.split("/")
    return parts[2], int(parts[4])


def listen_ports(addresses: Iterable[str]) -> tuple[int, ...]:
    """Return the fixed ports of the configured listen addresses."""
    return tuple(port for address in addresses if (port := host_and_port(address)[1]))


def multicast() -> Finding:
    """Check whether a packet to mDNS's group comes back to a socket of our own: nodes of one LAN find each other so."""
    ours = next((host for host in likely_sources() if ":" not in host), "0.0.0.0")  # no route may lead to the group
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.settimeout(MULTICAST_S)
            probe.bind(("", 0))
            member = socket.inet_aton(MDNS_GROUP) + socket.inet_aton(ours)
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(ours))
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)  # it does not leave this machine
            probe.sendto(b"p2ptrain doctor", (MDNS_GROUP, probe.getsockname()[1]))
            probe.recv(64)
    except OSError as error:
        why = "nothing comes back" if isinstance(error, TimeoutError) else error.strerror or str(error)
        fix = "name a peer with --peer; or allow multicast (UDP 5353) in the firewall"
        return Finding(check="multicast", level="warning", seen=f"not usable: {why}", fix=fix)
    return Finding(
        check="multicast", level="ok", seen="works here; whether the LAN passes it on, another node there would show"
    )
