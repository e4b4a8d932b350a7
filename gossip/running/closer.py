"""Closes rounds: waits until enough neighbours are fresh or the learned deadline is there, and says who takes part."""

from typing import Literal

import trio

from gossip.api import RoundView
from gossip.config import GossipConfig
from gossip.protocol.rounds import LearnedDeadline
from gossip.running.context import Context


class Closer:
    """Holds the learned deadline; the rule itself is rounds.py."""

    def __init__(self, context: Context) -> None:
        config = context.config
        self._context = context
        self._quorum = config.quorum
        self._deadline = LearnedDeadline(
            initial=config.initial_deadline_s, least=config.min_deadline_s, k=config.deadline_k
        )

    def settle(self, config: GossipConfig) -> None:
        """Close by another quorum and other bounds of the deadline from now on; what was learned stays."""
        self._quorum = config.quorum
        self._deadline.change(initial=config.initial_deadline_s, least=config.min_deadline_s, k=config.deadline_k)

    async def close(self, round: int, at_most_s: float) -> RoundView:
        """One round's end."""
        started = trio.current_time()
        closed_by: Literal["quorum", "deadline", "alone"] = "deadline"
        with trio.move_on_after(self._deadline.seconds(at_most_s)):
            closed_by = await self._enough(round)
        seconds = trio.current_time() - started
        if closed_by != "alone":
            self._deadline.learn(seconds)
        self._context.engine.round_closed()
        standing = self._context.engine.standing(round, trio.current_time())
        return RoundView(
            round=round,
            staleness=standing.staleness,
            fresh=standing.fresh,
            neighbours=standing.neighbours,
            arriving=standing.arriving,
            closed_by=closed_by,
            seconds=seconds,
        )

    async def _enough(self, round: int) -> Literal["quorum", "alone"]:
        while True:
            standing = self._context.engine.standing(round, trio.current_time())
            if standing.neighbours == 0:
                return "alone"
            if standing.quorum_reached(self._quorum):
                return "quorum"
            await self._context.changed.wait()
