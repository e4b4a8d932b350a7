"""Asking a peer whether it can dial us back: the two messages, and which requests are granted.

Nobody can be made to dial a third party: the asker names ports and no hosts, and the peer that is asked tries them on
the host that the asker's own connection comes from. It makes a whole handshake there, so an answer is for the asker's
key. Too many requests are refused: by peer (and charged), by host (keys are free) and in all.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.messages import encode_answer, parse_bytes_answer
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.wire import malformed, pack, unpack

DIALBACK_PROTOCOL: Final = "/p2ptrain/1/dialback"
"""The stream protocol: one request and its answer in each stream."""

MAX_PORTS: Final = 4
"""IPv4 and IPv6, own and forwarded: four. Each is one handshake for the peer that is asked."""

MAX_PORT: Final = 65_535

MAX_ASK_BYTES: Final = 64
"""Bytes of a request: four ports take 22."""

MAX_TRIED_CHARS: Final = 96
"""An IPv6 address with its port takes 57."""

MAX_SIGHTING_BYTES: Final = 512
"""Four addresses of MAX_TRIED_CHARS take 404."""

DIALBACK_S: Final = 5.0
"""Seconds for each handshake: a second SYN goes out after 1 s and a third after 3; and the asker waits 10 s for its
answer."""

MAX_DIALBACKS: Final = 4
"""Dial-backs under way at once, as many as probes."""

OF_PEER_BURST: Final = 6
OF_PEER_PER_S: Final = 1 / 300
"""A node asks at its start, when its addresses change, once an hour, and every ten minutes who did not reach it."""

OF_HOST_BURST: Final = 12
OF_HOST_PER_S: Final = 1 / 60
"""Several nodes behind one router, each with a `doctor` run now and then."""

ALL_BURST: Final = 32
ALL_PER_S: Final = 1.0
"""A swarm that starts at once; after that at most four handshakes a second."""

_TRIED: Final = re.compile(r"/(?:ip[46]/(?P<host>[0-9a-fA-F.:]{2,45})/tcp/\d{1,5}|memory/\d{1,9})", re.ASCII)
_PORT: Final = re.compile(r"/(?:tcp|memory)/(\d{1,9})(?:/|$)")


def ports_in(addresses: Iterable[str]) -> tuple[int, ...]:
    """Return the ports to ask about: of what we listen on or announce, each once, `MAX_PORTS` at most."""
    found = {int(match[1]): None for address in addresses if (match := _PORT.search(address)) is not None}
    return tuple(port for port in found if port <= MAX_PORT)[:MAX_PORTS]


def encode_ask(ports: Sequence[int]) -> bytes:
    """Return the request's bytes."""
    return pack((list(ports),))


def parse_ask(raw: bytes | bytearray) -> tuple[int, ...]:
    """Parse the ports that a peer asks about. Raises RemoteError."""
    fields = unpack(raw, MAX_ASK_BYTES)
    items = fields.array(MAX_PORTS)
    fields.end()
    ports = tuple(items.integer(MAX_PORT) for _ in range(items.left))
    if not ports or len(set(ports)) < len(ports):
        raise malformed("no port, or one twice")
    return ports


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What a peer found: the addresses that it tried (without `/p2p/`), and those where we answered."""

    tried: tuple[str, ...]
    answered: tuple[str, ...]


def encode_sighting(found: dict[str, bool]) -> bytes:
    """Return the answer's bytes, from the addresses tried and whether each answered."""
    return encode_answer(pack(([[address, answered] for address, answered in found.items()],)))


def parse_sighting(raw: bytes | bytearray, asked: Sequence[int]) -> Sighting:
    """Parse a peer's answer. Raises Refused, or RemoteError when it tried something else than was asked."""
    fields = unpack(parse_bytes_answer(raw, MAX_SIGHTING_BYTES), MAX_SIGHTING_BYTES)
    items = fields.array(MAX_PORTS)
    fields.end()
    found: dict[str, bool] = {}
    for _ in range(items.left):
        pair = items.array(2)
        address = pair.text(MAX_TRIED_CHARS)
        found[address] = pair.boolean()
        pair.end()
    if not found or any(not _is_tried(address, asked) for address in found):
        raise malformed("an address that nobody asked about")
    return Sighting(tried=tuple(found), answered=tuple(address for address, there in found.items() if there))


def _is_tried(address: str, asked: Sequence[int]) -> bool:
    """Return whether it is the address of a host, by number, with a port that was asked about. We may sign it and pass
    it on: a peer that is believed must not be able to put anything else there."""
    match = _TRIED.fullmatch(address)
    if match is None or not set(ports_in([address])).intersection(asked):
        return False
    try:
        return match["host"] is None or bool(ip_address(match["host"]))
    except ValueError:
        return False


class Grants:
    """Decides who may ask now."""

    def __init__(self) -> None:
        self._of_peer = KeyedTokenBucket(burst=OF_PEER_BURST, per_s=OF_PEER_PER_S)
        self._of_host = KeyedTokenBucket(burst=OF_HOST_BURST, per_s=OF_HOST_PER_S)
        self._all = KeyedTokenBucket(burst=ALL_BURST, per_s=ALL_PER_S)

    def take(self, peer: PeerId, host: str, now: float) -> None:
        """Grant one request of `peer`, seen from `host`. Raises RemoteError: FLOODED is an offence, UNAVAILABLE is
        none."""
        if not self._of_peer.take(peer, now):
            raise RemoteError(Reason.FLOODED, "it asks to be dialled again and again")
        if not (self._of_host.take(host, now) and self._all.take("", now)):
            raise RemoteError(Reason.UNAVAILABLE, "too many ask to be dialled back")
