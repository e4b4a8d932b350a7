"""The router of this network, by UPnP: asks it to forward a port, and to stop. Calls block: use a worker thread.

miniupnpc is the library that libp2p itself pins for this. libp2p's own class (discovery/upnp) takes leases without end,
and refuses every router that has a private address. No function here raises miniupnpc's exceptions, which are bare
`Exception`s.
"""

import ipaddress
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import miniupnpc

from gossip.core.errors import GossipError

DISCOVER_MS: Final = 2000
"""Milliseconds. Routers answer within a second (UPnP asks for MX = 2)."""

DESCRIPTION: Final = "p2ptrain"
"""The name of the mapping in the router's table."""

OTHER_PORTS: Final = 4
"""Ports tried in all when another machine has ours at this router: a household has few nodes."""

T = TypeVar("T")


class RouterError(GossipError):
    """No router forwards the port: there is none, or it refuses."""


class Router(Protocol):
    """A router that maps ports. Methods block, and raise RouterError."""

    def find(self) -> str:
        """Find the router; return its IPv4 address on the outside."""

    def map(self, port: int, lease_s: int) -> int:
        """Forward a TCP port of the router to the same port of this machine, for `lease_s`; return which port it
        became."""

    def unmap(self, port: int) -> None:
        """End the forwarding of a port. Raises nothing."""


class UpnpRouter:
    """The first Internet gateway that answers. `interface`: our address to ask from; None: the default one."""

    def __init__(self, interface: str | None = None) -> None:
        options: dict[str, Any] = {"discoverdelay": DISCOVER_MS}
        if interface is not None:
            options["multicastif"] = interface
        self._gateway = miniupnpc.UPnP(**options)

    def find(self) -> str:
        """Find the router; return its outside address. Raises RouterError when none answers."""
        if not _asked("no router answers", self._gateway.discover):
            raise RouterError("no router answers")
        _asked("what answers is no Internet gateway", self._gateway.selectigd)
        outside = _asked("the router does not tell its address", self._gateway.externalipaddress)
        if not outside:
            raise RouterError("the router has no address on the outside: it is offline")
        try:
            return str(ipaddress.IPv4Address(str(outside)))  # anything on the LAN may answer, with any text
        except ValueError:
            raise RouterError("what the router tells is no IPv4 address") from None

    def map(self, port: int, lease_s: int) -> int:
        """Forward the port; return it, or another port where another machine has that one. Raises RouterError."""
        lan = str(self._gateway.lanaddr)
        for outer in range(port, port + OTHER_PORTS):
            try:
                self._add(outer, lan, port, lease_s)
            except RouterError:
                continue
            return outer
        raise RouterError(f"the router does not forward port {port}")

    def _add(self, outer: int, lan: str, port: int, lease_s: int) -> None:
        def add() -> bool:
            added: bool = self._gateway.addportmapping(outer, "TCP", lan, port, DESCRIPTION, "", lease_s)
            return added

        if not _asked("refused", add):
            raise RouterError("refused")

    def unmap(self, port: int) -> None:
        """End the forwarding; what the router does not remove ends with its lease."""
        with suppress(RouterError):
            _asked("refused", lambda: self._gateway.deleteportmapping(port, "TCP"))


def _asked(complaint: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception as error:  # miniupnpc raises nothing else
        why = str(error)
        raise RouterError(f"{complaint} ({why})" if why not in ("", "Success") else complaint) from error
