"""Says to the neighbours that our own data have shifted: to each once a claim, and again where it was not reached."""

import trio

from gossip.context import ServiceContext
from gossip.core.limits import SHIFT_PROTOCOL
from gossip.core.messages import ShiftRequest
from gossip.telling_task import heard
from gossip.updates.neighbour import Neighbour


class ShiftTeller:
    """Who has heard of our newest claim. `say` is called once a round while the claim lasts, so that a neighbour that
    came since, or could not be reached, hears of it in the next round."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._claim: int | None = None
        self._told: set[Neighbour] = set()

    def say(self, claim: int, nursery: trio.Nursery) -> None:
        """Tell those who do not know of the claim `claim`, any number that stays the same while it lasts. Without a
        link of ours nobody is told: it names no round then."""
        here = self._context.engine.neighbours
        self._told = {it for it in self._told if here.get(it.peer) is it} if claim == self._claim else set()
        self._claim = claim
        word = self._context.engine.shift_word()
        for it in here.values():
            if word is not None and it not in self._told:
                self._told.add(it)  # while it is under way
                nursery.start_soon(self._tell, it, word)

    async def _tell(self, it: Neighbour, word: ShiftRequest) -> None:
        """Tell one neighbour. A release that does not know of claims refuses the stream, and charges nobody."""
        if not await heard(self._context, it.peer, word, protocol=SHIFT_PROTOCOL):
            self._told.discard(it)
