"""The door of a private swarm: asks the swarm's `Admission`, counts whom it sends away, and tells a few of them.

A refusal costs the stranger a handshake and us a line at most, so lines are few: strangers make keys for nothing, and
must not fill a log. Each counts, by its reason (drop_reasons.py). Nothing here is I/O, and every transport asks it.
"""

from collections.abc import Callable
from typing import Final

from gossip.core.errors import AnsweredError, LocalError, RemoteError
from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.transport.base import MAX_CREDENTIALS, Admission, TransportError
from gossip.transport.drop_reasons import DROPS

LINES_OF_PEER: Final = 1
LINES_OF_HOST: Final = 6
LINES: Final = 20
"""Told in a minute: of one key, of one address (a laboratory behind a router may have several members whose time is
over), and in all. A flood writes 3 MB a day."""

_MINUTE_S: Final = 60.0


class AdmissionDeniedError(TransportError):
    """One end of a connection did not take the other for a member. `kind`: under which it is counted, "" where it is
    the far end that would not have us. `answer`: what the refused one is told, b"" for nothing."""

    def __init__(self, kind: str, why: str, answer: bytes = b"") -> None:
        super().__init__(why)
        self.kind = kind
        self.answer = answer


class HandshakeAdmission:
    """Who may come in. `count`: one more of this kind. Without an `admission` it stands open, and is not asked."""

    def __init__(self, admission: Admission | None, count: Callable[[str], None]) -> None:
        self.tell: Callable[[str, str], None] = lambda caller, why: None
        self._admission = admission
        self._count = count
        self._of_peer, self._of_host, self._of_all = (
            KeyedTokenBucket(burst=lines, per_s=lines / _MINUTE_S) for lines in (LINES_OF_PEER, LINES_OF_HOST, LINES)
        )

    @property
    def open(self) -> bool:
        """Whether everybody may come in."""
        return self._admission is None

    def credentials(self) -> bytes:
        """What we show. Raises LocalError when it is too long to be shown."""
        assert self._admission is not None
        shown = self._admission.credentials()
        if len(shown) > MAX_CREDENTIALS:
            raise LocalError(f"credentials of {len(shown)} bytes are above the {MAX_CREDENTIALS} allowed")
        return shown

    def admit(self, peer: PeerId, credentials: bytes, host: str | None, now: float) -> None:
        """Ask about a peer that has proved its key, at `host`. Raises AdmissionDeniedError, which is counted and told;
        of one that came to ask, counted alone."""
        assert self._admission is not None
        try:
            self._admission.admit(peer, credentials)
        except AnsweredError as asked:  # a newcomer's first step: counted, and nothing that an operator is to look at
            self._count("visited")
            raise AdmissionDeniedError("visited", str(asked), asked.answer) from None
        except RemoteError as error:
            kind = f"refused_{error.reason}"
            refusal = self.refusal(kind if kind in DROPS else "refused_other", str(error), peer, host, now)
            refusal.answer = self._admission.explain(peer, credentials, error)
            raise refusal from None

    def heard(self, peer: PeerId, said: bytes) -> str:
        """What the far end says of why it does not let us in, in words."""
        assert self._admission is not None
        return self._admission.heard(peer, said)

    def refusal(self, kind: str, why: str, peer: PeerId | None, host: str | None, now: float) -> AdmissionDeniedError:
        """Count a refusal and report it, unless enough was reported of late; return the error to raise."""
        self._count(kind)
        if self._telling(peer, host, now):
            where = host or "another's connection"
            self.tell(f"{peer} at {where}" if peer is not None else f"somebody at {where}", why)
        return AdmissionDeniedError(kind, f"it was refused: {why}")

    def _telling(self, peer: PeerId | None, host: str | None, now: float) -> bool:
        """Return whether peer, host and node all have a line left; a refusal that is not reported takes none."""
        asked = ((self._of_peer, peer or host or ""), (self._of_host, host or ""), (self._of_all, ""))
        if not all(quota.has(name, now) for quota, name in asked):
            return False
        return all(quota.take(name, now) for quota, name in asked)
