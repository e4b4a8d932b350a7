"""Closes rounds: waits until enough neighbours are fresh or the learned deadline is over, and says who takes part.

A round is kept open as long as an exchange takes (exchange_times.py), whatever limit its caller sets. A round that ends
earlier ends before anybody's update can be here, and its node gets ahead of the updates of all the others.
"""

import math
from collections import deque
from functools import partial
from typing import Final, Literal

import trio

from gossip.context import ServiceContext
from gossip.core.api import Arrivals, RoundView
from gossip.core.config import GossipConfig
from gossip.updates.exchange_times import ExchangeTimes
from gossip.updates.rounds import LearnedDeadline
from gossip.updates.standing import LEAD_ROUNDS, Progress, Standing

EXCHANGE_MARGIN: Final = 3.0
"""A round is kept open for so many times the duration of an exchange. One is for the exchange, one for neighbours that
ended their phase later than we did, by at most the exchange before; the third for a machine that is busier than a
moment ago. Chosen; only a round that no quorum closes lasts so long."""

FIRST_EXCHANGE_S: Final = 1.0
"""Seconds that an exchange is assumed to take before one was measured: eight processes that share two cores with a
ninth took 0.3 to 1.5 s. A longer one is measured all the same, and counts from then on."""


class RoundCloser:
    """Closes rounds with a learned deadline; with whom they count is in standing.py."""

    def __init__(self, context: ServiceContext, exchanges: ExchangeTimes) -> None:
        config = context.config
        self._context = context
        self._exchanges = exchanges
        self._deadline = LearnedDeadline(
            initial=config.initial_deadline_s, least=config.min_deadline_s, k=config.deadline_k
        )
        self._closed_at: deque[float] = deque(maxlen=LEAD_ROUNDS)
        """When the newest rounds were closed (seconds, monotonic)."""
        self._take_up(config)

    def settle(self, config: GossipConfig) -> None:
        """Use another quorum and other bounds of the deadline from now on; what was learned stays."""
        self._deadline.change(initial=config.initial_deadline_s, least=config.min_deadline_s, k=config.deadline_k)
        self._take_up(config)

    def _take_up(self, config: GossipConfig) -> None:
        self._quorum = config.quorum
        self._longest = config.initial_deadline_s
        self._max_staleness = config.max_staleness

    def exchange_seconds(self) -> float | None:
        """Return how long an exchange with a quorum of the neighbours takes (seconds); None before one was measured."""
        besides = self._context.engine.unawaited
        return self._exchanges.seconds(quorum=self._quorum, liars=self._context.liars, besides=besides)

    def patience(self, round: int) -> float:
        """Return for how many seconds a round is at least kept open: the time of some exchanges while updates are to be
        expected, of one where the neighbours have fallen silent, so that we do not get ahead of those who will be
        back.

        Updates are expected from any neighbour that delivers, however far behind. So a node that ran ahead while it was
        alone goes more slowly than the others until they have caught up: their rounds end at a quorum, after one
        exchange. Where these take longer, as it computes faster, it waits for as long as a round may last."""
        standing = self._standing(round)
        if self._is_held(standing):
            return self._longest
        if standing.staleness or self._anybody_delivers() or self._newly_met():
            return self._exchange_patience()
        delivered = self._exchanges.seconds(quorum=self._quorum, liars=self._context.liars, delivered=True)
        return min(self._longest, delivered or 0.0)

    def arrivals(self, round: int) -> Arrivals:
        """Return what has arrived of a round so far, of the neighbours that are awaited and not too far ahead to count,
        and have announced a round: a newcomer that has not begun is late with nothing."""
        seated, standing = self._context.engine.seated(), self._standing(round)
        awaited = standing.candidates
        rounds = [at for peer in awaited if (at := seated[peer].announced_round) is not None]
        announced = sum(at >= round for at in rounds)
        arrived = sum(standing.progress[peer] is Progress.FRESH for peer in awaited)
        return Arrivals(neighbours=len(rounds), announced=max(announced, arrived), arrived=arrived)

    async def close(self, round: int, at_most_s: float) -> RoundView:
        """Wait for the end of one round; return it."""
        started = trio.current_time()
        closed_by: Literal["quorum", "deadline", "alone"] = "deadline"
        is_held = self._is_held(self._standing(round))
        with trio.move_on_after(self._deadline.seconds(at_most_s, at_least=self.patience(round))) as limit:
            closed_by = await self._enough(round)
        if limit.cancelled_caught and self._is_held(self._standing(round)):  # since it began a member left
            is_held = True
            with trio.move_on_at(started + self._longest):
                closed_by = await self._enough(round)
        seconds = trio.current_time() - started
        self._closed_at.append(trio.current_time())
        if closed_by != "alone" and not is_held:  # nor is it learned from rounds in which nobody was to be waited for
            self._deadline.learn(seconds)
        self._context.engine.round_closed()
        standing = self._standing(round)
        return RoundView(
            round=round,
            staleness=standing.staleness,
            degree=len(self._context.engine.neighbours),
            degrees=self._context.engine.degrees_of(standing.staleness),
            fresh=standing.fresh,
            neighbours=standing.neighbours,
            arriving=standing.arriving,
            closed_by=closed_by,
            seconds=seconds,
        )

    async def _enough(self, round: int) -> Literal["quorum", "alone"]:
        while True:
            standing = self._standing(round)
            if standing.awaits_nobody:
                return "alone"
            if self._is_quorum(standing, round):
                return "quorum"
            await self._context.changed.wait()

    def _is_quorum(self, standing: Standing, round: int) -> bool:
        if not standing.quorum_reached(self._quorum):  # nor with what is due, which takes longer to find out
            return False
        return not self._is_held(standing) and standing.quorum_reached(self._quorum, due=self._due(round, standing))

    def _is_held(self, standing: Standing) -> bool:
        """Return whether the round is kept open for those behind, for as long as any may be. Updates count since as
        many rounds of ours as members may be behind: one that died is not waited for."""
        rounds = max(1, self._max_staleness)
        since = self._closed_at[-rounds] if len(self._closed_at) >= rounds else -math.inf
        delivers = partial(self._exchanges.delivers, since=since)
        return standing.leaves_others(self._context.engine.least_members, self._context.liars, delivers)

    def _standing(self, round: int) -> Standing:
        return self._context.engine.standing(round, trio.current_time())

    def _exchange_patience(self) -> float:
        seconds = self.exchange_seconds()
        return min(self._longest, EXCHANGE_MARGIN * (FIRST_EXCHANGE_S if seconds is None else seconds))

    def _due(self, round: int, standing: Standing) -> int:
        """Return how many neighbours are no members yet, but deliver, and have announced this round, or one that we
        had open while an announcement may have been under way; paused ones have nothing under way. Nothing that
        those far ahead send would make the round a member's: to wait for it is to wait until the deadline."""
        seated, since = self._context.engine.seated(), self._since()
        opened = trio.current_time() - self._exchange_patience()
        least = round - sum(at >= opened for at in self._closed_at)
        return sum(
            (seated[peer].announced_round or 0) >= least and self._exchanges.delivers(peer, since)
            for peer in standing.overdue
        )

    def _anybody_delivers(self) -> bool:
        """Return whether a neighbour delivers, however far it is behind us."""
        since = self._since()
        return any(self._exchanges.delivers(peer, since) for peer in self._context.engine.seated())

    def _newly_met(self) -> bool:
        """Return whether there is a neighbour from which nothing has arrived yet, and might arrive soon."""
        since = self._since()
        return any(not it.tracked and it.since >= since for it in self._context.engine.seated().values())

    def _since(self) -> float:
        """Return from when on a neighbour's signs of life count: one that delivers nothing for as many deadlines as it
        may be stale rounds is not waited for."""
        return trio.current_time() - max(1, self._max_staleness) * self._exchange_patience()
