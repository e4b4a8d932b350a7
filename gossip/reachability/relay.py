"""Relaying: a member that can be dialled carries bytes between two neighbours of its own that cannot.

The messages are those of libp2p's circuit relay v2 (circuit.py); this file decides. The two ends make a handshake of
their own over the circuit, so the relay sees only ciphertext, and who talks to whom. A member offers this by
`network.relay`. The end that wants to be reached through it asks for a reservation. A peer that finds that end's
address, `/p2p/RELAY/p2p-circuit/p2p/PEER`, asks the relay to connect the two. No request makes a relay dial: it is
already connected to both ends. Circuits are bounded by peer and in all, and share one bound of bytes a second; none is
ended after a time or an amount (the messages name no limit).
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.reachability.circuit import CircuitStatus

RELAY_S: Final = 10.0
"""Seconds for each step of a relay, a caller or a far end: a message, a stream and its answer, the handshake over a
circuit. Each takes a few round trips."""

RESERVATION_S: Final = 3600
"""Seconds that a reservation lasts: go's default. One whose peer is lost ends at once, so it only bounds forgotten
ones."""

LEAST_RESERVATION_S: Final = 60.0
"""Seconds that a reservation is assumed to last at least: its end is a date, and clocks differ."""

RENEW_SHARE: Final = 0.5
"""The share of its life after which a reservation is renewed: half of it is left for further tries."""

RENEW_AGAIN_S: Final = 60.0
"""Seconds between these tries: thirty in that half."""

MAX_RESERVATIONS: Final = 32
"""Four times the default degree; each is a name and a number, and is of no use without a place for a circuit."""

MAX_CIRCUITS: Final = 16
"""Twice the default degree. Each holds 128 KiB at the relay at most."""

MAX_CIRCUITS_OF_PEER: Final = 8
"""As many as a peer's default degree; half of the sixteen."""

CIRCUIT_IDLE_S: Final = 60.0
"""Seconds without a byte after which a circuit ends. Its ends ping each other every few seconds."""

CIRCUIT_PIECE_BYTES: Final = 16 * 1024
"""Bytes carried at a time, in turns: 16 ms at a home link's 1 MB/s, so a hello waits that long for each other
circuit."""

CONNECTS_BURST: Final = 64
CONNECTS_PER_S: Final = 1 / 4
"""Circuits and reservations per second that a peer may ask for: its dialler backs off from a second to a minute, so
eight peers that are gone cost it seven requests each at first, and then eight a minute."""


@dataclass(frozen=True, kw_only=True)
class CircuitBounds:
    """How much a relay grants, in all and to each peer."""

    reservations: int = MAX_RESERVATIONS
    circuits: int = MAX_CIRCUITS
    of_peer: int = MAX_CIRCUITS_OF_PEER
    asks_burst: float = CONNECTS_BURST
    asks_per_s: float = CONNECTS_PER_S


_HOST: Final = r"(?:/(?:ip4|ip6|dns|dns4|dns6)/[^/\s]{1,128}/tcp/\d{1,5})?"
_CIRCUIT: Final = re.compile(_HOST + r"/p2p/(\w{1,64})/p2p-circuit/p2p/(\w{1,64})", re.ASCII)


def circuit_address(relay: PeerId, peer: PeerId) -> str:
    """Return the address of `peer` through `relay`, for peers that are connected to the relay."""
    return f"/p2p/{relay}/p2p-circuit/p2p/{peer}"


def parse_circuit(address: str) -> tuple[PeerId, PeerId] | None:
    """Return the relay and the peer of such an address; None for any other. If it also says where the relay listens, as
    those of other programs do, that is ignored: only a peer that is connected to the relay can use it."""
    match = _CIRCUIT.fullmatch(address)
    return None if match is None else (PeerId(match[1]), PeerId(match[2]))


def lasting(expire: int, unix_now: float) -> float:
    """Return the seconds that a reservation is assumed to last that ends at `expire`, by another's clock."""
    return min(float(RESERVATION_S), max(LEAST_RESERVATION_S, expire - unix_now))


class Circuits:
    """What a relay has granted and carries. `bytes_per_s`: of all circuits together, both ways."""

    def __init__(self, bytes_per_s: float, bounds: CircuitBounds = CircuitBounds()) -> None:
        self.carried = 0
        """Bytes of all circuits since the start."""
        self.refused: Counter[CircuitStatus] = Counter()
        """Requests refused since the start, by status."""
        self._bytes_per_s = bytes_per_s
        self._bounds = bounds
        self._until: dict[PeerId, float] = {}
        self._ends: Counter[PeerId] = Counter()
        self._circuits = 0
        self._asked = KeyedTokenBucket(burst=bounds.asks_burst, per_s=bounds.asks_per_s)
        self._free_at = float("-inf")

    def __len__(self) -> int:
        return self._circuits

    def may_ask(self, peer: PeerId, now: float) -> bool:
        """Count one more request; return False when it is an offence."""
        return self._asked.take(peer, now)

    def reserve(self, peer: PeerId, now: float) -> CircuitStatus:
        """Grant a reservation, or renew it."""
        for old in [each for each, until in self._until.items() if until <= now]:
            del self._until[old]
        if peer not in self._until and len(self._until) >= self._bounds.reservations:
            return CircuitStatus.RESERVATION_REFUSED
        self._until[peer] = now + RESERVATION_S
        return CircuitStatus.OK

    def drop(self, peer: PeerId) -> None:
        """Drop the reservation of a peer that has disconnected."""
        self._until.pop(peer, None)

    def take(self, asker: PeerId, target: PeerId, now: float) -> CircuitStatus:
        """Begin one more circuit between two connected peers; with OK it is counted until `leave`."""
        if target == asker or self._until.get(target, now) <= now:
            return CircuitStatus.NO_RESERVATION
        return self._begin(asker, target)

    def take_onward(self, asker: PeerId) -> CircuitStatus:
        """Begin one more circuit to a member that we dial; with OK it is counted, as the asker's, until `leave`."""
        return self._begin(asker)

    def _begin(self, *ends: PeerId) -> CircuitStatus:
        bounds = self._bounds
        if self._circuits >= bounds.circuits or max(self._ends[end] for end in ends) >= bounds.of_peer:
            return CircuitStatus.RESOURCE_LIMIT_EXCEEDED
        self._circuits += 1
        self._ends.update(ends)
        return CircuitStatus.OK

    def leave(self, *ends: PeerId) -> None:
        """Note that a circuit has ended, which was counted for these ends."""
        self._circuits -= 1
        self._ends.subtract(ends)
        self._ends += Counter()  # drops the zeros

    def pause(self, size: int, now: float) -> float:
        """Return the seconds to wait before `size` more bytes may be carried: each circuit's next piece takes its
        turn."""
        begins = max(now, self._free_at)
        self._free_at = begins + size / self._bytes_per_s
        return begins - now
