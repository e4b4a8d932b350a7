"""How often a peer may announce, and who answers for more.

Broadcasts cost every member of the swarm a check, and a key that signs them costs nothing. An honest node announces at
most so many links a second (its announcer waits), so one that sends us more of its own makes a flood, and is charged.
What comes through others is bounded too, by signer, but charges nobody: who passes on is in good faith, and the signer
may have been recorded long ago by whoever plays it back. The two bounds are apart, so that a recording of a neighbour's
links, played by a third, cannot silence the neighbour itself.
"""

from typing import Final

from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket

ANNOUNCE_BURST: Final = 32
ANNOUNCE_PER_S: Final = 20.0
"""What a node broadcasts itself: as fast as anybody follows it (follower_task.UPDATES_PER_S); rounds of 50 ms are the
fastest that make sense. A link that is not broadcast is fetched with the ones after it."""

LINKS_BURST: Final = 64
LINKS_PER_S: Final = 40.0
"""What is taken of a peer's: twice that, for clocks and queues differ. After a pause of ours everything comes at once:
the 20 s for which a silent connection lasts are 400 announcements, of which 336 are too many and cost 84 points."""


class AnnouncementLimit:
    """Buckets by signer: one for what it sends us itself, and one for what others pass on."""

    def __init__(self) -> None:
        self._own = KeyedTokenBucket(burst=LINKS_BURST, per_s=LINKS_PER_S)
        self._passed_on = KeyedTokenBucket(burst=LINKS_BURST, per_s=LINKS_PER_S)

    def takes(self, forwarder: PeerId, signer: PeerId, now: float) -> bool:
        """Whether one more link of `signer`, new or repeated, may be looked into."""
        bucket = self._own if forwarder == signer else self._passed_on
        return bucket.take(signer, now)
