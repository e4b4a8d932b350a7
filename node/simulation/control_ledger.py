"""What the nodes of a simulation send, by what it is for.

Streams are told apart by the request that opens a frame (gossip/core/messages.py): all that is written until the next
one, by either end, is its. Broadcasts are told apart by whose link it is to who sends it, and whether it did before.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import trio

from gossip.core.envelope import EnvelopeKind
from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_REQUEST_BYTES, STREAM_PROTOCOL
from gossip.core.wire import unpack
from gossip.transport.memory.traffic_tap import StreamTap

FRAME_HEAD: Final = 4
"""Bytes of a frame's length (gossip/session.py)."""

STREAMS: Final = "streams"
"""What streams cost beside what is written to them."""

OWN: Final = "own links"
NEIGHBOURS: Final = "neighbours' links"
OTHERS: Final = "others' links"
REGIONS: Final = "regions' models"
AGAIN: Final = ", again"
"""Links that a node broadcasts itself, and those that it passes on, and statements of regions' models; each the first
time, and later times."""

REGIONAL: Final = EnvelopeKind.REGIONAL.value.encode()
KIND_WITHIN: Final = 128
"""Bytes of an envelope within which its kind is told (gossip/core/envelope.py)."""

PULLED: Final = frozenset({"manifest", "chunk"})
ABOUT_PAYLOADS: Final = "manifests"
"""Requests whose answers are payloads and models, which are not control bytes; and what they have beside these."""


class ControlLedger:
    """A TrafficTap that adds up bytes by kind, for all nodes together. `sent`: by virtual second, so far."""

    def __init__(self) -> None:
        self.sent: dict[int, Counter[str]] = {}
        self._so_far: Counter[str] = Counter()
        self._signers: dict[int, PeerId] = {}
        self._bits: dict[PeerId, int] = {}
        self._passed: dict[int, int] = {}
        """Who passed on each link: a bit for each node, as a million links of a thousand nodes are to weigh little
        beside what a node takes. Links stand by their hash, of 64 bits."""

    def broadcast(self, sender: PeerId, data: bytes, copies: int, *, own: bool, kept: Callable[[PeerId], bool]) -> None:
        """Count copies of a link."""
        name = hash(data)
        signer = self._signers.setdefault(name, sender)  # who publishes it first: nobody lies here
        kind = OWN if signer == sender else NEIGHBOURS if kept(signer) else OTHERS
        if data.find(REGIONAL, 0, KIND_WITHIN) >= 0:
            kind = REGIONS
        passed, bit = self._passed.get(name, 0), self._bits.setdefault(sender, 1 << len(self._bits))
        if passed & bit:
            kind += AGAIN
        self._passed[name] = passed | bit
        self._count(kind, copies * len(data))

    def stream(self, opener: PeerId, other: PeerId, protocol: str, overhead: int) -> StreamTap:
        """Count a stream; return what counts its frames."""
        self._count(STREAMS, 2 * overhead)
        return _StreamAccount(opener, protocol, self._count)

    def _count(self, kind: str, size: int) -> None:
        self._so_far[kind] += size
        second = int(trio.current_time())
        if second not in self.sent:
            self.sent[second] = Counter()
        self.sent[second][kind] += size


class _StreamAccount:
    """Of one stream: the bytes of each frame under its request."""

    def __init__(self, opener: PeerId, protocol: str, count: Callable[[str, int], None]) -> None:
        self._opener = opener
        self._kind = protocol
        self._asks = protocol == STREAM_PROTOCOL
        self._count = count

    def __call__(self, writer: PeerId, data: bytes | memoryview) -> None:
        if self._asks and writer == self._opener:
            self._kind = _name_of(bytes(data[FRAME_HEAD:])) or self._kind
        self._count(self._kind, memoryview(data).nbytes)


def _name_of(request: bytes) -> str:
    """Return what a request is called; "" where this is none, as the rest of a large one."""
    try:
        return unpack(request, MAX_REQUEST_BYTES).text(16)
    except RemoteError:
        return ""


def control_of(kinds: Mapping[str, int], payload_bytes: int) -> dict[str, int]:
    """Return the bytes of each kind less payloads and models, which are in the answers to two requests; most first."""
    control = Counter({kind: size for kind, size in kinds.items() if kind not in PULLED})
    control[ABOUT_PAYLOADS] = sum(kinds.get(kind, 0) for kind in PULLED) - payload_bytes
    return dict(control.most_common())
