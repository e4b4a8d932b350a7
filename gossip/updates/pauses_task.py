"""Says to the neighbours that we are paused, at once and again before the word ends; to new ones as they come."""

from collections.abc import Callable
from typing import Final

import trio

from gossip.context import ServiceContext
from gossip.core.limits import PAUSE_PROTOCOL
from gossip.core.messages import PauseRequest
from gossip.telling_task import heard
from gossip.updates.announced_pauses import WORD_S
from gossip.updates.neighbour import Neighbour

REPEAT_S: Final = WORD_S / 3
"""Seconds after which a neighbour is told again at the latest: one that was not reached once does not wait for us."""

MARGIN_S: Final = 5.0
"""Seconds before the end of a word at which it is said again, and that it counts at least. Chosen."""

RETRY_S: Final = 0.5
"""Seconds until a neighbour that was not reached, or does not have us as its neighbour yet, is told again; doubling up
to REPEAT_S. Chosen."""


async def say_paused(context: ServiceContext, seconds: Callable[[], float | None]) -> None:
    """Tell every neighbour until cancelled. `seconds`: for how long we are paused from now on; None: unknown."""
    async with trio.open_nursery() as nursery:
        await _PauseTeller(context, seconds, nursery).run()


class _PauseTeller:
    """The neighbours that know of one pause of ours, and when each hears of it again."""

    def __init__(self, context: ServiceContext, seconds: Callable[[], float | None], nursery: trio.Nursery) -> None:
        self._context, self._seconds, self._nursery = context, seconds, nursery
        self._due_at: dict[Neighbour, float] = {}
        """Neighbours that are told already: one that was lost and is back is another one."""
        self._failures: dict[Neighbour, int] = {}

    async def run(self) -> None:
        """Tell until cancelled; a new neighbour at once, since its round may wait for us already."""
        while True:
            self._tell_all()
            with trio.move_on_at(min(self._due_at.values(), default=float("inf"))):
                await self._context.changed.wait()

    def _tell_all(self) -> None:
        """Tell those that do not know, and those whose word ends or was said long ago."""
        now = trio.current_time()
        here = self._context.engine.neighbours
        self._due_at = {it: at for it, at in self._due_at.items() if here.get(it.peer) is it}
        self._failures = {it: count for it, count in self._failures.items() if it in self._due_at}
        due = [it for it in here.values() if self._due_at.get(it, now) <= now]
        if not due:
            return
        left = self._seconds()
        word = self._context.engine.pause_after(None if left is None else max(left, MARGIN_S))
        if word is None:
            return
        for it in due:
            self._due_at[it] = float("inf")  # until it is known whether it has heard
            self._nursery.start_soon(self._tell, it, word)

    async def _tell(self, it: Neighbour, word: PauseRequest) -> None:
        """Tell one neighbour; try again soon where it cannot be reached or refuses. A release that does not know of
        pauses refuses the stream, and waits as for anybody."""
        said_at = trio.current_time()
        told = await heard(self._context, it.peer, word, protocol=PAUSE_PROTOCOL)
        if it not in self._due_at:  # lost meanwhile
            return
        if told:
            self._failures.pop(it, None)
            lasts_s = max(MARGIN_S, word.seconds - MARGIN_S) if word.seconds else REPEAT_S
            self._due_at[it] = said_at + min(REPEAT_S, lasts_s)
        else:
            failures = self._failures[it] = self._failures.get(it, 0) + 1
            self._due_at[it] = trio.current_time() + min(REPEAT_S, RETRY_S * 2.0 ** (failures - 1))
        self._context.changed.beat()  # for the loop, which knows of no time for this neighbour
