"""Whether and how the router is asked to forward the listening port (`network.upnp`)."""

import ipaddress
from collections.abc import Callable, Sequence

from gossip.reachability.dialback import ports_in
from gossip.reachability.port_mapping_task import PortMapper
from gossip.transport.default_route import default_sources
from node.config.sections import NetworkConfig


def mapper_for(
    network: NetworkConfig,
    addresses: Sequence[str],
    *,
    mapped: Callable[[tuple[str, ...]], None],
    tell: Callable[[str], None],
    sources: Sequence[str] | None = None,
) -> PortMapper | None:
    """Return the mapper that keeps the ports of `addresses` forwarded; None where forwarding is useless.

    `sources`: this machine's addresses towards the internet; None: the system is asked.
    """
    if not network.upnp or network.announce:  # first: announced addresses may be names, which cannot be parsed below
        return None
    found = default_sources() if sources is None else sources
    hosts = [address.split("/")[2] for address in addresses]
    inside = any(ipaddress.ip_address(host).version == 4 and host in found for host in hosts)
    public = any(ipaddress.ip_address(host).is_global for host in found)
    if public or not inside:
        return None
    from gossip.reachability.upnp import UpnpRouter

    return PortMapper(UpnpRouter(), ports_in(addresses), mapped=mapped, tell=tell)
