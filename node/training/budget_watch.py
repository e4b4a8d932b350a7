"""Watches a node's memory against its budget, and makes it take less before the budget is reached.

What counts is what the system cannot take back: anonymous and shared memory, of this process. Pages of files that are
mapped or cached can be dropped at any time. Near the budget the node gives back what the C library keeps; where that is
not enough, half as many examples go through the model at a time.
"""

from collections.abc import Callable
from typing import Final

import trio

from node.system import free_memory
from p2ptrain.training import Trainer

LOOK_S: Final = 0.5
"""Seconds between two looks: a step of a model that fills its budget takes about as long. Chosen."""

NEAR: Final = 0.95
"""The part of the budget from which on the node takes less."""

SETTLE_S: Final = 10.0
"""Seconds until it takes half as many examples again: steps of the former size have ended by then. Chosen."""


class BudgetWatch:
    """`used` returns the bytes that the process holds; `trainer` takes fewer examples at a time, `least` at least."""

    def __init__(self, budget: int, used: Callable[[], int], trainer: Trainer, least: int = 1) -> None:
        self._budget, self._used, self._trainer, self._least = budget, used, trainer, least
        self._halved_at = -SETTLE_S

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self.look(trio.current_time())

    def look(self, now: float) -> None:
        """Take less where the budget is near."""
        if self._used() <= NEAR * self._budget:
            return
        free_memory.trim()
        if self._used() <= NEAR * self._budget or now < self._halved_at + SETTLE_S:
            return
        examples = (self._trainer.micro_batch or self._trainer.config.batch_size) // 2
        if examples >= self._least:
            self._halved_at = now
            self._trainer.take_at_a_time(examples)  # the end of the round tells it
