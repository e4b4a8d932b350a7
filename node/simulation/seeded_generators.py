"""The generators that a whole process shares begin at the simulation's seed, and are as before when it is over.

A model with dropout draws from torch's own, and a task may draw from Python's and numpy's. Python's and numpy's begin
at the system's entropy; torch's goes on from the simulation before.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch

from node.simulation.derived import rng_of

SEED_BITS: Final = 32
"""Of a seed: what numpy's takes at most."""


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed torch's generator on the CPU, Python's `random` and numpy's `numpy.random`; give them back as they were."""
    drawn = rng_of(seed, "generators")
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(drawn.getrandbits(SEED_BITS))
        random.seed(drawn.getrandbits(SEED_BITS))
        np.random.seed(drawn.getrandbits(SEED_BITS))
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
