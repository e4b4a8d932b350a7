"""Exponential back-off with jitter for many targets, and the parsing of the addresses that are tried."""

import random
from collections import OrderedDict
from pathlib import Path
from typing import Final

from gossip.core.errors import LocalError, RemoteError
from gossip.core.identity import verify_key_of
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_ADDRESS_CHARS

MAX_TARGETS: Final = 1024
"""Targets with a history: 256 records of up to 4 addresses that were really tried. The oldest history goes first."""


class Backoff:
    """When each target may be tried again: at once the first time, then after doubling pauses."""

    def __init__(self, *, least: float, most: float, rng: random.Random) -> None:
        self._least = least
        self._most = most
        self._rng = rng
        self._state: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._state)

    def due(self, target: str, now: float) -> bool:
        """Whether the target may be tried now."""
        return self._state.get(target, (0, now))[1] <= now

    def failures(self, target: str) -> int:
        """How often it has failed in a row."""
        return self._state.get(target, (0, 0.0))[0]

    def failed(self, target: str, now: float) -> None:
        """Wait longer: between half and one and a half times the doubled pause."""
        failures = self.failures(target) + 1
        pause = min(self._most, self._least * 2.0 ** min(failures - 1, 32)) * self._rng.uniform(0.5, 1.5)
        self._state[target] = (failures, now + pause)
        self._state.move_to_end(target)
        while len(self._state) > MAX_TARGETS:
            self._state.popitem(last=False)

    def succeeded(self, target: str) -> None:
        """Forget its failures."""
        self._state.pop(target, None)


def peer_in(address: str) -> PeerId:
    """The peer id at the end of a multiaddr. Raises LocalError with what is wrong."""
    head, _, name = address.rpartition("/p2p/")
    if not head.startswith("/") or len(address) > MAX_ADDRESS_CHARS:
        raise LocalError(f"{address!r} is no peer's address; one looks like /ip4/192.0.2.1/tcp/4001/p2p/12D3Koo...")
    try:
        verify_key_of(PeerId(name))
    except RemoteError as error:
        raise LocalError(f"{address!r} does not end in the id of a peer: {error.detail}") from error
    return PeerId(name)


def host_of(address: str) -> str:
    """Which machine a multiaddr leads to, whoever is expected there and at whichever port. All names are one machine:
    one wildcard in somebody's DNS makes a million names of the same."""
    protocol, _, rest = address.removeprefix("/").partition("/")
    return "dns" if protocol.startswith("dns") else f"{protocol}/{rest.partition('/')[0]}"


def addresses_in(path: Path) -> list[str]:
    """The lines of a peers file, without blanks and comments; none when there is no file (yet)."""
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
