"""This machine's own addresses on its default routes: where it reaches others, they most likely reach it.

A machine listens on every interface, container bridges and VPNs among them. The system knows which one it would use
towards the rest of the world: connecting a UDP socket makes it choose, and sends nothing.
"""

import socket
from typing import Final

_BEYOND: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses reserved for documentation (RFC 5737, RFC 3849): they are nobody's, so only the default route fits."""

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
