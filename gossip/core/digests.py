"""The two hashes of this protocol: BLAKE2b names small things, BLAKE3 the chunks of blobs.

BLAKE2b is in Python's own library, but at 0.85 GB/s of a core it took a seventh of a blob's transfer time; BLAKE3
reaches 4 GB/s on the same core (decision 0016).
"""

from hashlib import blake2b
from typing import Final

from blake3 import blake3

from gossip.core.ids import Digest, SwarmId

DIGEST_BYTES: Final = 32
SWARM_ID_BYTES: Final = 16
RUN_ID_BYTES: Final = 16

NO_DIGEST: Final = Digest(bytes(DIGEST_BYTES))
"""Used where there is nothing to name: no payload, no previous link."""


def digest_of(data: bytes | memoryview) -> Digest:
    """Return BLAKE2b-256 of `data`."""
    return Digest(blake2b(data, digest_size=DIGEST_BYTES).digest())


def chunk_digest_of(data: bytes | bytearray | memoryview) -> Digest:
    """Return BLAKE3 of `data`, 32 bytes; releases the GIL meanwhile."""
    return Digest(blake3(data).digest())


def swarm_id_of(name: str) -> SwarmId:
    """Return the first 16 bytes of BLAKE2b-256 of the swarm's name."""
    return SwarmId(digest_of(name.encode("utf-8"))[:SWARM_ID_BYTES])
