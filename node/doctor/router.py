"""The router: whether it is found by UPnP and forwards a port when it is asked. The mapping of the try is removed."""

import ipaddress
from functools import partial
from typing import Final

import trio

from gossip.reachability.port_mapping_task import FIND_S, MAP_S
from gossip.reachability.upnp import Router, RouterError
from gossip.transport.default_route import default_sources
from node.doctor.finding import Finding, Subject
from node.doctor.network import bound, kind_of, listen_ports

TRY_PORT: Final = 4001
"""Where no fixed port is configured: libp2p's usual one."""

TRY_LEASE_S: Final = 60
"""Should this program be killed before it takes the mapping back."""

REMEDY: Final = "forward a TCP port to this machine in the router's pages, or enable UPnP there"


async def router(subject: Subject, made: Router | None = None) -> list[Finding]:
    """Check whether the router forwards a port. `made` makes the client to ask; None takes the network's own."""
    if not subject.network.upnp:
        return [Finding(check="router", level="ok", seen="not asked: network.upnp is off")]
    if made is None and not default_sources():  # miniupnpc would print what the system says to each of its packets
        return [Finding(check="router", level="ok", seen="not asked: no route leads out of this network")]
    port = _free(next(iter(listen_ports(subject.network.listens_on)), TRY_PORT))
    try:
        with trio.fail_after(FIND_S + MAP_S):
            ask = partial(trio.to_thread.run_sync, _tried, port, made, abandon_on_cancel=True)
            outside, outer = await ask()
    except (RouterError, trio.TooSlowError) as error:
        seen = f"no port by UPnP: {error or 'no answer in time'}"
        return [Finding(check="router", level="unknown", seen=seen, fix=f"behind a router: {REMEDY}")]
    seen = f"forwards TCP port {outer} of {outside}"
    if not ipaddress.ip_address(outside).is_global:
        seen += f", which is {kind_of(outside)}: another router stands before it"
        fix = "forward the port there as well, ask the provider for an address of your own, or let a member relay"
        return [Finding(check="router", level="warning", seen=seen, fix=fix)]
    return [Finding(check="router", level="ok", seen=f"{seen}: a node does so by itself")]


def _free(wanted: int) -> int:
    """The port, or another one where a program of this machine has it: that may be a node whose mapping would be taken
    back with ours, and which asks for it again minutes later."""
    try:
        with bound("0.0.0.0", wanted):
            return wanted
    except OSError:
        with bound("0.0.0.0", 0) as other:
            return int(other.getsockname()[1])


def _tried(port: int, made: Router | None) -> tuple[str, int]:
    from gossip.reachability.upnp import UpnpRouter

    found = made or UpnpRouter()
    outside = found.find()
    outer = found.map(port, TRY_LEASE_S)
    found.unmap(outer)
    return outside, outer
