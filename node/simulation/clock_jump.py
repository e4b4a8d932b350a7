"""Lets virtual time pass in the very turn of trio's loop that found nothing to do.

trio's own MockClock jumps at the end of such a turn, so that what is due runs in the next one: two turns, each with a
call of the system, for every moment at which something happens. To jump before the turn looks at deadlines saves one.
"""

import math

import trio
import trio.testing


class ClockJump(trio.abc.Instrument):
    """Moves `clock` to the next deadline where no task can run, by the same sum as its own jump. That one stays set for
    what this one leaves."""

    def __init__(self, clock: trio.testing.MockClock) -> None:
        self._clock = clock

    def after_io_wait(self, timeout: float) -> None:
        """Jump, where nobody can run."""
        found = trio.lowlevel.current_statistics()
        if not found.tasks_runnable and 0 < found.seconds_to_next_deadline < math.inf:
            self._clock.jump(found.seconds_to_next_deadline)
