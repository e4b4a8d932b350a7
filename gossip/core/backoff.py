"""Exponential back-off with jitter for many targets, and parsers for their addresses."""

import random
import re
from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv6Address, ip_network
from pathlib import Path
from typing import Final

from gossip.core.errors import LocalError, RemoteError
from gossip.core.identity import verify_key_of
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_ADDRESS_CHARS
from gossip.core.networks import parsed_host

MAX_TARGETS: Final = 1024
"""Targets with a history: 256 records of up to 4 addresses that were really tried. The oldest history is dropped
first."""

LINK_PREFIX: Final = 64
"""Of IPv6: what a link has, on which a machine may take any address (RFC 4291, 2.5.4)."""

_SOLD: Final = {
    "uk": "co org me ac",
    "au": "com net org id",
    "nz": "co org net",
    "jp": "co ne or ac",
    "kr": "co or",
    "in": "co net org",
    "za": "co org",
    "il": "co org",
    "br": "com net org",
    "cn": "com net org",
    "pl": "com net org",
    "ar": "com",
    "mx": "com",
    "co": "com",
    "pe": "com",
    "hk": "com",
    "sg": "com",
    "my": "com",
    "vn": "com",
    "ph": "com",
    "tr": "com",
    "ua": "com",
    "pt": "com",
    "eg": "com",
    "sa": "com",
    "pk": "com",
    "tw": "com org",
    "id": "co",
    "th": "co",
}
"""By top-level domain, labels under which its registry sells names, as it does under `com` (the ICANN part of
publicsuffix.org; not all of it). None under which names are free, as with dynamic DNS: there one liar has as many as it
likes."""

_DOMAIN: Final = re.compile(r"(?:[a-z0-9-]+\.)*([a-z0-9-]+\.[a-z][a-z0-9-]+)\.?", re.ASCII)


class Backoff:
    """Decides when each target may be tried again: at once the first time, then after doubling pauses."""

    def __init__(self, *, least: float, most: float, rng: random.Random) -> None:
        self._least = least
        self._most = most
        self._rng = rng
        self._state: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._state)

    def due(self, target: str, now: float) -> bool:
        """Return whether the target may be tried now."""
        return self._state.get(target, (0, now))[1] <= now

    def failures(self, target: str) -> int:
        """Return how often the target has failed in a row."""
        return self._state.get(target, (0, 0.0))[0]

    def failed(self, target: str, now: float) -> None:
        """Note a failure; the next pause is between half and one and a half times the doubled one."""
        failures = self.failures(target) + 1
        pause = min(self._most, self._least * 2.0 ** min(failures - 1, 32)) * self._rng.uniform(0.5, 1.5)
        self._state[target] = (failures, now + pause)
        self._state.move_to_end(target)
        while len(self._state) > MAX_TARGETS:
            self._state.popitem(last=False)

    def succeeded(self, target: str) -> None:
        """Forget the target's failures."""
        self._state.pop(target, None)


def peer_in(address: str) -> PeerId:
    """Return the peer id at the end of a multiaddr. Raises LocalError with what is wrong."""
    head, _, name = address.rpartition("/p2p/")
    if not head.startswith("/") or len(address) > MAX_ADDRESS_CHARS:
        raise LocalError(f"{address!r} is no peer's address; one looks like /ip4/192.0.2.1/tcp/4001/p2p/12D3Koo...")
    try:
        verify_key_of(PeerId(name))
    except RemoteError as error:
        raise LocalError(f"{address!r} does not end in the id of a peer: {error.detail}") from error
    return PeerId(name)


@lru_cache(maxsize=MAX_TARGETS)
def host_of(address: str) -> str:
    """Return the machine that a multiaddr leads to, without peer id and port. All names of a domain count as one
    machine: one wildcard in somebody's DNS makes a million names of one host. So does a /64 of IPv6 on the internet,
    which every machine has; and however an address is spelled, it is one."""
    protocol, _, rest = address.removeprefix("/").partition("/")
    name = rest.partition("/")[0]
    if protocol.startswith("dns"):
        return _domain_of(name)
    host = parsed_host(name) if protocol in ("ip4", "ip6") else None
    if host is None:
        return f"{protocol}/{name}"
    shared = isinstance(host, IPv6Address) and host.is_global
    return f"ip6/{ip_network((host, LINK_PREFIX), strict=False)}" if shared else f"ip{host.version}/{host}"


def _domain_of(name: str) -> str:
    """Return the last two labels of a DNS name, or three where names are sold under the two. With one back-off for all
    names, one liar's name that never answers kept every member with a name from being probed, for up to an hour. A liar
    with many domains has as many back-offs, but they cost money. All that could be spelled in many ways is one:
    numbers, which resolvers read as addresses, and letters that are no ASCII."""
    match = _DOMAIN.fullmatch(name.lower())
    if match is None:
        return "dns"
    label, _, top = match[1].partition(".")
    if label in _SOLD.get(top, "").split():
        return f"dns/{'.'.join(match[0].rstrip('.').split('.')[-3:])}"
    return f"dns/{match[1]}"


def addresses_in(path: Path) -> list[str]:
    """Return the lines of a peers file, without blanks and comments; none when there is no file (yet)."""
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
