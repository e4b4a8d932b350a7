"""Relaying: a member that can be dialled carries bytes between two neighbours of its own that cannot.

The two ends make a handshake of their own over what it carries, so it sees ciphertext, and who talks to whom. It offers
that (`network.relay`) and is asked for it by the end that is to be found through it; whoever finds that end's address,
`/p2p/RELAY/p2p-circuit/p2p/PEER`, asks the relay to connect the two. Nothing is dialled on anybody's word: a relay and
both ends are connected already. Circuits are bounded by peer and in all, and share one bound of bytes a second.
"""

import re
from collections import Counter
from typing import Final

from gossip.errors import Reason, RemoteError
from gossip.ids import PeerId
from gossip.protocol.quota import Quota
from gossip.protocol.wire import malformed, pack, unpack

RELAY_PROTOCOL: Final = "/p2ptrain/1/relay"
"""To a relay: whether it would, or a circuit."""

RELAYED_PROTOCOL: Final = "/p2ptrain/1/relayed"
"""From a relay to the far end of a circuit."""

MAX_RELAY_BYTES: Final = 96
"""A peer id of an Ed25519 key has 52 characters."""

MAX_RELAY_ANSWER_BYTES: Final = 320
"""A refusal with its line of detail."""

MAX_PEER_CHARS: Final = 64

RELAY_S: Final = 10.0
"""For a relay and the far end together to take a circuit, and for the handshake over it: some round trips each."""

MAX_CIRCUITS: Final = 16
"""Twice the default degree. Each holds 128 KiB at the relay at most."""

MAX_CIRCUITS_OF_PEER: Final = 8
"""As many as its default degree; of the sixteen one peer has half."""

CIRCUIT_IDLE_S: Final = 60.0
"""A circuit over which nothing came for so long ends. Its ends ping each other every few seconds."""

CIRCUIT_PIECE_BYTES: Final = 16 * 1024
"""Carried at a time, in turns: at a home link's 1 MB/s 16 ms, so that a hello waits that long behind each circuit."""

CONNECTS_BURST: Final = 64
CONNECTS_PER_S: Final = 1 / 4
"""Circuits of a peer that it may ask for: its dialler backs off from a second to a minute, so eight peers that are gone
cost it seven asks each at first and eight a minute then."""

_CIRCUIT: Final = re.compile(r"/p2p/(\w{1,64})/p2p-circuit/p2p/(\w{1,64})", re.ASCII)


def circuit_address(relay: PeerId, peer: PeerId) -> str:
    """Where `peer` is reached through `relay`, by those that are connected to the relay."""
    return f"/p2p/{relay}/p2p-circuit/p2p/{peer}"


def parse_circuit(address: str) -> tuple[PeerId, PeerId] | None:
    """The relay and the peer of such an address; None for any other."""
    match = _CIRCUIT.fullmatch(address)
    return None if match is None else (PeerId(match[1]), PeerId(match[2]))


def encode_relay_ask(target: PeerId | None) -> bytes:
    """Ask a relay for a circuit to `target`; None: whether it would relay for us."""
    return pack(("offer",) if target is None else ("connect", target))


def parse_relay_ask(raw: bytes | bytearray) -> PeerId | None:
    """To whom a circuit is asked for; None where only the offer is. Raises RemoteError."""
    fields = unpack(raw, MAX_RELAY_BYTES)
    name = fields.text(16)
    if name not in ("offer", "connect"):
        raise RemoteError(Reason.UNKNOWN_KIND, f"a relay is asked for {name}")
    target = None if name == "offer" else PeerId(fields.text(MAX_PEER_CHARS))
    fields.end()
    return target


def encode_relayed(asker: PeerId) -> bytes:
    """To the far end: who wants a circuit to it."""
    return pack((asker,))


def parse_relayed(raw: bytes | bytearray) -> PeerId:
    """Who wants a circuit to us, as the relay says. Raises RemoteError."""
    fields = unpack(raw, MAX_RELAY_BYTES)
    asker = PeerId(fields.text(MAX_PEER_CHARS))
    fields.end()
    if not asker:
        raise malformed("a circuit of nobody")
    return asker


class Circuits:
    """The circuits that a relay carries. `bytes_per_s`: of all together, both ways."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._ends: Counter[PeerId] = Counter()
        self._asked = Quota(burst=CONNECTS_BURST, per_s=CONNECTS_PER_S)
        self._free_at = float("-inf")

    def __len__(self) -> int:
        return self._ends.total() // 2

    def take(self, asker: PeerId, target: PeerId, now: float) -> None:
        """One more circuit. RemoteError: FLOODED is an offence, UNAVAILABLE is none."""
        if not self._asked.take(asker, now):
            raise RemoteError(Reason.FLOODED, "it asks for circuits again and again")
        if len(self) >= MAX_CIRCUITS or max(self._ends[asker], self._ends[target]) >= MAX_CIRCUITS_OF_PEER:
            raise RemoteError(Reason.UNAVAILABLE, "too many circuits")
        self._ends.update((asker, target))

    def leave(self, asker: PeerId, target: PeerId) -> None:
        """It has ended."""
        self._ends.subtract((asker, target))
        self._ends += Counter()  # drops the zeros

    def pause(self, size: int, now: float) -> float:
        """Seconds to wait before `size` more bytes may be carried: each circuit's next piece takes its turn."""
        begins = max(now, self._free_at)
        self._free_at = begins + size / self._bytes_per_s
        return begins - now
