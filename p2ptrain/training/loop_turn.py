"""Whose turn it is: that of a user's training loop, or of an evaluation.

A process has some things only once: the global random numbers of Python, numpy and torch, tokenizers and data sets that
are not safe to use from two threads. A user's `evaluate` may use any of them, and is called in another thread than the
loop. So it runs while the loop's thread is in a call of the swarm's, and the random numbers are put back after it.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

ACCELERATORS: Final = ("cuda", "xpu")
"""Kinds of device with random numbers of their own, one state a device."""


class LoopTurn:
    """Says who may run: the loop, or who has `taken` the turn. It is lent until the loop begins. Thread-safe."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._lent = 1
        self._wanted = 0
        """Who has the turn, or waits for it."""
        self._one = threading.Lock()

    def lend(self) -> None:
        """Let others have the turn: the loop calls the swarm, or has ended."""
        with self._change:
            self._lent += 1
            self._change.notify_all()

    def take_back(self) -> None:
        """Wait until nobody wants the turn, and have it again: the loop's own code goes on."""
        with self._change:
            try:
                while self._wanted and self._lent == 1:
                    self._change.wait()
            finally:
                self._lent -= 1

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the turn for the time of a call."""
        self.lend()
        try:
            yield
        finally:
            self.take_back()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the turn, one at a time, as soon as it is lent; the loop waits, and finds its random numbers as they
        were."""
        with self._one:
            with self._change:
                self._wanted += 1
                while not self._lent:
                    self._change.wait()
            try:
                with random_state_kept():
                    yield
            finally:
                with self._change:
                    self._wanted -= 1
                    self._change.notify_all()


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put the global random numbers back at the end: those of Python, numpy, and torch on each device in use."""
    python, numpy_, torch_ = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = _states_of_devices()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_)
        torch.set_rng_state(torch_)
        for put_back, states in devices:
            put_back(states)


def _states_of_devices() -> list[tuple[Callable[[Any], None], Any]]:
    modules = [module for kind in ACCELERATORS if (module := getattr(torch, kind)).is_initialized()]
    return [(module.set_rng_state_all, module.get_rng_state_all()) for module in modules]
