"""What make_vectors.py and make_vectors_bad.py share: the cast, the scope, and how values are shown in JSON."""

from typing import Any

from gossip.core.digests import digest_of, swarm_id_of
from gossip.core.envelope import Scope
from gossip.core.identity import Identity
from gossip.core.ids import RunId

ALICE, BOB, CAROL = (Identity(bytes([number]) * 32) for number in (1, 2, 3))
RUN = RunId(b"r" * 16)
SCOPE = Scope(swarm=swarm_id_of("p2ptrain"), run=RUN)
GENESIS = digest_of(b"the initial model")
EPOCH = 1_767_225_600_000
"""2026-01-01 in Unix milliseconds."""


def pattern(size: int) -> bytes:
    """A blob without randomness: byte i is i mod 251, a prime, so that no two chunks are alike."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


MANY_ZEROS = 1024


def shown(value: Any) -> Any:
    """Bytes as hex, many zeros as their number, all the rest as JSON has it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"zeros": len(value)} if len(value) > MANY_ZEROS and not any(value) else bytes(value).hex()
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value
