"""Holds a round open for the refinements that are expected within their time, and gives up the others."""

import trio

from gossip.context import ServiceContext
from gossip.core.ids import PeerId
from gossip.updates.follower_task import Followers
from gossip.updates.layer_plan import LayerPlan


class LayerWait:
    """The runtime's view of refinements. It has no task of its own: the followers fetch."""

    def __init__(self, context: ServiceContext, plan: LayerPlan, followers: Followers) -> None:
        self._context = context
        self._plan = plan
        self._followers = followers

    def begin(self, hidden_s: float) -> None:
        """Note that a round closes now, and has so many seconds for refinements."""
        self._plan.begin_closing(hidden_s, trio.current_time())
        self._followers.wake_all()

    async def finish(self, *, wait: bool) -> None:
        """Give up what has not come; with `wait`, after what is expected has come, or its time is over."""
        until = self._plan.closes_at
        with trio.move_on_at(trio.current_time() if until is None else until):
            while wait and self._followers.refining:
                await self._context.changed.wait()
        self._followers.stop_refining()
        self._plan.end_closing()

    def taken(self) -> dict[PeerId, int]:
        """Return how many refinements of its newest update are here, of each neighbour with any."""
        return self._plan.depths()

    def sent(self) -> dict[PeerId, int]:
        """Return how many of our refinements each neighbour has."""
        return self._plan.sent_to()
