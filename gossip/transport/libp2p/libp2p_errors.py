"""libp2p's exceptions, translated at the edge and nowhere else.

libp2p raises some thirty types from a dozen roots, several of them as groups (trap 20), and whichever the remote's
bytes lead to: a dial can end in `cryptography`'s InvalidTag as well as in SwarmException. So the table decides the
words, not the type: whatever comes out of a call into libp2p is a TransportError. Cancellation passes untouched.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import trio
from libp2p.io.exceptions import IOException
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF, StreamReset
from libp2p.protocol_muxer.exceptions import MultiselectClientError, MultiselectCommunicatorError
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.stream_muxer.exceptions import MuxedConnError, MuxedStreamError
from libp2p.transport.exceptions import OpenConnectionError, UpgradeFailure

from gossip.core.errors import GossipError, LocalError
from gossip.transport.base import TransportError
from gossip.transport.handshake_admission import AdmissionDeniedError

WORDS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (StreamReset, "the stream was reset"),
    (StreamEOF, "the stream has ended"),
    (StreamClosed, "the stream is closed"),
    (MultiselectClientError, "the peer does not speak this protocol"),
    (MultiselectCommunicatorError, "the connection was lost while negotiating"),
    (UnicodeDecodeError, "the peer answered with bytes that are not text"),
    (PeerIDMismatchesPubkey, "another node answers there, with another key"),
    (UpgradeFailure, "the handshake failed"),
    (OpenConnectionError, "nothing answers at this address"),
    (MuxedStreamError, "the stream is gone"),
    (MuxedConnError, "the connection is gone"),
    (SwarmException, "the connection failed"),
    (trio.TooSlowError, "no answer in time"),
    (trio.BrokenResourceError, "the connection was lost"),
    (trio.ClosedResourceError, "the connection is closed"),
    (OSError, "the network refused"),
    (IOException, "the connection was lost"),
)
"""From the most to the least specific: the first match names the fault."""

Caught = TypeVar("Caught", bound=BaseException)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it groups and what caused it: the root cause tells more than the wrapper."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _chain(inner)
    yield error
    if error.__cause__ is not None:
        yield from _chain(error.__cause__)


def caused_by(error: BaseException, kind: type[Caught]) -> Caught | None:
    """The first of this kind among an exception, what it groups and what caused it."""
    return next((cause for cause in _chain(error) if isinstance(cause, kind)), None)


def words_for(error: BaseException) -> str:
    """One clause saying what went wrong, without libp2p's terms."""
    refused = caused_by(error, AdmissionDeniedError)
    if refused is not None:
        return str(refused)
    causes = list(_chain(error))
    for kind, words in WORDS:
        for cause in causes:
            if isinstance(cause, kind):
                return f"{words} ({cause})" if isinstance(cause, OSError) and str(cause) else words
    return f"the peer broke the protocol ({type(causes[-1]).__name__})"


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Whatever libp2p raises in the block becomes TransportError(`what`: the cause in words)."""
    try:
        yield
    except GossipError:
        raise
    except Exception as error:
        raise TransportError(f"{what}: {words_for(error)}") from error


@contextmanager
def unwrapped() -> Iterator[None]:
    """A LocalError that comes in the groups of our nurseries, by itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        found: BaseException | None = group.subgroup(LocalError)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is None:
            raise
        raise found from None
