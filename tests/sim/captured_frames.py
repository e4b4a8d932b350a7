"""Everything that the in-memory network of a test carries, kept frame by frame, and which blobs' bytes are in it."""

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gossip.core.ids import PeerId
from gossip.core.limits import CHUNK_BYTES, STREAM_PROTOCOL
from gossip.core.messages import (
    ChunkRequest,
    ManifestRequest,
    Refused,
    parse_bytes_answer,
    parse_manifest_answer,
    parse_request,
)
from gossip.reachability.circuit import HOP_PROTOCOL, STOP_PROTOCOL
from gossip.transport.memory.traffic_tap import StreamTap

Passed = Counter[tuple[PeerId, PeerId, str]]
"""Bytes of blobs' chunks: by who sent them, to whom, and the blob's address in hex."""


@dataclass
class CapturedPipe:
    """One stream. `said`: by sender, all bytes that it wrote to it."""

    opener: PeerId
    other: PeerId
    protocol: str
    said: defaultdict[PeerId, bytearray] = field(default_factory=lambda: defaultdict(bytearray))

    @property
    def ends(self) -> frozenset[PeerId]:
        """Who is at either end; of a leg of a circuit one of them relays."""
        return frozenset((self.opener, self.other))

    @property
    def relay(self) -> PeerId | None:
        """Who carries the bytes of a circuit on, where this is a leg of one."""
        return {HOP_PROTOCOL: self.other, STOP_PROTOCOL: self.opener}.get(self.protocol)

    def chunks(self) -> Iterator[tuple[str, int]]:
        """The address of each blob of which a chunk was given, and the chunk's size."""
        if self.protocol != STREAM_PROTOCOL:
            return
        asked, answered = _frames(self.said[self.opener]), _frames(self.said[self.other])
        for question, answer in zip(asked, answered, strict=False):
            request = parse_request(question)
            try:
                if isinstance(request, ManifestRequest):
                    yield request.address.hex(), len(parse_manifest_answer(answer)[1])
                elif isinstance(request, ChunkRequest):
                    yield request.address.hex(), len(parse_bytes_answer(answer, CHUNK_BYTES))
            except Refused:
                continue


class CapturedFrames:
    """A tap (gossip/transport/memory/traffic_tap.py) that keeps all that is sent."""

    def __init__(self) -> None:
        self.pipes: list[CapturedPipe] = []
        self.broadcasts: list[tuple[PeerId, bytes]] = []

    def broadcast(self, sender: PeerId, data: bytes, copies: int, *, own: bool, kept: Callable[[PeerId], bool]) -> None:
        """Keep a broadcast."""
        if copies:
            self.broadcasts.append((sender, data))

    def stream(self, opener: PeerId, other: PeerId, protocol: str, overhead: int) -> StreamTap:
        """Keep what is written to a stream."""
        pipe = CapturedPipe(opener, other, protocol)
        self.pipes.append(pipe)

        def keep(sender: PeerId, data: bytes | memoryview) -> None:
            pipe.said[sender] += data

        return keep

    def passed(self, counts: Callable[[CapturedPipe], bool]) -> Passed:
        """The bytes of blobs' chunks in the pipes that count."""
        found: Passed = Counter()
        for pipe in filter(counts, self.pipes):
            for address, size in pipe.chunks():
                found[pipe.other, pipe.opener, address] += size
        return +found


def _frames(said: bytes | bytearray) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(said):
        (size,) = struct.unpack_from(">I", said, at)
        if at + 4 + size <= len(said):
            yield bytes(said[at + 4 : at + 4 + size])
        at += 4 + size
