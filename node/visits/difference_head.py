"""What stands before a visitor's difference, and what the visitor signs.

    body    = key, 32 bytes Ed25519; round, 8 bytes little-endian; model, 32 bytes; signature, 64 bytes; payload
    signed  = "p2ptrain-visit-1" and a zero byte; run, 16 bytes; key; round; model; SHA-256 of the payload

`round` and `model` are those of the model that the visitor started from. A body has one exact length. The head is in
the body and not in HTTP headers, so that a browser sends it to another origin without asking first.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from gossip.core.errors import RemoteError
from gossip.core.identity import KEY_BYTES, SIGNATURE_BYTES, verify
from node.visits.refusals import Refusal, RefusedVisitError

PURPOSE: Final = b"p2ptrain-visit-1\0"
"""Before everything that a visitor signs: no signature of it is worth anything elsewhere."""
ROUND_BYTES: Final = 8
DIGEST_BYTES: Final = 32
_KEY_END: Final = KEY_BYTES
_ROUND_END: Final = _KEY_END + ROUND_BYTES
_MODEL_END: Final = _ROUND_END + DIGEST_BYTES
HEAD_BYTES: Final = _MODEL_END + SIGNATURE_BYTES


@dataclass(frozen=True, kw_only=True)
class LeftDifference:
    """A visitor's request as it came: nothing of it is checked but its length."""

    key: bytes
    round: int
    model: bytes
    signature: bytes
    payload: bytes

    def signed(self, run_id: bytes) -> bytes:
        """Return the bytes that the signature is over."""
        where = self.key + self.round.to_bytes(ROUND_BYTES, "little") + self.model
        return PURPOSE + run_id + where + hashlib.sha256(self.payload).digest()

    def check_signature(self, run_id: bytes) -> None:
        """Raise RefusedVisitError(FORGED) unless the key has signed it."""
        try:
            verify(self.key, self.signed(run_id), self.signature)
        except RemoteError as error:
            raise RefusedVisitError(Refusal.FORGED) from error

    def to_bytes(self) -> bytes:
        """Return the body."""
        return self.key + self.round.to_bytes(ROUND_BYTES, "little") + self.model + self.signature + self.payload


def parsed_difference(body: bytes, payload_bytes: int) -> LeftDifference:
    """Return what a body says. Raises RefusedVisitError(WRONG_SIZE) for another length."""
    if len(body) != HEAD_BYTES + payload_bytes:
        raise RefusedVisitError(Refusal.WRONG_SIZE)
    return LeftDifference(
        key=body[:_KEY_END],
        round=int.from_bytes(body[_KEY_END:_ROUND_END], "little"),
        model=body[_ROUND_END:_MODEL_END],
        signature=body[_MODEL_END:HEAD_BYTES],
        payload=body[HEAD_BYTES:],
    )
