"""How often a peer may announce, and who is charged for more.

Broadcasts cost every member of the swarm a check, and a key that signs them costs nothing. An honest node announces at
most so many links a second (its announcer waits). So a peer that sends us more of its own floods us, and is charged.
What others pass on is bounded too, by signer, but nobody is charged: the forwarder acts in good faith, and the links
may have been recorded long ago by an attacker who replays them. The two bounds are separate, so that a replay of a
neighbour's links by a third peer cannot silence the neighbour itself.
"""

from typing import Final

from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket

ANNOUNCE_BURST: Final = 32
ANNOUNCE_PER_S: Final = 20.0
"""Links a second that a node broadcasts itself: as fast as a neighbour is followed (follower_task.UPDATES_PER_S);
rounds of 50 ms are the fastest that make sense. A link that is not broadcast is fetched with the ones after it."""

LINKS_BURST: Final = 64
LINKS_PER_S: Final = 40.0
"""Links a second that are processed of one signer: twice that, for clocks and queues differ. After a pause of ours
everything comes at once: the 20 s for which a silent connection lasts are 400 announcements, of which 336 are too many
and cost 84 points."""


class AnnouncementLimit:
    """Token buckets by signer: one for links that it sends us itself, and one for those that others pass on."""

    def __init__(self) -> None:
        self._own = KeyedTokenBucket(burst=LINKS_BURST, per_s=LINKS_PER_S)
        self._passed_on = KeyedTokenBucket(burst=LINKS_BURST, per_s=LINKS_PER_S)

    def takes(self, forwarder: PeerId, signer: PeerId, now: float) -> bool:
        """Return whether one more link of `signer`, new or repeated, may be processed."""
        bucket = self._own if forwarder == signer else self._passed_on
        return bucket.take(signer, now)
