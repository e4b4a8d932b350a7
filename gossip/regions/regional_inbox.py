"""What others say of regions' models: which statements are taken in, and who is charged for the others."""

from collections.abc import Callable

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.statements import RegionalModel
from gossip.regions.regional_models import RegionalModels, RegionalVerdict
from gossip.regions.residency import Residency
from gossip.updates.broadcast_validator import BroadcastValidator
from gossip.updates.hash_chain import EquivocationError
from gossip.updates.peer_score import PeerScores


class RegionalInbox:
    """`region_of`: the label in a member's record, None where none is known. `is_here`: whether a peer is a neighbour,
    or connected. `offence(peer, error, now)` charges a peer."""

    def __init__(
        self,
        models: RegionalModels,
        *,
        max_payload_bytes: int,
        region_of: Callable[[PeerId], str | None],
        residency: Residency,
        is_here: Callable[[PeerId], bool],
        validator: BroadcastValidator,
        peer_scores: PeerScores,
        offence: Callable[[PeerId, RemoteError, float], None],
    ) -> None:
        self._models = models
        self._max_payload_bytes = max_payload_bytes
        self._region_of = region_of
        self._residency = residency
        self._is_here = is_here
        self._validator = validator
        self._peer_scores = peer_scores
        self._offence = offence

    def hear(self, name: Digest, forwarder: PeerId, model: RegionalModel, now: float) -> bool:
        """Take in a validly signed statement; return whether there is something new to fetch. Its author is charged for
        what only it can have signed. Who does not know the author does not pass the statement on either."""
        if not self._validator.listens(forwarder, model.peer, now):
            return False
        region = self._region_of(model.peer)
        if region is None:
            return False
        if model.size > self._max_payload_bytes:
            self._peer_scores.refuse(model.peer, RemoteError(Reason.OVERSIZE, f"a model of {model.size} bytes"))
            return False
        if region != model.region:
            wrong = RemoteError(Reason.PROTOCOL, "a model of another region than its own")
            self._peer_scores.refuse(model.peer, wrong)  # it may have changed its region a moment ago
            return False
        if model.averaged < self._residency.least(region):
            said = f"an average of {model.averaged} members, where the run wants {self._residency.least(region)}"
            self._peer_scores.refuse(model.peer, RemoteError(Reason.PROTOCOL, said))
            return False
        verdict, other = self._models.hear(name, model, forwarder, now)
        if verdict is RegionalVerdict.CONTRADICTION:
            self.charge_author(model.peer, EquivocationError(other, model.raw), now)
        return verdict is RegionalVerdict.NEWS

    def charge_author(self, peer: PeerId, error: RemoteError, now: float) -> None:
        """Charge the author of a model. A stranger takes no place among the banned: keys cost nothing."""
        if self._is_here(peer):
            self._offence(peer, error, now)
        else:
            self._peer_scores.refuse(peer, error)
