"""This machine's own addresses on its default routes: where it reaches others, they most likely reach it.

A machine listens on every interface, container bridges and VPNs among them. The system knows which one it would use
towards the rest of the world: connecting a UDP socket makes it choose, and sends nothing. On a network that leads
nowhere else, as a hospital's or a laboratory's, there is no such route: there the interfaces are all that is known.
"""

import ipaddress
import socket
from pathlib import Path
from typing import Final

import psutil

_BEYOND: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses reserved for documentation (RFC 5737, RFC 3849): they are nobody's, so only the default route fits."""

_DEVICES: Final = Path("/sys/class/net")
"""Has a folder for each interface under Linux, and in it a `device` where that is hardware."""

_PORT: Final = 9
"""The discard service; any port would do."""


def default_source(family: socket.AddressFamily) -> str | None:
    """Return this machine's own address on the default route of IPv4 or IPv6; None where there is no such route."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_BEYOND[family], _PORT))
            return str(probe.getsockname()[0])
    except OSError:  # no such route, or no such protocol
        return None


def default_sources() -> tuple[str, ...]:
    """Return this machine's own address on the default route, for IPv4 and IPv6 where there is such a route."""
    return tuple(source for family in _BEYOND if (source := default_source(family)) is not None)


def likely_sources() -> tuple[str, ...]:
    """Return where others most likely reach this machine: its addresses on the default routes; where there are none,
    those of its interfaces, of hardware alone if any is."""
    return default_sources() or _on_interfaces()


def _on_interfaces() -> tuple[str, ...]:
    states = psutil.net_if_stats()
    up = {name: entries for name, entries in psutil.net_if_addrs().items() if name in states and states[name].isup}
    hardware = {name: entries for name, entries in up.items() if (_DEVICES / name / "device").exists()}
    addresses = [
        entry.address
        for family in _BEYOND
        for _, entries in sorted((hardware or up).items())
        for entry in entries
        if entry.family == family and "%" not in entry.address  # "%": of this link alone
    ]
    return tuple(each for each in addresses if not ipaddress.ip_address(each).is_loopback)
