"""Chooses the announcements to process: none of banned peers or wrong roles, and no more than are needed."""

from collections.abc import Callable

from gossip.core.announcement_limit import AnnouncementLimit
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.updates.peer_score import PeerScores
from gossip.updates.roles import Roles


class BroadcastValidator:
    """`offence(peer, error, now)` charges a peer."""

    def __init__(
        self, peer_scores: PeerScores, roles: Roles, offence: Callable[[PeerId, RemoteError, float], None]
    ) -> None:
        self._peer_scores = peer_scores
        self._roles = roles
        self._offence = offence
        self._rates = AnnouncementLimit()

    def listens(self, forwarder: PeerId, signer: PeerId, now: float) -> bool:
        """Return whether to process a header of `signer` that `forwarder` passed on."""
        if self._peer_scores.scores.banned(signer, now):
            self._peer_scores.refuse(signer, RemoteError(Reason.BANNED, "a link of a banned signer"))
            return False
        if (objection := self._roles.objection(signer)) is not None:
            self._blame(forwarder, signer, objection, now)
            return False
        if not self._rates.takes(forwarder, signer, now):
            flood = RemoteError(Reason.FLOODED, f"more announcements of {signer} than anybody needs")
            self._blame(forwarder, signer, flood, now)
            return False
        return True

    def _blame(self, forwarder: PeerId, signer: PeerId, error: RemoteError, now: float) -> None:
        """Charge a sender for its own broadcast; a forwarder may act in good faith."""
        if forwarder == signer:
            self._offence(signer, error, now)
        else:
            self._peer_scores.refuse(forwarder, error)
