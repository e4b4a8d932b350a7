"""Whose fault it is: ours (`LocalError`) or a peer's (`RemoteError`).

The split decides what happens next. A remote fault costs that peer score, is counted by its `reason`, and never stops
anything of ours. A local fault is a mistake of the user or of our code, and is raised to the caller.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why something from a peer was refused; the `reason` label of the metrics, so the set is closed."""

    MALFORMED = "malformed"
    OVERSIZE = "oversize"
    FORGED = "forged"
    WRONG_SWARM = "wrong_swarm"
    WRONG_RUN = "wrong_run"
    UNKNOWN_KIND = "unknown_kind"
    REPLAYED = "replayed"
    EQUIVOCATION = "equivocation"
    STALE = "stale"
    WRONG_SHAPE = "wrong_shape"
    WRONG_MODEL = "wrong_model"
    UNKNOWN_CODEC = "unknown_codec"
    NONFINITE = "nonfinite"
    DIGEST_MISMATCH = "digest_mismatch"
    CONTRADICTED = "contradicted"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    BANNED = "banned"
    PROTOCOL = "protocol"
    FLOODED = "flooded"
    NO_MEMBER = "no_member"
    EXPIRED = "expired"
    REVOKED = "revoked"
    USED_UP = "used_up"
    WRONG_ROLE = "wrong_role"


class GossipError(Exception):
    """Base class of what this package raises."""


class LocalError(GossipError):
    """We were asked for something that cannot be done: a wrong argument, a port in use, a bad key file."""


class RemoteError(GossipError):
    """A peer did something that the protocol does not allow, or failed to answer."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail


class AnsweredError(GossipError):
    """A caller came with a question and does not stay: `answer` is sent before the connection ends."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("it has asked, and was answered")
        self.answer = answer


def lone_local_error(group: BaseExceptionGroup) -> BaseException:
    """Return the user's mistake out of the nurseries' groups when it is the only error; else the group as it was."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, LocalError) else group
