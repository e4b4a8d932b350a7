"""Why a visitor is refused: a word for programs and metrics, an HTTP status, and a sentence for people."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class _RefusedWith:
    status: int
    words: str


class Refusal(Enum):
    """A reason for which a visitor's request is refused."""

    NO_MODEL = _RefusedWith(503, "there is no model yet: come again after the first round")
    OVER = _RefusedWith(410, "the run is over")
    WRONG_SIZE = _RefusedWith(413, "a difference has exactly the bytes that /v1/visit says, in Content-Length")
    TOO_SLOW = _RefusedWith(408, "the difference did not arrive whole, or too slowly")
    MALFORMED = _RefusedWith(400, "these bytes are no difference")
    NOT_FINITE = _RefusedWith(422, "a difference has finite values")
    FORGED = _RefusedWith(403, "the signature is not by this key over these bytes")
    UNKNOWN_MODEL = _RefusedWith(409, "this model is not, or no longer, one to start from: take the newest")
    SECOND = _RefusedWith(409, "this key has left a difference of this round, or of this model")
    SPENT = _RefusedWith(410, "this key has been counted here as often as its privacy budget allows")
    CLOSED = _RefusedWith(503, "this host cannot write down any more what its visitors have spent of their privacy")
    FULL = _RefusedWith(429, "enough visitors came this round: come again in the next")
    NETWORK_FULL = _RefusedWith(429, "enough visitors came from this network this round: come again in the next")

    @property
    def label(self) -> str:
        """Return the word for programs."""
        return self.name.lower()


class RefusedVisitError(Exception):
    """A visitor's request that is refused. It costs the visitor, and never the node."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value.words)
        self.refusal = refusal
